//! The volume that is shared with the service.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use sha2::Digest as _;
use sha2::Sha256;
use tec_core::secret::SecretBytes;
use tec_core::service::tls::renew_after;
use tec_core::time::Timestamp;
use tec_k8s::service::client::TlsMaterial;
use tec_support::files::write_private;

/// Says that everything was written; holds the digest of it.
const COMPLETE: &str = ".complete";
/// The password of a user of OpenSearch.
const PASSWORD: &str = "password";
/// The same as a collector sends it.
pub const LOGIN: &str = "login";
/// How often a password is looked at: nobody tells when it was replaced.
const LOOK: Duration = Duration::from_mins(5);

/// Files by their path below the directory, all of mode 0600.
#[derive(Default)]
pub struct Output {
    files: BTreeMap<String, Vec<u8>>,
    /// Those that can be renewed while the service runs.
    renewable: BTreeSet<String>,
    ends: Option<Timestamp>,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

impl Output {
    /// Adds a file.
    pub fn file(&mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), content.into());
    }

    /// Adds certificate, key and authorities below `dir`.
    pub fn tls(&mut self, dir: &str, tls: TlsMaterial) {
        let files = [
            ("tls.crt", tls.certificate_chain.into_bytes()),
            ("tls.key", tls.private_key),
            ("ca.crt", tls.authorities.into_bytes()),
        ];
        for (name, content) in files {
            self.renewable.insert(format!("{dir}{name}"));
            self.file(format!("{dir}{name}"), content);
        }
        self.ends = Some(Timestamp::from_unix_seconds(tls.not_after));
    }

    /// Adds a password.
    pub fn password(&mut self, password: Vec<u8>) {
        self.renewable.insert(PASSWORD.to_owned());
        self.file(PASSWORD, password);
    }

    /// Adds what a user logs in with, as a header of HTTP has it after the scheme.
    pub fn login(&mut self, credentials: &SecretBytes) {
        self.renewable.insert(LOGIN.to_owned());
        self.file(LOGIN, credentials.expose("its user reads it"));
    }

    /// After how long new files are due.
    pub fn next(&self, now: Timestamp) -> Duration {
        let ends = self.ends.map(|ends| renew_after(ends, now));
        let has_password = self.files.contains_key(PASSWORD);
        let looks = has_password.then_some(LOOK);
        ends.into_iter().chain(looks).min().unwrap_or(LOOK)
    }

    /// Writes certificate, key, authorities and password, and nothing else.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn renew(&self, out: &Path) -> anyhow::Result<()> {
        for (path, content) in &self.files {
            if self.renewable.contains(path) {
                let path = out.join(path);
                write_private(&path, content)
                    .with_context(|| format!("write {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Writes all of it, and the mark at the end. A second run replaces the first.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, out: &Path) -> anyhow::Result<()> {
        let complete = out.join(COMPLETE);
        match fs::remove_file(&complete) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", complete.display()));
            }
            _ => {}
        }
        let mut digest = Sha256::new();
        for (path, content) in &self.files {
            let path = out.join(path);
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
            }
            write_private(&path, content).with_context(|| format!("write {}", path.display()))?;
            digest.update(Sha256::digest(content));
        }
        write_private(&complete, hex::encode(digest.finalize()).as_bytes())
            .with_context(|| format!("write {}", complete.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_mark_is_written_last_and_keys_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let mut output = Output::default();
        output.file("certs/tls.key", "secret");
        output.write(dir.path()).unwrap();
        let key = dir.path().join("certs/tls.key");
        assert_eq!(
            fs::metadata(&key).unwrap().permissions().mode() & 0o777,
            0o600
        );
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
        // A directory lies where a file shall be.
        fs::create_dir(dir.path().join("b")).unwrap();
        output.file("b", "2");
        output.write(dir.path()).unwrap_err();
        assert!(!dir.path().join(COMPLETE).exists());
    }
}
