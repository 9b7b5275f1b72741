//! What stands for a key in confirmations.
//!
//! ```text
//! key ── SHA-256 ──► mark: proves, in a confirmation, that its sender has the key
//!                     └── SHA-256 ──► name: what a server tells anyone who asks on behalf of the machine
//! ```

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::digest::Sha256Digest;
use crate::secret::SecretBytes;

/// Domain of the mark; the resource follows.
const LABEL: &[u8] = b"tec disk key mark v1\0";
/// Domain of the name; the mark follows.
const NAME_LABEL: &[u8] = b"tec disk key name v1\0";

/// Identifies a disk key without revealing it: a digest of 192 or 256 random bits.
///
/// # Security
/// Only who has the key knows its mark. A machine shows its attestation token to others, who could otherwise
/// confirm in its name what is not true, so that the server forgets a key that the disk needs. A mark is
/// therefore never logged, and a server answers with [names](Self::name).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyMark(Sha256Digest);

impl fmt::Debug for KeyMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyMark").field(&self.name()).finish()
    }
}

impl KeyMark {
    /// The mark of the key that a server releases as `resource`.
    pub fn of(resource: &SecretBytes) -> Self {
        Self(digest(LABEL, resource.expose("mark it")))
    }

    /// Names the key; it proves nothing.
    pub fn name(&self) -> Sha256Digest {
        digest(NAME_LABEL, self.0.as_bytes())
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

fn digest(label: &[u8], content: &[u8]) -> Sha256Digest {
    let mut hasher = Sha256::new();
    hasher.update(label);
    hasher.update(content);
    Sha256Digest::new(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_the_digest_of_label_and_key_and_is_never_printed() {
        // printf 'tec disk key mark v1\0key' | sha256sum
        let mark = KeyMark::of(&SecretBytes::new(b"key".to_vec()));
        assert_eq!(mark.digest().to_string(), VECTOR);
        // (printf 'tec disk key name v1\0'; xxd -r -p <<< VECTOR) | sha256sum
        assert_eq!(mark.name().to_string(), NAME_VECTOR);
        assert!(!format!("{mark:?}").contains(VECTOR));
    }

    const VECTOR: &str = "16cf570b24407e6e00423aa23d51303219a5d4a9835749b613def5c35b6a2513";
    const NAME_VECTOR: &str = "80367aa4561c14738a5790382b6d609977aaf801b428c56d644dd2d5a8d10b7b";
}
