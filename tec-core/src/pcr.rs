//! Platform configuration registers: indices, sets and quoted values of the SHA-256 bank.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;

/// Number of PCRs of a PC Client TPM (TCG PC Client Platform TPM Profile, "PCR Attributes").
pub const PCR_COUNT: usize = 24;

/// Index of a PCR, 0 to 23.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PcrIndex(u8);

/// The number is not the index of a PCR.
#[derive(Debug, thiserror::Error)]
#[error("PCR {index} does not exist; indices are 0 to 23")]
#[non_exhaustive]
pub struct PcrIndexError {
    /// The given number.
    pub index: u64,
}

impl PcrIndex {
    /// Boot manager code: the images started by the firmware and shim.
    pub const BOOT_MANAGER: Self = Self(4);
    /// Secure Boot policy, and the authorities that verified the boot.
    pub const SECURE_BOOT: Self = Self(7);
    /// GRUB commands and the kernel command line.
    pub const BOOT_COMMANDS: Self = Self(8);
    /// Files that GRUB reads, and what the kernel's EFI stub loads.
    pub const BOOT_FILES: Self = Self(9);
    /// Sections of a unified kernel image.
    pub const KERNEL_BOOT: Self = Self(11);
    /// Command lines and other parameters stored next to a unified kernel image.
    pub const KERNEL_CONFIG: Self = Self(12);
    /// System extensions stored next to a unified kernel image.
    pub const SYSTEM_EXTENSIONS: Self = Self(13);
    /// Machine owner keys, measured by shim.
    pub const MOK: Self = Self(14);
    /// The cluster that the node was bootstrapped into; zero until then.
    pub const CLUSTER: Self = Self(15);

    /// Checks the range.
    pub fn new(index: u8) -> Result<Self, PcrIndexError> {
        Self::try_from(index)
    }

    /// All indices in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..24).map(Self)
    }

    /// The index as a number.
    pub fn as_usize(self) -> usize {
        usize::from(self.0)
    }
}

impl TryFrom<u8> for PcrIndex {
    type Error = PcrIndexError;

    fn try_from(index: u8) -> Result<Self, Self::Error> {
        if usize::from(index) < PCR_COUNT {
            Ok(Self(index))
        } else {
            Err(PcrIndexError { index: index.into() })
        }
    }
}

impl From<PcrIndex> for u8 {
    fn from(index: PcrIndex) -> Self {
        index.0
    }
}

impl fmt::Display for PcrIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of PCR indices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PcrSet(u32);

impl PcrSet {
    /// Whether `index` is in the set.
    pub fn contains(self, index: PcrIndex) -> bool {
        self.0 & (1 << index.0) != 0
    }

    /// The set with `index` added.
    pub fn with(self, index: PcrIndex) -> Self {
        Self(self.0 | (1 << index.0))
    }

    /// The indices in order.
    pub fn iter(self) -> impl Iterator<Item = PcrIndex> {
        PcrIndex::all().filter(move |i| self.contains(*i))
    }

    /// Whether no index is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<PcrIndex> for PcrSet {
    fn from_iter<I: IntoIterator<Item = PcrIndex>>(indices: I) -> Self {
        indices.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Debug for PcrSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(u8::from)).finish()
    }
}

/// Stands for a register that is not predicted.
const NOT_PREDICTED: &[u8] = b"TEC: this register is not predicted";

/// The values of all 24 PCRs of the SHA-256 bank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PcrValues([Sha256Digest; PCR_COUNT]);

impl PcrValues {
    /// Values in index order.
    pub const fn new(values: [Sha256Digest; PCR_COUNT]) -> Self {
        Self(values)
    }

    /// Predicted values. A register without one gets a value that no boot ends with.
    pub fn predicted(value: impl Fn(PcrIndex) -> Option<Sha256Digest>) -> Self {
        let mut values = [Sha256Digest::of(NOT_PREDICTED); PCR_COUNT];
        for (index, slot) in PcrIndex::all().zip(&mut values) {
            *slot = value(index).unwrap_or(*slot);
        }
        Self(values)
    }

    /// Value of one PCR.
    pub fn value(&self, index: PcrIndex) -> &Sha256Digest {
        #[expect(clippy::indexing_slicing, reason = "a PcrIndex is below PCR_COUNT")]
        &self.0[index.as_usize()]
    }

    /// The same values, but for one register.
    pub fn with(mut self, index: PcrIndex, value: Sha256Digest) -> Self {
        if let Some(slot) = self.0.get_mut(index.as_usize()) {
            *slot = value;
        }
        self
    }

    /// Index and value, in index order.
    pub fn iter(&self) -> impl Iterator<Item = (PcrIndex, &Sha256Digest)> {
        PcrIndex::all().zip(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_end_at_23() {
        assert!(PcrIndex::new(23).is_ok());
        assert!(PcrIndex::new(24).is_err());
        assert_eq!(PcrIndex::all().count(), PCR_COUNT);
    }

    #[test]
    fn a_set_keeps_what_was_added() {
        let set: PcrSet = [PcrIndex::MOK, PcrIndex::BOOT_MANAGER].into_iter().collect();
        assert_eq!(set.iter().map(u8::from).collect::<Vec<_>>(), [4, 14]);
        assert!(!set.contains(PcrIndex::SECURE_BOOT));
    }
}
