//! The secret that admits a caller of Init. The node is given its hash only.

use std::str::FromStr;

use sha2::Digest as _;
use sha2::Sha256;
use tec_core::digest::Sha256Digest;
use tec_core::secret::SecretBytes;
use tec_k8s::rpc::SecretCheck;

/// `sha256:<64 hex>` over a secret of 32 random bytes: one that cannot be guessed needs no slow
/// hash.
#[derive(Debug)]
pub struct InitSecretHash(SecretBytes);

/// The text is no such hash.
#[derive(Debug, thiserror::Error)]
#[error("the hash of the init secret is not sha256:<64 hexadecimal digits>")]
#[non_exhaustive]
pub struct ParseInitSecretHashError;

impl FromStr for InitSecretHash {
    type Err = ParseInitSecretHashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:");
        let digest: Option<Sha256Digest> = digits.and_then(|digits| digits.parse().ok());
        let digest = digest.ok_or(ParseInitSecretHashError)?;
        Ok(Self(SecretBytes::new(digest.as_bytes().to_vec())))
    }
}

impl SecretCheck for InitSecretHash {
    fn admits(&self, secret: &SecretBytes) -> bool {
        let hash = Sha256::digest(secret.expose("hash it"));
        SecretBytes::new(hash.to_vec()).ct_eq(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_the_hash_is_admitted_and_no_other() {
        let hash = format!("sha256:{}", Sha256Digest::of("secret"));
        let hash: InitSecretHash = hash.parse().unwrap();
        assert!(hash.admits(&SecretBytes::new(b"secret".to_vec())));
        for other in ["", "Secret", "secret "] {
            assert!(!hash.admits(&SecretBytes::new(other.into())));
        }
        for text in ["", "sha256:", "sha256:00", "$2a$10$"] {
            assert!(text.parse::<InitSecretHash>().is_err());
        }
    }
}
