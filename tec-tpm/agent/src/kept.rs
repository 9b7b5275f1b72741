//! The disk key that an initramfs keeps for the system that it starts.
//!
//! Servers release disk keys while the initramfs runs. What the running system does with a key (opening further
//! disks, new CAs, other servers, recovery keys) takes the one that was kept in memory, after a server has attested
//! the system and said that only its phase is wrong.
//!
//! ```text
//! initramfs        server ─► key ─► /run, mode 0600 ─ the root has the key's mark? ─┬─ yes: stays
//! first boot       server ─► key ─► mark ─► the root                                └─ no: removed
//! a rotation       the kept key's mark ─► server ─► the new key
//! running system   server ─► TEC-A424 ─► the kept key, if it is the one that the server names
//! ```
//! Everything on a disk but what its key encrypts may be an attacker's: the header, the token, and a root beside it.
//! Only a root that somebody with the key wrote to has its mark. One without it, as after a first boot, starts without
//! the key, and not beside a disk that the key opened.

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use linux_keyutils::{KeyRing, KeyRingIdentifier};
use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;
use tec_core::id::ResourcePath;
use tec_core::rotation::KeyMark;
use tec_core::secret::{SecretArray, SecretBytes};
use tec_trustee::clevis::SealedPassphrase;
use tec_trustee::rotation::Kept;

use crate::disk::stack::Blocks;
use crate::disk::{Cryptsetup, DiskError, Header as _};
use crate::failure::Failure;
use crate::settings::Settings;
use crate::tpm::NodeTpm;

/// Keeps a key in this file, after a line with its path.
///
/// # Security
/// For file systems in memory, and until [`leave_initramfs`] only.
pub(crate) fn keep(file: &Path, path: &ResourcePath, key: &SecretBytes) -> io::Result<()> {
    let directory = file.parent().unwrap_or_else(|| Path::new("/"));
    // A request that was under way at the end of the initramfs.
    if directory.join(ENDED).exists() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    replace(file, path, key)
}

/// Records that a passphrase is given out in this initramfs, with the key that unsealed it.
///
/// # Errors
/// Also if the initramfs has ended: then nobody would look at what is opened, nor remove the key.
pub(crate) fn opened(file: &Path, key: &SecretArray<32>) -> io::Result<()> {
    if file.with_file_name(ENDED).exists() {
        return Err(io::Error::other("the initramfs has ended"));
    }
    let mut options = OpenOptions::new();
    let mut opened =
        options.append(true).create(true).mode(0o600).open(file.with_file_name(OPENED))?;
    opened.write_all(key.expose("find the disks that it opens"))
}

/// The keys that unsealed passphrases in this initramfs.
fn openers(file: &Path) -> io::Result<Vec<SecretArray<32>>> {
    let bytes = match fs::read(file.with_file_name(OPENED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => SecretBytes::new(bytes?),
    };
    let keys = bytes.expose("find the disks that they open").chunks_exact(32);
    Ok(keys.filter_map(|key| key.try_into().ok()).map(SecretArray::new).collect())
}

/// Keeps a key instead of one that was replaced.
pub(crate) fn replace(file: &Path, path: &ResourcePath, key: &SecretBytes) -> io::Result<()> {
    let key = key.expose("the running system needs it");
    write(file, &[path.as_str().as_bytes(), b"\n", key])
}

fn write(file: &Path, content: &[&[u8]]) -> io::Result<()> {
    let written = file.with_extension("new");
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&written)?;
    for part in content {
        opened.write_all(part)?;
    }
    opened.sync_all()?;
    fs::rename(written, file)
}

/// The key that is kept for this path.
pub(crate) fn kept(file: &Path, path: &ResourcePath) -> Option<SecretBytes> {
    let content = SecretBytes::new(fs::read(file).ok()?);
    let key = content.expose("find the key").strip_prefix(path.as_str().as_bytes())?;
    Some(SecretBytes::new(key.strip_prefix(b"\n")?.to_vec()))
}

/// Beside the key: nothing is kept any more.
const ENDED: &str = "ended";
/// Beside the key, the keys of all disks that may be open because a passphrase was given out. A disk that is bound in
/// this boot has nothing to protect yet, and its root may be elsewhere.
const OPENED: &str = "opened";
/// Domain of the mark of a root; the resource follows.
const MARK: &[u8] = b"tec root mark v1\0";

