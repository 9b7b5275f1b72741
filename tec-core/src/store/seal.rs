//! Secrets at rest: AES-256-GCM under a key that is stored next to the database.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _, Nonce};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::access;
use super::error::StoreError;
use crate::id::ResourcePath;
use crate::port::{Entropy, EntropyRng};
use crate::secret::{SecretArray, SecretBytes};

/// Domain of the additional data of a sealed secret; the path follows.
const SECRET_LABEL: &[u8] = b"tec store secret v1\0";
/// Additional data of the check value.
const CHECK_LABEL: &[u8] = b"tec store check v1\0";
/// Plaintext of the check value.
const CHECK_TEXT: &[u8] = b"this seal key fits";
/// Domain of the derivation of nonces; seed and counter follow.
const NONCE_LABEL: &[u8] = b"tec store nonce v1\0";
/// Size of a GCM nonce in bytes (NIST SP 800-38D, section 5.2.1.1).
const NONCE: usize = 12;
const KEY: usize = 32;
/// Number of the seal key of a new store.
const FIRST: i64 = 1;

/// A sealed secret: `nonce ‖ ciphertext ‖ tag`, and the number of the seal key.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) bytes: Vec<u8>,
    pub(super) number: i64,
}

/// Seals and unseals.
///
/// # Security
/// Nonces are 96 bits of SHA-256 over a seed that is drawn at each start, and a counter: random in
/// the sense of NIST SP 800-38D, section 8.2.2. Its bound of 2^32 sealings per key is far beyond
/// any registry of machines.
#[derive(Debug)]
pub(super) struct Seal {
    key: SecretArray<KEY>,
    /// Counts the seal keys of a store, from [`FIRST`].
    number: i64,
    nonce_seed: SecretArray<32>,
    nonces: AtomicU64,
}

impl Seal {
    /// Reads the seal key and checks that it belongs to the database; creates both on the first
    /// start.
    ///
    /// The transaction keeps other processes out. A crash between writing the key file and the check value
    /// leaves a key without a check value, which the next start uses. A crash between the commit of a new key
    /// and renaming its file leaves both files: the next start renames it.
    pub(super) fn load(
        dir: &Path,
        db: &mut Connection,
        entropy: &dyn Entropy,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::sqlite("check the seal key", source);
        let transaction =
            db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let check = transaction
            .query_row("SELECT sealed, number FROM seal_check", (), |row| {
                Ok(Sealed { bytes: row.get(0)?, number: row.get(1)? })
            })
            .optional()
            .map_err(failed)?;
        let Some(check) = check else {
            let key = match read_key(&dir.join(access::SEAL_KEY))? {
                Some(key) => key,
                None => create_key(dir, entropy)?,
            };
            let seal = Self::new(key, FIRST, entropy);
            seal.write_check(&transaction)?;
            transaction.commit().map_err(failed)?;
            return Ok(seal);
        };
        let wrong = match Self::of_file(&dir.join(access::SEAL_KEY), &check, entropy) {
            Ok(seal) => return Ok(seal),
            Err(wrong) => wrong,
        };
        let Ok(seal) = Self::of_file(&dir.join(access::SEAL_KEY_NEW), &check, entropy) else {
            return Err(wrong);
        };
        // The process that crashed may not have synced its commit. This one syncs the log with both, before
        // the old key is gone.
        seal.write_check(&transaction)?;
        transaction.commit().map_err(failed)?;
        put_in_place(dir)?;
        Ok(seal)
    }

    /// The key of a file, if it belongs to the database.
    fn of_file(path: &Path, check: &Sealed, entropy: &dyn Entropy) -> Result<Self, StoreError> {
        let key = read_key(path)?.ok_or_else(|| misfit(format!("{} is gone", path.display())))?;
        let seal = Self::new(key, check.number, entropy);
        seal.check(&check.bytes).map_err(|_| {
            misfit(format!(
                "{} did not seal this database (restore the file that did; a copy from before `tec key reseal` \
                 belongs to a database from before it)",
                path.display()
            ))
        })?;
        Ok(seal)
    }

    /// A new key, which is durable in a file of its own. Nothing is sealed with it yet.
    pub(super) fn successor(&self, dir: &Path, entropy: &dyn Entropy) -> Result<Self, StoreError> {
        Ok(Self::new(stage_key(dir, entropy)?, self.number.saturating_add(1), entropy))
    }

    /// Stores the value that verifies this key at startup.
    pub(super) fn write_check(&self, db: &Connection) -> Result<(), StoreError> {
        let sealed = self.seal(CHECK_LABEL, CHECK_TEXT)?;
        db.execute("REPLACE INTO seal_check VALUES (1, ?1, ?2)", (sealed, self.number))
            .map_err(|source| StoreError::sqlite("store the check value", source))?;
        Ok(())
    }

    /// Fails if the key was replaced since it was loaded.
    pub(super) fn is_current(&self, db: &Connection) -> Result<(), StoreError> {
        let number: i64 = db.query_row("SELECT number FROM seal_check", (), |row| row.get(0))?;
        if number == self.number { Ok(()) } else { Err(replaced()) }
    }

    fn new(key: SecretArray<KEY>, number: i64, entropy: &dyn Entropy) -> Self {
        Self {
            key,
            number,
            nonce_seed: SecretArray::random(&mut EntropyRng::new(entropy)),
            nonces: AtomicU64::new(0),
        }
    }

