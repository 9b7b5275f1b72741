//! Secrets at rest: AES-256-GCM under a key that is stored next to the database.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
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

/// Seals and unseals.
///
/// # Security
/// Nonces are 96 bits of SHA-256 over a seed that is drawn at each start, and a counter: random in
/// the sense of NIST SP 800-38D, section 8.2.2. Its bound of 2^32 sealings per key is far beyond
/// any registry of machines.
#[derive(Debug)]
pub(super) struct Seal {
    key: SecretArray<KEY>,
    nonce_seed: SecretArray<32>,
    nonces: AtomicU64,
}

impl Seal {
    /// Reads the seal key and checks that it belongs to the database; creates both on the first
    /// start.
    ///
    /// The transaction keeps other processes out. A crash between writing the key file and the check value
    /// leaves a key without a check value, which the next start uses.
    pub(super) fn load(
        dir: &Path,
        db: &mut Connection,
        entropy: &dyn Entropy,
    ) -> Result<Self, StoreError> {
        let failed = |source| StoreError::sqlite("check the seal key", source);
        let transaction =
            db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let check: Option<Vec<u8>> = transaction
            .query_row("SELECT sealed FROM seal_check", (), |row| row.get(0))
            .optional()
            .map_err(failed)?;
        let key = match (read_key(dir)?, &check) {
            (Some(key), _) => key,
            (None, None) => create_key(dir, entropy)?,
            (None, Some(_)) => {
                let what = format!("{} is gone", dir.join(access::SEAL_KEY).display());
                return Err(StoreError::Seal { what });
            }
        };
        let seal = Self::new(key, entropy);
        if let Some(sealed) = check {
            seal.check(&sealed)?;
        } else {
            let sealed = seal.seal(CHECK_LABEL, CHECK_TEXT)?;
            transaction
                .execute("INSERT INTO seal_check VALUES (1, ?1)", (sealed,))
                .map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        Ok(seal)
    }

    fn new(key: SecretArray<KEY>, entropy: &dyn Entropy) -> Self {
        Self {
            key,
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

    /// Seals a secret for its path: `nonce ‖ ciphertext ‖ tag`.
    pub(super) fn seal_secret(
        &self,
        path: &ResourcePath,
        secret: &SecretBytes,
    ) -> Result<Vec<u8>, StoreError> {
        self.seal(&secret_data(path), secret.expose("seal it for the store"))
    }

    /// Unseals the secret of a path.
    pub(super) fn unseal_secret(
        &self,
        path: &ResourcePath,
        sealed: &[u8],
    ) -> Result<SecretBytes, StoreError> {
        self.unseal(&secret_data(path), sealed)
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
fn secret_data(path: &ResourcePath) -> Vec<u8> {
    [SECRET_LABEL, path.as_str().as_bytes()].concat()
}

fn misfit(what: &str) -> StoreError {
    StoreError::Seal { what: what.to_owned() }
}

fn read_key(dir: &Path) -> Result<Option<SecretArray<KEY>>, StoreError> {
    let path = dir.join(access::SEAL_KEY);
    let bytes = match fs::read(&path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::file("read", &path, error)),
    };
    let mut key = Zeroizing::new([0; KEY]);
    if bytes.len() != KEY {
        let what = format!("{} has {} bytes, not {KEY}", path.display(), bytes.len());
        return Err(StoreError::Seal { what });
    }
    key.copy_from_slice(&bytes);
    Ok(Some(SecretArray::new(*key)))
}

/// Generates the key and makes it durable: writes a temporary file, syncs it, renames it, and syncs the
/// directory.
fn create_key(dir: &Path, entropy: &dyn Entropy) -> Result<SecretArray<KEY>, StoreError> {
    let mut key = Zeroizing::new([0; KEY]);
    entropy.fill(key.as_mut_slice());
    let (path, aside) = (dir.join(access::SEAL_KEY), dir.join(access::SEAL_KEY_NEW));
    let write = || {
        let mut options = OpenOptions::new();
        // A temporary file left by a crash was never used.
        options.write(true).create(true).truncate(true).mode(access::FILE_MODE);
        let mut file = options.open(&aside)?;
        file.write_all(key.as_slice())?;
        file.sync_all()?;
        fs::rename(&aside, &path)
    };
    write().map_err(|error| StoreError::file("write", &path, error))?;
    access::sync_directory(dir)?;
    Ok(SecretArray::new(*key))
}
