//! Digests in several banks at once: the bytes are read once, regardless of the number of banks.

use std::{fmt, io};

use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tec_core::digest::Sha256Digest;

use crate::event_log::{Bank, extended};

/// Which banks are computed. SHA-256 is always one of them.
///
/// # Security
/// SHA-1 is only for comparison with logs; values of that bank must not be approved.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Banks(u8);

impl Banks {
    /// SHA-256 only, as in reference values.
    pub const SHA256: Self = Self(bit(Bank::Sha256));
    /// All four.
    pub const ALL: Self =
        Self(bit(Bank::Sha1) | bit(Bank::Sha256) | bit(Bank::Sha384) | bit(Bank::Sha512));

    /// Adds a bank.
    pub const fn with(self, bank: Bank) -> Self {
        Self(self.0 | bit(bank))
    }

    /// Whether `bank` is computed.
    pub const fn contains(self, bank: Bank) -> bool {
        self.0 & bit(bank) != 0
    }

    /// The banks, SHA-1 first.
    pub fn iter(self) -> impl Iterator<Item = Bank> {
        Bank::ALL.into_iter().filter(move |bank| self.contains(*bank))
    }
}

impl Default for Banks {
    fn default() -> Self {
        Self::SHA256
    }
}

impl fmt::Debug for Banks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

const fn bit(bank: Bank) -> u8 {
    match bank {
        Bank::Sha1 => 1,
        Bank::Sha256 => 2,
        Bank::Sha384 => 4,
        Bank::Sha512 => 8,
    }
}

/// Digests of the same bytes, or values of the same register, in several banks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BankDigests {
    sha1: Option<[u8; 20]>,
    sha256: Sha256Digest,
    sha384: Option<[u8; 48]>,
    sha512: Option<[u8; 64]>,
}

impl BankDigests {
    /// Hashes `data`.
    pub fn of(banks: Banks, data: impl AsRef<[u8]>) -> Self {
        let mut hasher = MultiHasher::new(banks);
        hasher.update(data.as_ref());
        hasher.finish()
    }

    /// A digest that is known only in the SHA-256 bank.
    pub const fn from_sha256(digest: Sha256Digest) -> Self {
        Self { sha1: None, sha256: digest, sha384: None, sha512: None }
    }

    /// What registers hold before the first measurement.
    pub const fn zero(banks: Banks) -> Self {
        Self {
            sha1: if banks.contains(Bank::Sha1) { Some([0; 20]) } else { None },
            sha256: Sha256Digest::ZERO,
            sha384: if banks.contains(Bank::Sha384) { Some([0; 48]) } else { None },
            sha512: if banks.contains(Bank::Sha512) { Some([0; 64]) } else { None },
        }
    }

    /// Without those that shim does not compare.
    pub(super) const fn as_shim_has_them(self) -> Self {
        Self { sha384: None, sha512: None, ..self }
    }

    /// The SHA-256 digest.
    pub const fn sha256(&self) -> Sha256Digest {
        self.sha256
    }

    /// The digest of one bank, if it was computed.
    pub fn get(&self, bank: Bank) -> Option<&[u8]> {
        match bank {
            Bank::Sha1 => self.sha1.as_ref().map(<[u8; 20]>::as_slice),
            Bank::Sha256 => Some(self.sha256.as_bytes().as_slice()),
            Bank::Sha384 => self.sha384.as_ref().map(<[u8; 48]>::as_slice),
            Bank::Sha512 => self.sha512.as_ref().map(<[u8; 64]>::as_slice),
        }
    }

    /// What a register with these values holds after an extend by `event`, in the banks that both
    /// have (TPM 2.0 Library Part 1, "PCR Operations", `TPM2_PCR_Extend`).
    #[must_use]
    pub fn extended(&self, event: &Self) -> Self {
        Self {
            sha1: self.sha1.zip(event.sha1).map(|(a, b)| extended::<Sha1, _>(&a, &b)),
            sha256: self.sha256.extended(&event.sha256),
            sha384: self.sha384.zip(event.sha384).map(|(a, b)| extended::<Sha384, _>(&a, &b)),
            sha512: self.sha512.zip(event.sha512).map(|(a, b)| extended::<Sha512, _>(&a, &b)),
        }
    }
}

impl fmt::Debug for BankDigests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Bank::ALL.into_iter().filter_map(|b| Some((b, self.get(b)?)));
        f.debug_map().entries(known.map(|(bank, digest)| (bank, hex::encode(digest)))).finish()
    }
}

/// Hashes a stream in several banks.
#[derive(Clone, Debug)]
pub(super) struct MultiHasher {
    sha1: Option<Sha1>,
    sha256: Sha256,
    sha384: Option<Sha384>,
    sha512: Option<Sha512>,
}

impl MultiHasher {
    pub(super) fn new(banks: Banks) -> Self {
        Self {
            sha1: banks.contains(Bank::Sha1).then(Sha1::new),
            sha256: Sha256::new(),
            sha384: banks.contains(Bank::Sha384).then(Sha384::new),
            sha512: banks.contains(Bank::Sha512).then(Sha512::new),
        }
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        self.sha256.update(data);
        self.sha1.iter_mut().for_each(|hasher| hasher.update(data));
        self.sha384.iter_mut().for_each(|hasher| hasher.update(data));
        self.sha512.iter_mut().for_each(|hasher| hasher.update(data));
    }

    pub(super) fn finish(self) -> BankDigests {
        BankDigests {
            sha1: self.sha1.map(|hasher| hasher.finalize().into()),
            sha256: Sha256Digest::new(self.sha256.finalize().into()),
            sha384: self.sha384.map(|hasher| hasher.finalize().into()),
            sha512: self.sha512.map(|hasher| hasher.finalize().into()),
        }
    }
}

impl io::Write for MultiHasher {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.update(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pass_gives_the_digest_of_every_bank() {
        let digests = BankDigests::of(Banks::ALL, b"abc");
        let of = |bank| hex::encode(digests.get(bank).unwrap());
        // FIPS 180-4, examples for the message "abc".
        assert_eq!(of(Bank::Sha1), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(of(Bank::Sha256).starts_with("ba7816bf8f01cfea"));
        assert!(of(Bank::Sha384).starts_with("cb00753f45a35e8b"));
        assert!(of(Bank::Sha512).starts_with("ddaf35a193617aba"));
        assert_eq!(digests.sha256(), Sha256Digest::of("abc"));
    }

    #[test]
    fn a_bank_that_was_not_asked_for_is_not_there() {
        let banks = Banks::SHA256.with(Bank::Sha384);
        let digests = BankDigests::of(banks, b"x");
        assert_eq!(banks.iter().collect::<Vec<_>>(), [Bank::Sha256, Bank::Sha384]);
        assert!(digests.get(Bank::Sha1).is_none() && digests.get(Bank::Sha384).is_some());
        let value = BankDigests::zero(Banks::ALL).extended(&digests);
        assert!(value.get(Bank::Sha512).is_none());
        assert_eq!(value.sha256(), Sha256Digest::ZERO.extended(&Sha256Digest::of("x")));
    }
}