    fn check(&self, sealed: &[u8]) -> Result<(), StoreError> {
        let text = self.unseal(CHECK_LABEL, sealed)?;
        if text.expose("compare the check value") == CHECK_TEXT {
            Ok(())
        } else {
            Err(misfit("the check value is another one"))
        }
    }

    /// Seals a secret for its path.
    pub(super) fn seal_secret(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
    ) -> Result<Sealed, StoreError> {
        self.seal_text(path.as_str(), secret)
    }

    /// Unseals the secret of a path.
    pub(super) fn unseal_secret(
        &self,
        path: &ResourcePath,
        sealed: &Sealed,
    ) -> Result<SecretBytes, StoreError> {
        self.unseal_text(path.as_str(), sealed)
    }

    /// Seals the secret of a path with another key.
    pub(super) fn reseal(
        &self,
        path: &str,
        sealed: &Sealed,
        new: &Self,
    ) -> Result<Sealed, StoreError> {
        let secret = self.unseal_text(path, sealed).map_err(|_| {
            misfit(format!("the record at {path} does not open, and nothing was changed"))
        })?;
        new.seal_text(path, &secret)
    }

    fn seal_text(&self, path: &str, secret: &SecretBytes) -> Result<Sealed, StoreError> {
        let bytes = self.seal(&secret_data(path), secret.expose("seal it for the store"))?;
        Ok(Sealed { bytes, number: self.number })
    }

    fn unseal_text(&self, path: &str, sealed: &Sealed) -> Result<SecretBytes, StoreError> {
        if sealed.number != self.number {
            return Err(replaced());
        }
        self.unseal(&secret_data(path), &sealed.bytes)
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new(self.key.expose("seal or unseal").into())
    }

    fn next_nonce(&self) -> [u8; NONCE] {
        let number = self.nonces.fetch_add(1, Ordering::Relaxed);
        let mut hasher = Sha256::new();
        hasher.update(NONCE_LABEL);
        hasher.update(self.nonce_seed.expose("derive a nonce"));
        hasher.update(number.to_be_bytes());
        let digest: [u8; 32] = hasher.finalize().into();
        let mut nonce = [0; NONCE];
        nonce.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        nonce
    }

    fn seal(&self, aad: &[u8], msg: &[u8]) -> Result<Vec<u8>, StoreError> {
        let nonce = self.next_nonce();
        let ciphertext = self
            .cipher()
            .encrypt(&Nonce::from(nonce), Payload { msg, aad })
            .map_err(|_| misfit("the secret is too long to be sealed"))?;
        let mut sealed = nonce.to_vec();
        sealed.extend(ciphertext);
        Ok(sealed)
    }

    fn unseal(&self, aad: &[u8], sealed: &[u8]) -> Result<SecretBytes, StoreError> {
        let (nonce, msg) = sealed
            .split_first_chunk::<NONCE>()
            .ok_or_else(|| misfit("a sealed record is truncated"))?;
        self.cipher()
            .decrypt(&Nonce::from(*nonce), Payload { msg, aad })
            .map(SecretBytes::new)
            .map_err(|_| misfit("a sealed record does not open"))
    }
}

/// One path, one domain: a record moved to another path does not open.
fn secret_data(path: &str) -> Vec<u8> {
    [SECRET_LABEL, path.as_bytes()].concat()
}

/// The store has another seal key than this program.
pub(super) fn replaced() -> StoreError {
    misfit("it was replaced after this program opened the store (start the program again)")
}

fn misfit(what: impl Into<String>) -> StoreError {
    StoreError::Seal(what.into())
}

fn read_key(path: &Path) -> Result<Option<SecretArray<KEY>>, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::file("read", path, error)),
    };
    let mut key = Zeroizing::new([0; KEY]);
    if bytes.len() != KEY {
        return Err(misfit(format!("{} has {} bytes, not {KEY}", path.display(), bytes.len())));
    }
    key.copy_from_slice(&bytes);
    Ok(Some(SecretArray::new(*key)))
}

fn create_key(dir: &Path, entropy: &dyn Entropy) -> Result<SecretArray<KEY>, StoreError> {
    let key = stage_key(dir, entropy)?;
    put_in_place(dir)?;
    Ok(key)
}

/// Generates a key and makes it durable in a temporary file.
fn stage_key(dir: &Path, entropy: &dyn Entropy) -> Result<SecretArray<KEY>, StoreError> {
    let mut key = Zeroizing::new([0; KEY]);
    entropy.fill(key.as_mut_slice());
    let path = dir.join(access::SEAL_KEY_NEW);
    let write = || {
        let mut options = OpenOptions::new();
        // Nothing was sealed with a temporary file that a crash left: the key in use was found elsewhere.
        options.write(true).create(true).truncate(true).mode(access::FILE_MODE);
        let mut file = options.open(&path)?;
        file.write_all(key.as_slice())?;
        file.sync_all()
    };
    write().map_err(|error| StoreError::file("write", &path, error))?;
    access::sync_directory(dir)?;
    Ok(SecretArray::new(*key))
}

/// Makes the key in the temporary file the key of the store.
pub(super) fn put_in_place(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(access::SEAL_KEY);
    let old = OpenOptions::new().write(true).open(&path).ok();
    fs::rename(dir.join(access::SEAL_KEY_NEW), &path)
        .map_err(|error| StoreError::file("replace", &path, error))?;
    access::sync_directory(dir)?;
    if let Some(mut old) = old
        && old.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    {
        // The new key is in place whether this succeeds or not, and some file systems keep the old blocks
        // anyway.
        let _ = old.write_all(&[0; KEY]).and_then(|()| old.sync_all());
    }
    Ok(())
}
