//! Fields of a report that are sets of bits.

use std::fmt;

use crate::bit_set::bit_set;

/// What a guest's owner allowed and required at launch (SEV-SNP Firmware ABI Specification, "Guest
/// Policy").
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct GuestPolicy(u64);

impl GuestPolicy {
    /// Simultaneous multithreading is allowed.
    pub const SMT: Self = Self(1 << 16);
    /// A migration agent may be associated.
    pub const MIGRATE_MA: Self = Self(1 << 18);
    /// The host may read and write the guest's memory.
    pub const DEBUG: Self = Self(1 << 19);
    /// The guest must run on one socket.
    pub const SINGLE_SOCKET: Self = Self(1 << 20);
    /// Compute Express Link devices are allowed.
    pub const CXL: Self = Self(1 << 21);
    /// Memory must be encrypted with AES 256 XTS.
    pub const MEM_AES_256_XTS: Self = Self(1 << 22);
    /// The running average power limit must be off.
    pub const RAPL_DISABLED: Self = Self(1 << 23);
    /// Ciphertext must be hidden in memory.
    pub const CIPHERTEXT_HIDING: Self = Self(1 << 24);
    /// Pages must not be swapped by the host.
    pub const PAGE_SWAP_DISABLED: Self = Self(1 << 25);

    /// Bit 17, which is reserved and must be one.
    pub(crate) const ALWAYS: Self = Self(1 << 17);
    /// Bits 63 to 26, which are reserved and must be zero.
    const NEVER: u64 = !((1 << 26) - 1);

    const NAMES: [(Self, &'static str); 9] = [
        (Self::SMT, "simultaneous multithreading"),
        (Self::MIGRATE_MA, "a migration agent"),
        (Self::DEBUG, "debugging"),
        (Self::SINGLE_SOCKET, "a single socket"),
        (Self::CXL, "CXL"),
        (Self::MEM_AES_256_XTS, "AES 256 XTS"),
        (Self::RAPL_DISABLED, "no power limit"),
        (Self::CIPHERTEXT_HIDING, "hidden ciphertext"),
        (Self::PAGE_SWAP_DISABLED, "no page swap"),
    ];

    /// Minimum minor version of the firmware's interface.
    pub const fn abi_minor(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Minimum major version of the firmware's interface.
    pub const fn abi_major(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    /// Names of what is set in both.
    pub(super) fn names_common(self, other: Self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |(one, _)| self.contains(*one) && other.contains(*one))
            .map(|(_, name)| name)
    }

    /// Names of what is set here and not in `other`.
    pub(super) fn names_missing_in(self, other: Self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |(one, _)| self.contains(*one) && !other.contains(*one))
            .map(|(_, name)| name)
    }

    /// Index of a byte in which a reserved bit is not as required.
    pub(super) fn reserved(self) -> Option<usize> {
        let wrong = (self.0 & Self::NEVER) | (!self.0 & Self::ALWAYS.0);
        wrong.to_le_bytes().iter().position(|byte| *byte != 0)
    }
}

bit_set!(GuestPolicy(u64));

/// What is enabled on the platform (SEV-SNP Firmware ABI Specification, "PLATFORM_INFO").
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PlatformInfo(u64);

impl PlatformInfo {
    /// Simultaneous multithreading.
    pub const SMT: Self = Self(1);
    /// Transparent encryption of all memory.
    pub const TSME: Self = Self(1 << 1);
}

bit_set!(PlatformInfo(u64));

/// Which key signs reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SigningKey {
    /// The chip's own versioned key.
    Vcek,
    /// A cloud provider's versioned key.
    Vlek,
    /// No key, or an unknown one.
    Other(u8),
}

impl fmt::Display for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcek => f.write_str("VCEK"),
            Self::Vlek => f.write_str("VLEK"),
            Self::Other(number) => write!(f, "number {number}"),
        }
    }
}

/// How reports are signed (SEV-SNP Firmware ABI Specification, "ATTESTATION_REPORT", offset 48h).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct KeyInfo(u32);

impl KeyInfo {
    /// Bits 31 to 5.
    const RESERVED: u32 = !0x1f;

    /// From the bits of a report.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Which key signed.
    pub const fn signing_key(self) -> SigningKey {
        match self.0 >> 2 & 7 {
            0 => SigningKey::Vcek,
            1 => SigningKey::Vlek,
            other => SigningKey::Other(other.to_le_bytes()[0]),
        }
    }

    /// Whether the firmware hides the chip's key, and signs nothing.
    pub const fn masks_chip_key(self) -> bool {
        self.0 & 2 != 0
    }

    /// Index of a byte in which a reserved bit is set.
    pub(super) fn reserved(self) -> Option<usize> {
        let wrong = self.0 & Self::RESERVED;
        wrong.to_le_bytes().iter().position(|byte| *byte != 0)
    }
}

impl fmt::Debug for KeyInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyInfo({:#x})", self.0)
    }
}
