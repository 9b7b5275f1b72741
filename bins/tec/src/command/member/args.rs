//! Flags that several of these commands have: what a node has to prove, and where keys are.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bootstrapper::node;
use clap::Args;
use serde::Deserialize;
use serde::Serialize;
use tec_core::ak::Fingerprint;
use tec_core::digest::Sha256Digest;
use tec_core::node::derive::MasterSecret;
use tec_core::node::uri::KmsUri;
use tec_core::node::uri::StorageUri;
use tec_core::pcr::PcrIndex;
use tec_core::port::Entropy as _;
use tec_core::secret::SecretBytes;
use tec_support::SystemClock;
use tec_support::SystemEntropy;
use tec_support::evidence::parse_sha384;
use tec_support::files::write_private;
use tec_support::input;
use tec_tpm::atls::AkTrust;
use tec_tpm::atls::AnyAk;
use tec_tpm::atls::AzureSnpAk;
use tec_tpm::atls::Endpoint;
use tec_tpm::atls::EveryTrust;
use tec_tpm::atls::Expectation;
use tec_tpm::atls::LiveMeasurements;
use tec_tpm::atls::Measurements;
use tec_tpm::atls::PinnedAks;
use tec_tpm::atls::Severity;
use tec_tpm::atls::Variant;
use tec_tpm::atls::VtpmValidator;
use tec_tpm::snp::Policy;

/// Largest file with a secret or a URI.
const MAX_SECRET: u64 = 64 * 1024;
/// Least bytes of a master secret and its salt (contract, section 5).
const MIN_KEY: usize = 16;
const MIN_SALT: usize = 32;

/// What a node has to prove.
#[derive(Debug, Args)]
pub(super) struct TrustArgs {
    /// Attestation key that the node may have, by its fingerprint, as `bootstrapper key` prints it on
    /// the node. May be given several times.
    #[arg(long = "ak", value_name = "FINGERPRINT")]
    aks: Vec<Fingerprint>,
    /// Take any attestation key: whoever is on the network path can be the node.
    #[arg(long, conflicts_with = "aks")]
    dangerous_any_ak: bool,
    /// Registers that the node must have, JSON.
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
    /// Take the node whatever it booted.
    #[arg(long, conflicts_with = "measurements")]
    dangerous_any_measurements: bool,
    /// Sort of the node's evidence.
    #[arg(long, default_value = "qemu-vtpm", value_parser = variant)]
    variant: Variant,
    /// SHA-384 of an ID key whose guests are accepted; with `--variant azure-sev-snp`. May be given
    /// several times.
    #[arg(long = "snp-id-key", value_name = "DIGEST", value_parser = parse_sha384)]
    snp_id_keys: Vec<[u8; 48]>,
    /// Measurement of a guest that is accepted; with `--variant azure-sev-snp`. May be given several
    /// times.
    #[arg(long = "snp-measurement", value_name = "DIGEST", value_parser = parse_sha384)]
    snp_measurements: Vec<[u8; 48]>,
}

fn variant(name: &str) -> Result<Variant, String> {
    let known = Variant::of_name(name).filter(|one| *one != Variant::Dummy);
    known.ok_or_else(|| format!("{name:?} is no sort of evidence"))
}

impl TrustArgs {
    /// Who cannot say what a node must be like would talk to anybody.
    fn ensure_something_is_demanded(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.aks.is_empty() || self.dangerous_any_ak || self.variant == Variant::AzureSevSnp,
            "--ak must name the node's attestation key, or anybody could answer in its place"
        );
        anyhow::ensure!(
            self.measurements.is_some() || self.dangerous_any_measurements,
            "--measurements must say what the node may have booted: a key alone does not"
        );
        Ok(())
    }

    /// The keys that the flags name.
    pub(super) fn pinned(&self) -> Option<BTreeSet<Fingerprint>> {
        (!self.aks.is_empty()).then(|| self.aks.iter().copied().collect())
    }

    /// What vouches for keys that nobody named.
    pub(super) fn hardware(&self) -> anyhow::Result<Arc<dyn AkTrust>> {
        if self.variant != Variant::AzureSevSnp {
            return Ok(Arc::new(AnyAk));
        }
        let policy = Policy::of_guests(&self.snp_id_keys, &self.snp_measurements);
        let policy = policy
            .context("--snp-id-key or --snp-measurement must say which guests are accepted")?;
        Ok(Arc::new(AzureSnpAk::new(Arc::new(SystemClock), policy)))
    }

    fn keys(&self) -> anyhow::Result<Arc<dyn AkTrust>> {
        if self.dangerous_any_ak {
            tracing::warn!("any attestation key is taken for the node's");
        }
        let mut all = vec![self.hardware()?];
        if let Some(pinned) = self.pinned() {
            all.push(Arc::new(PinnedAks::new(pinned)));
        }
        Ok(Arc::new(EveryTrust::new(all)))
    }

    /// The registers that the node must have. `cluster` is what the one of the cluster must hold.
    pub(super) fn measurements(
        &self,
        cluster: Option<Sha256Digest>,
    ) -> anyhow::Result<Measurements> {
        if self.dangerous_any_measurements {
            tracing::warn!("the node is taken whatever it booted");
        }
        let read = match &self.measurements {
            Some(path) => node::measurements(path)?,
            None => Measurements::default(),
        };
        Ok(match cluster {
            Some(expected) => {
                let severity = Severity::Enforce;
                let expectation = Expectation { expected, severity };
                read.with(PcrIndex::CLUSTER, expectation)
            }
            None => read,
        })
    }

    /// An end that talks to such a node only.
    pub(super) fn endpoint(&self, cluster: Option<Sha256Digest>) -> anyhow::Result<Endpoint> {
        self.ensure_something_is_demanded()?;
        self.judging(self.keys()?, self.measurements(cluster)?)
    }

    pub(super) fn judging(
        &self,
        keys: Arc<dyn AkTrust>,
        measurements: Measurements,
    ) -> anyhow::Result<Endpoint> {
        let live = Arc::new(LiveMeasurements::new(measurements));
        let validator = VtpmValidator::new(self.variant, keys, live);
        Ok(node::endpoint()
            .with_validator(Arc::new(validator))
            .build()?)
    }
}

