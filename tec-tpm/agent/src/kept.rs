//! The disk key that an initramfs keeps for the system that it starts.
//!
//! Servers release disk keys while the initramfs runs. What the running system does with a key (opening further
//! disks, new CAs, other servers, recovery keys) takes the one that was kept in memory, after a server has attested
//! the system and said that only its phase is wrong.
//!
//! ```text
//! initramfs        server ─► key ─► /run, mode 0600
//! running system   server ─► TEC-A424 ─► the kept key, if it is the one that the server names
//! ```

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use tec_core::id::ResourcePath;
use tec_core::rotation::KeyMark;
use tec_core::secret::SecretBytes;
use tec_trustee::rotation::Kept;

/// Keeps a key in this file, after a line with its path.
///
/// # Security
/// For file systems in memory. Whoever is root could read the key of an open disk anyway.
pub(crate) fn keep(file: &Path, path: &ResourcePath, key: &SecretBytes) -> io::Result<()> {
    let directory = file.parent().unwrap_or_else(|| Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let written = file.with_extension("new");
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&written)?;
    opened.write_all(path.as_str().as_bytes())?;
    opened.write_all(b"\n")?;
    opened.write_all(key.expose("the running system needs it"))?;
    fs::rename(written, file)
}

/// The key that is kept for this path.
pub(crate) fn kept(file: &Path, path: &ResourcePath) -> Option<SecretBytes> {
    let content = SecretBytes::new(fs::read(file).ok()?);
    let key = content.expose("find the key").strip_prefix(path.as_str().as_bytes())?;
    Some(SecretBytes::new(key.strip_prefix(b"\n")?.to_vec()))
}

/// Whether a server releases this key, as it says.
pub(crate) fn is_current(names: &Kept, key: &SecretBytes) -> bool {
    let (Kept::Settled { current }
    | Kept::Pending { current, .. }
    | Kept::Promoted { current, .. }) = names;
    *current == KeyMark::of(key).name()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tec_core::id::MachineId;

    use super::*;

    #[test]
    fn a_kept_key_is_private_and_of_one_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run/key");
        let id: MachineId = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse().unwrap();
        let path = ResourcePath::luks_root(&id);
        assert!(kept(&file, &path).is_none());
        for key in [&b"first\nkey"[..], b"second"] {
            keep(&file, &path, &SecretBytes::new(key.to_vec())).unwrap();
            assert_eq!(kept(&file, &path).unwrap().expose("test"), key);
            assert!(kept(&file, &ResourcePath::luks_pending(&id)).is_none());
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let names = |key: &[u8]| Kept::Settled {
            current: KeyMark::of(&SecretBytes::new(key.to_vec())).name(),
        };
        let key = kept(&file, &path).unwrap();
        assert!(is_current(&names(b"second"), &key) && !is_current(&names(b"first\nkey"), &key));
    }
}
