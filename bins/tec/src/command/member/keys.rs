//! Flags that name the location of a cluster's keys.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde::Serialize;
use tec_core::port::Entropy as _;
use tec_core::secret::SecretBytes;
use tec_node::derive::MasterSecret;
use tec_node::uri::{KmsUri, StorageUri};
use tec_support::files::create_private;
use tec_support::{SystemEntropy, input};

/// Largest file with a secret or a URI.
const MAX_SECRET: u64 = 64 * 1024;

/// Where the cluster's keys are. Passed as files, because the arguments of a process are not secret.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// File with the URI of the key service, `kms://…` (experimental for Azure and Google Cloud).
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "master_secret",
        conflicts_with = "master_secret"
    )]
    kms_uri_file: Option<PathBuf>,
    /// File with a master secret, JSON with `key` and `salt` in base64; the cluster's keys are derived
    /// from it.
    #[arg(long, value_name = "FILE")]
    pub(super) master_secret: Option<PathBuf>,
    /// File with the URI of the storage of wrapped keys, `storage://…` (default: none).
    #[arg(long, value_name = "FILE")]
    storage_uri_file: Option<PathBuf>,
}

/// Both URIs, checked but kept as text.
#[derive(Debug)]
pub(super) struct Uris {
    kms: SecretBytes,
    storage: SecretBytes,
}

impl Uris {
    pub(super) fn kms(&self) -> String {
        text(&self.kms)
    }

    pub(super) fn storage(&self) -> String {
        text(&self.storage)
    }
}

fn text(secret: &SecretBytes) -> String {
    String::from_utf8_lossy(secret.expose("it goes into the message for the node")).into_owned()
}

/// The format that [`MasterSecret::from_json`] reads.
#[derive(Serialize)]
struct MasterFile {
    key: String,
    salt: String,
}

impl KeyArgs {
    /// Reads and parses the files.
    pub(super) fn read(&self) -> anyhow::Result<Uris> {
        const WHY: &str = "send it to a node that proved itself";
        let kms = match (&self.kms_uri_file, &self.master_secret) {
            (Some(path), _) => {
                let text = secret_line(path)?;
                let uri =
                    std::str::from_utf8(text.expose(WHY)).context("the URI is not UTF-8 text")?;
                KmsUri::parse(uri).with_context(|| format!("cannot use {}", path.display()))?
            }
            (None, Some(path)) => KmsUri::Cluster(master_secret(path)?),
            (None, None) => anyhow::bail!("--kms-uri-file or --master-secret is required"),
        };
        let storage = match &self.storage_uri_file {
            Some(path) => {
                let text = secret_line(path)?;
                let uri =
                    std::str::from_utf8(text.expose(WHY)).context("the URI is not UTF-8 text")?;
                StorageUri::parse(uri).with_context(|| format!("cannot use {}", path.display()))?
            }
            None => StorageUri::NoStore,
        };
        Ok(Uris { kms: kms.to_secret_text(WHY), storage: storage.to_secret_text(WHY) })
    }
}

/// Content of a file without surrounding whitespace.
pub(super) fn secret_line(path: &Path) -> anyhow::Result<SecretBytes> {
    let bytes = SecretBytes::new(input::read(path, MAX_SECRET)?);
    let line = bytes.expose("leave white space away").trim_ascii().to_vec();
    anyhow::ensure!(!line.is_empty(), "{} is empty", path.display());
    Ok(SecretBytes::new(line))
}

fn master_secret(path: &Path) -> anyhow::Result<MasterSecret> {
    let json = SecretBytes::new(input::read(path, MAX_SECRET)?);
    let secret = MasterSecret::from_json(json.expose("take its parts"));
    secret.with_context(|| format!("cannot use {}", path.display()))
}

/// Creates the master secret file unless it exists, and returns whether it did. Of many concurrent calls, one
/// creates the file, and none replaces a secret that another call is sending to a node.
pub(super) fn make_master_secret(path: &Path) -> anyhow::Result<bool> {
    let random = || {
        let mut bytes = vec![0; 32];
        SystemEntropy.fill(&mut bytes);
        STANDARD.encode(SecretBytes::new(bytes).expose("write the new master secret"))
    };
    let file = MasterFile { key: random(), salt: random() };
    let json = SecretBytes::new(serde_json::to_vec(&file)?);
    match create_private(path, json.expose("the admin keeps it")) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_secret_is_made_once_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.json");
        assert!(make_master_secret(&path).unwrap());
        let made = std::fs::read(&path).unwrap();
        assert!(!make_master_secret(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), made);
        master_secret(&path).unwrap();
    }

    #[test]
    fn short_master_secrets_are_refused_and_not_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("master.json");
        let long = STANDARD.encode([1; 32]);
        for text in [
            format!(r#"{{"key": "Y2FuYXJ5", "salt": "{long}"}}"#),
            format!(r#"{{"key": "{long}", "salt": "Y2FuYXJ5"}}"#),
            format!(r#"{{"key": "Y2FuYXJ5!", "salt": "{long}"}}"#),
            "Y2FuYXJ5".to_owned(),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", master_secret(&path).unwrap_err());
            assert!(!error.contains("Y2FuYXJ5"), "{error}");
        }
    }
}
