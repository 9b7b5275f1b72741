//! The volume that is shared with the service.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_services::shell::client::TlsMaterial;
use tec_services::tls::renew_after;
use tec_support::files::{write_private, write_public};

/// Marks that all files were written; holds their digest.
const COMPLETE: &str = ".complete";
/// The password of an OpenSearch user.
const PASSWORD: &str = "password";
/// The same password as a collector sends it.
pub const LOGIN: &str = "login";
/// Polling interval for passwords: their replacement is not announced.
const LOOK: Duration = Duration::from_mins(5);

/// Files by their path below the directory: certificates with mode 0644, all others with 0600.
#[derive(Default, derive_more::Debug)]
#[debug("{:?}", files.keys().collect::<BTreeSet<_>>())]
pub struct Output {
    files: BTreeMap<String, Vec<u8>>,
    /// Files that can be renewed while the service runs.
    renewable: BTreeSet<String>,
    /// Files that anyone may read: a runtime has its own user.
    public: BTreeSet<String>,
    ends: Option<Timestamp>,
}

impl Output {
    /// Adds a file.
    pub fn file(&mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), content.into());
    }

    /// Adds a file that anyone may read.
    pub fn public(&mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) {
        let path = path.into();
        self.public.insert(path.clone());
        self.file(path, content);
    }

    /// Adds certificate, key and authorities below `dir`.
    pub fn tls(&mut self, dir: &str, tls: TlsMaterial) {
        self.certificate(dir, tls.certificate_chain, tls.authorities);
        let key = format!("{dir}tls.key");
        self.renewable.insert(key.clone());
        self.file(key, tls.private_key);
        self.ends = Some(Timestamp::from_unix_seconds(tls.not_after));
    }

    /// Adds certificate and authorities below `dir`, without a key.
    pub fn certificate(&mut self, dir: &str, chain: String, authorities: String) {
        for (name, content) in [("tls.crt", chain), ("ca.crt", authorities)] {
            let path = format!("{dir}{name}");
            self.renewable.insert(path.clone());
            self.public(path, content);
        }
    }

    /// Adds a password.
    pub fn password(&mut self, password: Vec<u8>) {
        self.renewable.insert(PASSWORD.to_owned());
        self.file(PASSWORD, password);
    }

    /// Adds a user's credentials, as in an HTTP header after the scheme.
    pub fn login(&mut self, credentials: &SecretBytes) {
        self.renewable.insert(LOGIN.to_owned());
        self.file(LOGIN, credentials.expose("its user reads it"));
    }

    /// How long until new files are due.
    pub fn next(&self, now: Timestamp) -> Duration {
        let ends = self.ends.map(|ends| renew_after(ends, now));
        let has_password = self.files.contains_key(PASSWORD);
        let looks = has_password.then_some(LOOK);
        ends.into_iter().chain(looks).min().unwrap_or(LOOK)
    }

    /// Writes the certificate, key, authorities and password, and nothing else.
    pub fn renew(&self, out: &Path) -> anyhow::Result<()> {
        for (path, content) in &self.files {
            if self.renewable.contains(path) {
                self.put(out, path, content)?;
            }
        }
        Ok(())
    }

    fn put(&self, out: &Path, path: &str, content: &[u8]) -> anyhow::Result<()> {
        let file = out.join(path);
        let written = if self.public.contains(path) {
            write_public(&file, content)
        } else {
            write_private(&file, content)
        };
        written.with_context(|| format!("cannot write {}", file.display()))
    }

    /// Writes everything, and the mark at the end. A second run replaces the files of the first.
    pub fn write(&self, out: &Path) -> anyhow::Result<()> {
        let complete = out.join(COMPLETE);
        match fs::remove_file(&complete) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", complete.display()));
            }
            _ => {}
        }
        let mut digest = Sha256::new();
        for (path, content) in &self.files {
            if let Some(dir) = out.join(path).parent() {
                make(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            }
            self.put(out, path, content)?;
            digest.update(Sha256::digest(content));
        }
        write_private(&complete, hex::encode(digest.finalize()).as_bytes())
            .with_context(|| format!("cannot write {}", complete.display()))
    }
}

/// Creates a directory that the group of the volume may read; an existing one is left unchanged.
fn make(dir: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn certificates_can_be_read_by_others_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut output = Output::default();
        output.tls("certs/", TlsMaterial::default());
        output.file("nats.conf", "text");
        output.write(dir.path()).unwrap();
        output.renew(dir.path()).unwrap();
        let mode = |name| {
            let found = fs::metadata(dir.path().join(name)).unwrap();
            found.permissions().mode() & 0o777
        };
        assert_eq!(mode("certs"), 0o750);
        assert_eq!((mode("certs/tls.crt"), mode("certs/ca.crt")), (0o644, 0o644));
        assert_eq!((mode("certs/tls.key"), mode("nats.conf")), (0o600, 0o600));
    }

    #[test]
    fn the_mark_is_written_last_and_keys_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let mut output = Output::default();
        output.file("certs/tls.key", "secret");
        output.write(dir.path()).unwrap();
        let key = dir.path().join("certs/tls.key");
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let first = fs::read(dir.path().join(COMPLETE)).unwrap();
        output.file("nats.conf", "other");
        output.write(dir.path()).unwrap();
        assert_ne!(fs::read(dir.path().join(COMPLETE)).unwrap(), first);
    }

    #[test]
    fn a_run_that_fails_leaves_no_mark() {
        let dir = tempfile::tempdir().unwrap();
        let mut output = Output::default();
        output.file("a", "1");
        output.write(dir.path()).unwrap();
        // A directory is in the place of a file.
        fs::create_dir(dir.path().join("b")).unwrap();
        output.file("b", "2");
        output.write(dir.path()).unwrap_err();
        assert!(!dir.path().join(COMPLETE).exists());
    }
}
