//! What stands for a key in confirmations.

use sha2::{Digest as _, Sha256};

use crate::digest::Sha256Digest;
use crate::secret::SecretBytes;

/// Domain of the digest; the resource follows.
const LABEL: &[u8] = b"tec disk key mark v1\0";

/// Identifies a disk key without revealing it: a digest of 192 or 256 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMark(Sha256Digest);

impl KeyMark {
    /// The mark of the key that a server releases as `resource`.
    pub fn of(resource: &SecretBytes) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(LABEL);
        hasher.update(resource.expose("mark it"));
        Self(Sha256Digest::new(hasher.finalize().into()))
    }

    /// A mark as it was sent.
    pub fn from_digest(digest: Sha256Digest) -> Self {
        Self(digest)
    }

    /// The mark as it is sent.
    pub fn digest(&self) -> &Sha256Digest {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_digest_of_label_and_key() {
        // printf 'tec disk key mark v1\0key' | sha256sum
        let mark = KeyMark::of(&SecretBytes::new(b"key".to_vec()));
        assert_eq!(mark.digest().to_string(), VECTOR);
    }

    const VECTOR: &str = "16cf570b24407e6e00423aa23d51303219a5d4a9835749b613def5c35b6a2513";
}
