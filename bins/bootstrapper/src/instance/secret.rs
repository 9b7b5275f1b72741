//! The secret that admits a caller of Init. The node gets only its hash.

use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;
use tec_core::secret::SecretBytes;
use tec_node::rpc::SecretCheck;
use tokio::sync::Semaphore;

/// Prefixes of bcrypt hashes; the letter distinguishes versions that give the same result for these secrets.
const BCRYPT: [&str; 3] = ["$2a$", "$2b$", "$2y$"];
/// Highest cost, as a power of two: with more, each guess of a stranger would take half a minute.
const MAX_COST: u32 = 14;
/// Maximum length of a secret; bcrypt reads no more than 72 bytes.
const MAX_SECRET: usize = 72;

/// `sha256:<64 hex>` over a secret of 32 random bytes, since a secret that cannot be guessed needs no slow
/// hash; or a bcrypt hash, as on the older implementation's platforms.
#[derive(Debug)]
pub struct InitSecretHash {
    hash: Hash,
    trying: Arc<Semaphore>,
}

#[derive(Clone, Debug)]
enum Hash {
    Sha256(Sha256Digest),
    Bcrypt(String),
}

/// The text is not such a hash.
#[derive(Debug, thiserror::Error)]
#[error(
    "the hash of the init secret is neither sha256:<64 hexadecimal digits> nor a bcrypt hash with \
     a cost of at most {MAX_COST}"
)]
#[non_exhaustive]
pub struct ParseInitSecretHashError;

impl FromStr for InitSecretHash {
    type Err = ParseInitSecretHashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hash = match text.strip_prefix("sha256:") {
            Some(digits) => digits.parse().ok().map(Hash::Sha256),
            None => bcrypt_hash(text).map(Hash::Bcrypt),
        };
        Ok(Self {
            hash: hash.ok_or(ParseInitSecretHashError)?,
            // Anyone may ask, and bcrypt occupies a processor.
            trying: Arc::new(Semaphore::new(1)),
        })
    }
}

fn bcrypt_hash(text: &str) -> Option<String> {
    let parts: bcrypt::HashParts = text.parse().ok()?;
    let is_known = BCRYPT.iter().any(|prefix| text.starts_with(prefix));
    (is_known && parts.get_cost() <= MAX_COST).then(|| text.to_owned())
}

impl Hash {
    fn admits(&self, secret: &[u8]) -> bool {
        match self {
            Self::Sha256(digest) => {
                let found = SecretBytes::new(Sha256::digest(secret).to_vec());
                found.ct_eq(&SecretBytes::new(digest.as_bytes().to_vec()))
            }
            Self::Bcrypt(hash) => bcrypt::verify(secret, hash).unwrap_or(false),
        }
    }
}

#[async_trait]
impl SecretCheck for InitSecretHash {
    async fn admits(&self, secret: &SecretBytes) -> bool {
        if secret.is_empty() || secret.len() > MAX_SECRET {
            return false;
        }
        let secret = SecretBytes::new(secret.expose("hash it").to_vec());
        let hash = self.hash.clone();
        let Ok(permit) = Arc::clone(&self.trying).acquire_owned().await else {
            return false;
        };
        let admits = move || {
            // Until the processor is free again, even if the caller disconnected.
            let _permit = permit;
            hash.admits(secret.expose("hash it"))
        };
        let tried = tokio::task::spawn_blocking(admits).await;
        tried.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn admits(hash: &str, secret: &str) -> bool {
        let hash: InitSecretHash = hash.parse().unwrap();
        hash.admits(&SecretBytes::new(secret.into())).await
    }

    #[tokio::test]
    async fn the_secret_of_either_hash_is_admitted_and_no_other() {
        let quick = format!("sha256:{}", Sha256Digest::of("secret"));
        let slow = bcrypt::hash_with_salt("secret", 4, [1; 16]).unwrap();
        let versions = [bcrypt::Version::TwoA, bcrypt::Version::TwoB];
        let slow = versions.map(|version| slow.format_for_version(version));
        for hash in slow.iter().chain([&quick]) {
            assert!(admits(hash, "secret").await, "{hash}");
            for other in ["", "Secret", "secret "] {
                assert!(!admits(hash, other).await, "{hash}");
            }
            assert!(!admits(hash, &"s".repeat(73)).await);
        }
    }

    #[test]
    fn what_is_no_hash_or_too_slow_is_refused() {
        let slow = bcrypt::hash_with_salt("secret", 4, [1; 16]).unwrap();
        let slow = slow.to_string();
        let costly = slow.replacen("$04$", "$15$", 1);
        for text in ["", "sha256:", "sha256:00", "$2a$10$", "$1$", &costly, "secret"] {
            assert!(text.parse::<InitSecretHash>().is_err(), "{text}");
        }
    }
}