/// Where the cluster's keys are. Files, as the arguments of a process are no secret.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// File with the URI of the key service, `kms://…`.
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
    /// File with the URI of the storage of wrapped keys, `storage://…`; none without it.
    #[arg(long, value_name = "FILE")]
    storage_uri_file: Option<PathBuf>,
}

/// Both URIs as texts, which were parsed.
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MasterFile {
    key: String,
    salt: String,
}

impl KeyArgs {
    /// Reads and parses them.
    pub(super) fn read(&self) -> anyhow::Result<Uris> {
        const WHY: &str = "send it to a node that proved itself";
        let kms = match (&self.kms_uri_file, &self.master_secret) {
            (Some(path), _) => {
                let text = secret_line(path)?;
                let uri = std::str::from_utf8(text.expose(WHY)).context("it is no text")?;
                KmsUri::parse(uri).with_context(|| format!("take {}", path.display()))?
            }
            (None, Some(path)) => KmsUri::Cluster(master_secret(path)?),
            (None, None) => anyhow::bail!("--kms-uri-file or --master-secret says where keys are"),
        };
        let storage = match &self.storage_uri_file {
            Some(path) => {
                let text = secret_line(path)?;
                let uri = std::str::from_utf8(text.expose(WHY)).context("it is no text")?;
                StorageUri::parse(uri).with_context(|| format!("take {}", path.display()))?
            }
            None => StorageUri::NoStore,
        };
        Ok(Uris {
            kms: kms.to_secret_text(WHY),
            storage: storage.to_secret_text(WHY),
        })
    }
}

/// Content of a file without the white space around it.
pub(super) fn secret_line(path: &Path) -> anyhow::Result<SecretBytes> {
    let bytes = SecretBytes::new(input::read(path, MAX_SECRET)?);
    let line = bytes.expose("leave white space away").trim_ascii().to_vec();
    anyhow::ensure!(!line.is_empty(), "{} is empty", path.display());
    Ok(SecretBytes::new(line))
}

fn master_secret(path: &Path) -> anyhow::Result<MasterSecret> {
    let shown = path.display();
    let json = SecretBytes::new(input::read(path, MAX_SECRET)?);
    // The position says nothing about the content, and the cause might.
    let file: MasterFile = serde_json::from_slice(json.expose("parse it"))
        .map_err(|_| anyhow::anyhow!("{shown} is no JSON with key and salt"))?;
    let part = |name: &str, text: &str, least: usize| {
        let bytes = STANDARD.decode(text).map(SecretBytes::new);
        let bytes = bytes.map_err(|_| anyhow::anyhow!("{name} in {shown} is no base64"))?;
        anyhow::ensure!(
            bytes.len() >= least,
            "{name} in {shown} has less than {least} bytes"
        );
        Ok(bytes)
    };
    let key = part("key", &file.key, MIN_KEY)?;
    Ok(MasterSecret::new(key, part("salt", &file.salt, MIN_SALT)?))
}

/// Makes the file of a master secret if it is not there. Whether it did.
pub(super) fn make_master_secret(path: &Path) -> anyhow::Result<bool> {
    match std::fs::metadata(path) {
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    }
    let random = || {
        let mut bytes = vec![0; 32];
        SystemEntropy.fill(&mut bytes);
        STANDARD.encode(SecretBytes::new(bytes).expose("write the new master secret"))
    };
    let file = MasterFile {
        key: random(),
        salt: random(),
    };
    let json = SecretBytes::new(serde_json::to_vec(&file)?);
    let written = write_private(path, json.expose("the admin keeps it"));
    written.with_context(|| format!("write {}", path.display()))?;
    Ok(true)
}

/// `host:port` of a host that may lack a port.
pub(super) fn address(given: &str, port: u16) -> String {
    if let Ok(ip) = given.parse::<IpAddr>() {
        return SocketAddr::new(ip, port).to_string();
    }
    if given.contains(':') {
        return given.to_owned();
    }
    format!("{given}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_added_where_there_is_none() {
        for (given, expected) in [
            ("node-1", "node-1:9000"),
            ("node-1:1", "node-1:1"),
            ("10.0.0.1", "10.0.0.1:9000"),
            ("fd00::1", "[fd00::1]:9000"),
            ("[fd00::1]:1", "[fd00::1]:1"),
        ] {
            assert_eq!(address(given, 9000), expected);
        }
    }

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