/// What a root file system has that somebody with this key has marked.
fn mark_of(key: &SecretBytes) -> String {
    let mut hasher = Sha256::new();
    hasher.update(MARK);
    hasher.update(key.expose("mark the root"));
    format!("{}\n", Sha256Digest::new(hasher.finalize().into()))
}

/// Marks the root file system of the running system as one that may have this key, unless its directory is missing.
pub(crate) fn mark(file: &Path, key: &SecretBytes) -> io::Result<()> {
    let mark = mark_of(key);
    let has_place = file.parent().is_some_and(Path::is_dir);
    if !has_place || fs::read(file).is_ok_and(|known| known == mark.as_bytes()) {
        return Ok(());
    }
    write(file, &[mark.as_bytes()])
}

/// The kept key, unless the root that is started has its mark.
fn not_for(file: &Path, mark: &Path) -> io::Result<Option<SecretBytes>> {
    let content = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        content => SecretBytes::new(content?),
    };
    let text = content.expose("compare the mark of the root");
    let key = text.iter().position(|byte| *byte == b'\n').and_then(|end| text.get(end + 1..));
    let is_whole = key.is_some();
    let key = SecretBytes::new(key.unwrap_or_default().to_vec());
    Ok((!is_whole || !is_file_with(mark, &mark_of(&key))).then_some(key))
}

