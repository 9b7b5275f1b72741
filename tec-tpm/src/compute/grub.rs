//! What GRUB's version means for PCR 4.

use super::platform::SecureBoot;
use super::sbat::{Sbat, SbatError};

/// How a generation of GRUB has the kernel measured into PCR 4.
///
/// | profile | Secure Boot on | Secure Boot off |
/// |---|---|---|
/// | 2.06 (Debian's) | twice: its verifier and its loader both ask shim | not at all |
/// | 2.06 (Fedora, RHEL 9), 2.12 | once | not at all |
/// | 2.14 | once | once: the firmware's `LoadImage` |
///
/// Observed on real boots of Debian 12, 13 and sid, of Fedora's 2.06 with Secure Boot off, and of Fedora's
/// 2.12 with Secure Boot on; the others are as in Red Hat's sources (rhboot/grub2, kern/efi/sb.c: the loader
/// asks nobody). If the user has turned off verification in shim, GRUB behaves as with Secure Boot off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrubProfile {
    /// GRUB 2.06 as Debian ships it.
    V2_06,
    /// GRUB 2.06 as Fedora and RHEL 9 ship it.
    RedHat2_06,
    /// GRUB 2.12.
    V2_12,
    /// GRUB 2.12 as Fedora ships it.
    Fedora2_12,
    /// GRUB 2.12 as RHEL 10 ships it.
    Rhel2_12,
    /// GRUB 2.14.
    V2_14,
}

/// Whether a string passed to the kernel ends with a NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terminator {
    Present,
    Absent,
}

/// GRUB's version is not known, so its measurements cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrubError {
    /// No `.sbat` section: not a GRUB for Secure Boot.
    #[error("there is no .sbat section to identify GRUB")]
    NoSbat,
    /// The section cannot be read.
    #[error("the .sbat section cannot be read")]
    Sbat(#[source] SbatError),
    /// The section has no `grub` entry: another boot loader or a unified kernel image.
    #[error("the .sbat section has no entry grub")]
    NotGrub,
    /// Two `grub` entries have different versions.
    #[error("the .sbat section names GRUB {first} and {second}")]
    Contradiction {
        /// Version in the first entry.
        first: String,
        /// Version in the other entry.
        second: String,
    },
    /// The version, or this vendor's build of it, has not been observed.
    #[error(
        "the measurements of GRUB {version} ({vendor}) are not known; select a profile to override"
    )]
    UnknownVersion {
        /// Version in the `grub` entry.
        version: String,
        /// Vendor entries in the section.
        vendor: String,
    },
}

impl GrubProfile {
    /// Selects the profile of a GRUB by its `.sbat` section.
    pub fn from_sbat(section: Option<&[u8]>) -> Result<Self, GrubError> {
        let sbat = Sbat::parse(section.ok_or(GrubError::NoSbat)?).map_err(GrubError::Sbat)?;
        let version = upstream_version(&sbat)?;
        let is_debian = sbat.component("grub.debian").is_some();
        // Vendors patch GRUB so differently that only the known builds count.
        match (version, is_debian, red_hat(&sbat)) {
            ("2.06", true, _) => Ok(Self::V2_06),
            ("2.06", false, Some(_)) => Ok(Self::RedHat2_06),
            ("2.12", true, _) => Ok(Self::V2_12),
            ("2.12", false, Some(package)) if package.contains(".el") => Ok(Self::Rhel2_12),
            ("2.12", false, Some(_)) => Ok(Self::Fedora2_12),
            ("2.14", true, _) => Ok(Self::V2_14),
            _ => Err(GrubError::UnknownVersion {
                version: version.to_owned(),
                vendor: vendors(&sbat),
            }),
        }
    }

    /// How many times the script is measured into PCR 9: from 2.12 on, and as Red Hat builds it, the check
    /// whether it exists reads it once more.
    pub(super) fn script_measurements(self) -> usize {
        if self == Self::V2_06 { 1 } else { 2 }
    }

    /// Whether the commands of the embedded script are measured too.
    pub(super) fn measures_embedded_script(self) -> bool {
        self == Self::V2_06
    }

    /// Whether it is built as Red Hat builds it: it looks for its script beside itself, and knows `blscfg`.
    pub(super) fn is_red_hat(self) -> bool {
        matches!(self, Self::RedHat2_06 | Self::Fedora2_12 | Self::Rhel2_12)
    }

    /// Whether the kernel is entered by its EFI stub and, if so, whether its command line ends
    /// with a terminator. Debian's 2.06 and those of Red Hat jump past the stub.
    pub(super) fn load_options(self) -> Option<Terminator> {
        match self {
            Self::V2_06 | Self::RedHat2_06 | Self::Fedora2_12 | Self::Rhel2_12 => None,
            Self::V2_12 => Some(Terminator::Absent),
            Self::V2_14 => Some(Terminator::Present),
        }
    }

    /// How many times the kernel is measured into PCR 4.
    pub fn kernel_measurements(self, secure_boot: SecureBoot) -> usize {
        match (self, secure_boot) {
            (Self::V2_06, SecureBoot::On) => 2,
            (_, SecureBoot::On) | (Self::V2_14, SecureBoot::Off) => 1,
            (_, SecureBoot::Off) => 0,
        }
    }
}

/// Version of the package, if Red Hat built it.
fn red_hat(sbat: &Sbat) -> Option<&str> {
    let entry = sbat.component("grub.rh").or_else(|| sbat.component("grub.fedora"));
    entry.map(|entry| entry.version.as_str())
}

fn upstream_version(sbat: &Sbat) -> Result<&str, GrubError> {
    let mut versions = sbat
        .entries()
        .iter()
        .filter(|entry| entry.component == "grub")
        .map(|entry| entry.version.as_str());
    let first = versions.next().ok_or(GrubError::NotGrub)?;
    match versions.find(|version| *version != first) {
        Some(second) => {
            Err(GrubError::Contradiction { first: first.to_owned(), second: second.to_owned() })
        }
        None => Ok(first),
    }
}

fn vendors(sbat: &Sbat) -> String {
    let vendors: Vec<_> =
        sbat.entries().iter().filter_map(|entry| entry.component.strip_prefix("grub.")).collect();
    if vendors.is_empty() { "no vendor".to_owned() } else { vendors.join(", ") }
}
