//! SHA-256 digests as a type, hexadecimal in JSON.

use std::fmt;
use std::str::FromStr;

use sha2::block_api::compress256;
use sha2::{Digest as _, Sha256};

use crate::text::{debug_form, text_form};

/// A SHA-256 digest (32 bytes, 64 lowercase hexadecimal digits).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// The initial value of a PCR in the SHA-256 bank.
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

    /// Value of a PCR with this value after it is extended by `event`: SHA-256(old ‖ event) (TPM
    /// 2.0 Library Part 1, "PCR Operations", `TPM2_PCR_Extend`).
    #[must_use]
    pub fn extended(&self, event: &Self) -> Self {
        // The message is always one block, followed by the same padding. Logs and fleets fold
        // thousands of these, and the overhead of a general hasher around the two blocks is
        // significant.
        let mut message = [0; 64];
        let (old, new) = message.split_at_mut(self.0.len());
        old.copy_from_slice(&self.0);
        new.copy_from_slice(&event.0);
        let mut state = INITIAL;
        compress256(&mut state, &[message, PADDING]);
        let mut bytes = [0; 32];
        for (to, word) in bytes.chunks_exact_mut(4).zip(state) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        Self(bytes)
    }
}

/// Initial hash value of SHA-256 (FIPS 180-4, 5.3.3).
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
/// Padding of a 64-byte message: a one bit, zeros, and the length of 512 bits as a big-endian
/// number (FIPS 180-4, 5.1.1).
const PADDING: [u8; 64] = {
    let mut padding = [0; 64];
    padding[0] = 0x80;
    padding[62] = 2;
    padding
};

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

debug_form!(Sha256Digest);

/// The string is not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("a SHA-256 digest must have 64 hexadecimal digits; this text has {length} characters")]
#[non_exhaustive]
pub struct ParseDigestError {
    /// Length of the given string.
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

text_form!(Sha256Digest);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extend_is_the_hash_of_the_old_value_and_the_event() {
        let mut value = Sha256Digest::ZERO;
        for number in 0..100_u8 {
            let event = Sha256Digest::of([number]);
            let plain = Sha256::new().chain_update(value.0).chain_update(event.0);
            value = value.extended(&event);
            assert_eq!(value.0, <[u8; 32]>::from(plain.finalize()));
        }
    }
}
