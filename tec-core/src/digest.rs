//! SHA-256 digests as a type, hexadecimal in JSON.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error as _;
use sha2::Digest as _;
use sha2::Sha256;

/// A SHA-256 digest (32 bytes, 64 lowercase hexadecimal digits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// The digest a PCR of the SHA-256 bank starts with.
    pub const ZERO: Self = Self([0; 32]);

    /// Wraps the bytes of a digest.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Hashes `data`.
    pub fn of(data: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(data.as_ref()).into())
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What a PCR with this value holds after an extend by `event`: SHA-256(old ‖ event)
    /// (TPM 2.0 Library Part 1, "PCR Operations", `TPM2_PCR_Extend`).
    #[must_use]
    pub fn extended(&self, event: &Self) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(event.0);
        Self(hasher.finalize().into())
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256Digest({self})")
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("a SHA-256 digest has 64 hexadecimal digits, this text of {length} characters does not")]
#[non_exhaustive]
pub struct ParseDigestError {
    /// Length of the text that was given.
    pub length: usize,
}

impl FromStr for Sha256Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)
            .map_err(|_| ParseDigestError { length: text.len() })?;
        Ok(Self(bytes))
    }
}

impl Serialize for Sha256Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}