/// Removes the kept key.
fn remove(file: &Path) -> io::Result<()> {
    gone(fs::remove_file(file))
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Whether the mark is in the root's own file system, and not in one that is mounted in it or that a link leads to.
fn is_within(root: &Path, mark: &Path) -> bool {
    let device =
        |path: &Path| fs::symlink_metadata(path).map(|found| (found.dev(), found.is_symlink()));
    let Ok((of_root, _)) = device(root) else { return false };
    let between = mark.ancestors().skip(1).take_while(|path| *path != root);
    between.chain([mark]).all(|path| device(path).is_ok_and(|found| found == (of_root, false)))
}

/// Whether a file of a root that nobody has measured has this content: no link, device or endless file is read.
fn is_file_with(file: &Path, content: &str) -> bool {
    let is_like = |found: fs::Metadata| found.is_file() && found.len() == content.len() as u64;
    fs::symlink_metadata(file).is_ok_and(is_like)
        && fs::read(file).is_ok_and(|found| found == content.as_bytes())
}

/// Begins the initramfs: measures it, so that servers know a machine whose initramfs asks.
pub fn enter_initramfs(settings: &Settings) -> Result<(), Failure> {
    NodeTpm::open(settings)?.measure_phase(b"enter-initrd")
}

/// Ends the initramfs: measures its end, unless systemd does, and removes the kept key unless this root file system
/// has its mark.
///
/// # Errors
/// `Beside`, `Io`, `Tpm`: nothing of the root may run.
pub fn leave_initramfs(settings: &Settings, root: &Path, is_measured: bool) -> Result<(), Failure> {
    let failed = || Failure::io("remove the kept disk key");
    if let Some(directory) = settings.kept_key.parent().filter(|directory| directory.is_dir()) {
        fs::write(directory.join(ENDED), "").map_err(failed())?;
    }
    remove(&settings.kept_key.with_extension("new")).map_err(failed())?;
    let mark = settings.root_mark.strip_prefix("/").unwrap_or(&settings.root_mark);
    let mark = root.join(mark);
    let taken = not_for(&settings.kept_key, &mark).map_err(failed())?;
    // Whoever wrote the mark had the key, but a planted root may have mounted what has it.
    let is_known = taken.is_none() && settings.kept_key.exists() && is_within(root, &mark);
    if !is_known {
        let keys = openers(&settings.kept_key).map_err(failed())?;
        refuse_beside(root, &keys)?;
    }
    if !is_measured {
        NodeTpm::open(settings)?.measure_phase(b"leave-initrd")?;
    }
    if taken.is_some() {
        forget_passphrases();
        remove(&settings.kept_key).map_err(failed())?;
    }
    remove(&settings.kept_key.with_file_name(OPENED)).map_err(failed())
}

/// Fails if something of the root lies beside the disks that these keys opened.
fn refuse_beside(root: &Path, keys: &[SecretArray<32>]) -> Result<(), Failure> {
    if keys.is_empty() {
        return Ok(());
    }
    let failed = || Failure::io("find out where the root lies");
    let blocks = Blocks::default();
    let devices = blocks.devices().map_err(failed())?;
    let passphrases = unsealed(&devices, keys)?;
    let opens = |device: &Path| Cryptsetup::new(device).opens_with(&passphrases);
    match blocks.beside(root, &opens).map_err(failed())? {
        Some(mount) => Err(Failure::Beside(mount)),
        None => Ok(()),
    }
}

/// What these keys unseal on any disk: one disk's token may have answered for another disk.
fn unsealed(devices: &[PathBuf], keys: &[SecretArray<32>]) -> Result<Vec<SecretBytes>, DiskError> {
    let mut passphrases = Vec::new();
    for device in devices {
        let tokens = match Cryptsetup::new(device).tokens() {
            Err(DiskError::Failed { .. }) => continue,
            tokens => tokens?,
        };
        for token in tokens {
            let sealed = SealedPassphrase::parse(&token.sealed).ok();
            let open = |key| sealed.as_ref().and_then(|sealed| sealed.open(key).ok());
            passphrases.extend(keys.iter().filter_map(open));
        }
    }
    Ok(passphrases)
}

/// systemd keeps passphrases of disks in the keyring of root for some minutes, also the one that Clevis answered with
/// (systemd-ask-password(1), `--keyname`).
fn forget_passphrases() {
    let forgotten =
        KeyRing::from_special_id(KeyRingIdentifier::User, false).and_then(|ring| ring.clear());
    if let Err(error) = forgotten {
        // A kernel without keyrings keeps nothing.
        tracing::info!(%error, "the keyring of root cannot be cleared");
    }
}

/// Whether a server releases this key, as it says.
pub(crate) fn is_current(names: &Kept, key: &SecretBytes) -> bool {
    *names.current() == KeyMark::of(key).name()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tec_core::id::MachineId;

    use super::*;

    fn hand_over(file: &Path, mark: &Path) -> io::Result<()> {
        if not_for(file, mark)?.is_some() { remove(file) } else { Ok(()) }
    }

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
        let key = |bytes: &[u8]| SecretBytes::new(bytes.to_vec());
        let marked = dir.path().join("etc/mark");
        mark(&marked, &key(b"second")).unwrap();
        assert!(!marked.exists(), "it has no place for it");
        hand_over(&file, &marked).unwrap();
        assert!(!file.exists(), "no root that is known");
        hand_over(&file, &marked).unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        keep(&file, &path, &key(b"second")).unwrap();
        mark(&marked, &key(b"first\nkey")).unwrap();
        hand_over(&file, &marked).unwrap();
        assert!(!file.exists(), "a root of another key");
        keep(&file, &path, &key(b"second")).unwrap();
        mark(&marked, &key(b"second")).unwrap();
        hand_over(&file, &marked).unwrap();
        assert!(file.exists());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&marked, &link).unwrap();
        hand_over(&file, &link).unwrap();
        assert!(!file.exists(), "a link");
        fs::write(dir.path().join("run").join(ENDED), "").unwrap();
        keep(&file, &path, &key(b"second")).unwrap();
        assert!(!file.exists(), "too late");
        let opener = SecretArray::new([7; 32]);
        opened(&file, &opener).unwrap_err();
        assert!(openers(&file).unwrap().is_empty(), "too late");
        fs::remove_file(dir.path().join("run").join(ENDED)).unwrap();
        opened(&file, &opener).unwrap();
        opened(&file, &SecretArray::new([8; 32])).unwrap();
        let keys = openers(&file).unwrap();
        let bytes: Vec<_> = keys.iter().map(|key| *key.expose("test")).collect();
        assert_eq!(bytes, [[7; 32], [8; 32]]);
        keep(&file, &path, &key(b"second")).unwrap();
        let names = |key: &[u8]| Kept::Settled {
            current: KeyMark::of(&SecretBytes::new(key.to_vec())).name(),
        };
        let key = kept(&file, &path).unwrap();
        assert!(is_current(&names(b"second"), &key) && !is_current(&names(b"first\nkey"), &key));
    }
}
