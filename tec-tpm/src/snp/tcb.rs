//! Versions of what runs below a guest.

use std::fmt;

use super::Product;

/// Security version numbers of the trusted computing base (SEV-SNP Firmware ABI Specification,
/// "TCB_VERSION"). Greater is newer; each part counts separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tcb {
    /// Firmware management controller; Turin only, else 0.
    pub fmc: u8,
    /// Boot loader of the secure processor.
    pub bootloader: u8,
    /// Operating system of the secure processor.
    pub tee: u8,
    /// SNP firmware.
    pub snp: u8,
    /// Lowest microcode patch level of all cores.
    pub microcode: u8,
}

/// One part of a [`Tcb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TcbPart {
    /// [`Tcb::fmc`].
    Fmc,
    /// [`Tcb::bootloader`].
    Bootloader,
    /// [`Tcb::tee`].
    Tee,
    /// [`Tcb::snp`].
    Snp,
    /// [`Tcb::microcode`].
    Microcode,
}

impl TcbPart {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Fmc, Self::Bootloader, Self::Tee, Self::Snp, Self::Microcode];

    fn as_str(self) -> &'static str {
        match self {
            Self::Fmc => "fmc",
            Self::Bootloader => "bootloader",
            Self::Tee => "tee",
            Self::Snp => "snp",
            Self::Microcode => "microcode",
        }
    }
}

impl fmt::Display for TcbPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Tcb {
    /// The version of one part.
    pub fn part(&self, part: TcbPart) -> u8 {
        match part {
            TcbPart::Fmc => self.fmc,
            TcbPart::Bootloader => self.bootloader,
            TcbPart::Tee => self.tee,
            TcbPart::Snp => self.snp,
            TcbPart::Microcode => self.microcode,
        }
    }

    /// The parts in which this is greater than `other`.
    pub(super) fn parts_above(&self, other: &Self) -> impl Iterator<Item = TcbPart> {
        TcbPart::ALL.into_iter().filter(move |part| self.part(*part) > other.part(*part))
    }

    /// Splits the eight bytes of a report, and says which reserved byte is not zero. Turin's layout
    /// differs from those before it.
    pub(super) fn split(bytes: [u8; 8], product: Option<Product>) -> (Self, Option<usize>) {
        let (tcb, reserved) = if product == Some(Product::Turin) {
            let [fmc, bootloader, tee, snp, a, b, c, microcode] = bytes;
            let tcb = Self { fmc, bootloader, tee, snp, microcode };
            (tcb, [0, 0, 0, 0, a, b, c, 0])
        } else {
            let [bootloader, tee, a, b, c, d, snp, microcode] = bytes;
            let tcb = Self { fmc: 0, bootloader, tee, snp, microcode };
            (tcb, [0, 0, a, b, c, d, 0, 0])
        };
        (tcb, reserved.iter().position(|byte| *byte != 0))
    }
}

impl fmt::Display for Tcb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, part) in TcbPart::ALL.into_iter().enumerate() {
            let separator = if place == 0 { "" } else { " " };
            write!(f, "{separator}{part}={}", self.part(part))?;
        }
        Ok(())
    }
}

/// One of the four versions that a report states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TcbField {
    /// The TCB that runs now.
    Current,
    /// The TCB from which the platform derives its key, and which it shows to guests.
    Reported,
    /// The TCB below which the platform cannot be rolled back.
    Committed,
    /// The TCB that ran when the guest was launched.
    Launch,
}

impl fmt::Display for TcbField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Current => "current",
            Self::Reported => "reported",
            Self::Committed => "committed",
            Self::Launch => "launch",
        })
    }
}
