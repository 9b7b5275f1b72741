//! The PCR banks that logs are replayed in.

use std::fmt;

use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// A bank of PCRs, named by its hash algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Bank {
    /// SHA-1; only ever replayed, never trusted.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Bank {
    /// All banks.
    pub const ALL: [Self; 4] = [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    /// `TPM_ALG_ID` of the algorithm (TCG Algorithm Registry, "TPM_ALG_ID").
    pub const fn algorithm_id(self) -> u16 {
        match self {
            Self::Sha1 => 0x0004,
            Self::Sha256 => 0x000b,
            Self::Sha384 => 0x000c,
            Self::Sha512 => 0x000d,
        }
    }

    /// The bank of a `TPM_ALG_ID`, if it is one that can be replayed.
    pub fn from_algorithm_id(id: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|bank| bank.algorithm_id() == id)
    }

    /// Bytes of a digest.
    pub const fn digest_size(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of some bytes.
    pub(crate) fn hash(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(data).to_vec(),
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    /// Name as `tpm2_pcrread` prints it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }
}

impl fmt::Display for Bank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
