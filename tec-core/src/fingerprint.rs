//! Fingerprints of public keys.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::text::{debug_form, text_form};

/// SHA-256 of a public key's DER form, 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

/// The string is not a fingerprint.
#[derive(Debug, thiserror::Error)]
#[error("a fingerprint must have 64 hexadecimal digits")]
#[non_exhaustive]
pub struct ParseFingerprintError;

impl Fingerprint {
    /// Fingerprint of a key in DER form.
    pub(crate) fn of(der: &[u8]) -> Self {
        Self(Sha256::digest(der).into())
    }

    /// Wraps these 32 bytes.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ParseFingerprintError)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

debug_form!(Fingerprint);

text_form!(Fingerprint);
