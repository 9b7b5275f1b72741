//! What systemd-stub measures: the sections of its unified kernel image, the add-ons next to it,
//! and what it passes to the kernel.

use super::load_options::StubOptions;
use super::measurement::Component;
use super::pe::PeFile;
use super::unpredictable::Unpredictable;
use super::{cpio, kernel, load_options};

/// A generation of systemd-stub whose measurements are known. A register on which the generations before and
/// after another version do not agree for an image is not predicted.
///
/// | profile | sections in PCR 11 | add-ons | archives after the initrd | inner kernel in PCR 4 |
/// |---|---|---|---|---|
/// | 252 | without `.uname` and `.sbat` | no | keys of `.pcrpkey` | with Secure Boot off |
/// | 257 | all | yes | the same, and `.osrel` | with Secure Boot off |
/// | 262 | all | yes | the same, and a secret of the machine | never (since 258) |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum StubProfile {
    /// systemd-stub 252.
    V252,
    /// systemd-stub 257.
    V257,
    /// systemd-stub 262.
    V262,
}

/// What the stub of a unified kernel image measures is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StubError {
    /// The file is not an image of systemd-stub.
    #[error(
        "it is {what}, not systemd-stub (if a boot of it is as it should be: tec image approve NAME \
         --from-attempt ID)"
    )]
    Foreign {
        /// What the file is, as far as it says so.
        what: String,
    },
    /// The boot entry selects a profile that the image does not have.
    #[error("this boot would be refused: the image has no profile {0}")]
    NoProfile(u32),
    /// The stub does not support several sections with the same name.
    #[error("systemd-stub 252 may use any of several sections with the same name")]
    Repeated,
    /// A version older than any that was observed, or one for which those around it start different programs.
    #[error(
        "the measurements of {0} are not known (--stub-profile selects those of another version)"
    )]
    UnknownVersion(String),
}

/// A section of a unified kernel image (UAPI group, "Unified Kernel Image", "UKI Components").
pub(super) struct UkiSection {
    pub(super) name: &'static str,
    pub(super) title: Component,
    pub(super) content: Component,
}

/// The sections that are measured, in the order of their measurement.
const MEASURED: [UkiSection; 12] = [
    section(".linux", Component::Pcr11Linux, Component::Pcr11LinuxContent),
    section(".osrel", Component::Pcr11Osrel, Component::Pcr11OsrelContent),
    section(".cmdline", Component::Pcr11Cmdline, Component::Pcr11CmdlineContent),
    section(".initrd", Component::Pcr11Initrd, Component::Pcr11InitrdContent),
    section(".ucode", Component::Pcr11Ucode, Component::Pcr11UcodeContent),
    section(".splash", Component::Pcr11Splash, Component::Pcr11SplashContent),
    section(".dtb", Component::Pcr11Dtb, Component::Pcr11DtbContent),
    section(".uname", Component::Pcr11Uname, Component::Pcr11UnameContent),
    section(".sbat", Component::Pcr11Sbat, Component::Pcr11SbatContent),
    section(".pcrpkey", Component::Pcr11Pcrpkey, Component::Pcr11PcrpkeyContent),
    section(".profile", Component::Pcr11Profile, Component::Pcr11ProfileContent),
    section(".hwids", Component::Pcr11Hwids, Component::Pcr11HwidsContent),
];
/// Sections whose use depends on the machine's hardware.
const CHOSEN: [&str; 2] = [".dtbauto", ".efifw"];
/// Sections that stub 252 does not support or does not measure.
const NOT_IN_252: [&str; 5] = [".ucode", ".uname", ".sbat", ".profile", ".hwids"];

const fn section(name: &'static str, title: Component, content: Component) -> UkiSection {
    UkiSection { name, title, content }
}

/// Names of all sections that are hashed.
pub(super) fn hashed_sections() -> impl Iterator<Item = &'static str> {
    MEASURED.iter().map(|section| section.name)
}

impl StubProfile {
    /// The generations between which a version of systemd lies, the older one first: the same twice for an
    /// observed version, and for one after the last, of which only the specification is known.
    pub(super) fn around(version: &str) -> Option<[Self; 2]> {
        let major = version.split(['.', '-', '~']).next()?;
        match major.parse::<u32>().ok()? {
            0..=251 => None,
            252 => Some([Self::V252; 2]),
            253..=256 => Some([Self::V252, Self::V257]),
            257 => Some([Self::V257; 2]),
            258..=261 => Some([Self::V257, Self::V262]),
            _ => Some([Self::V262; 2]),
        }
    }

    /// The sections that it measures into PCR 11, in order.
    pub(super) fn measured(self) -> impl Iterator<Item = &'static UkiSection> {
        let known =
            move |section: &&UkiSection| self > Self::V252 || !NOT_IN_252.contains(&section.name);
        MEASURED.iter().filter(known)
    }

    /// Whether a section makes PCR 11 depend on the machine.
    pub(super) fn check_sections(self, file: &PeFile) -> Result<(), Unpredictable> {
        match file.sections().find(|name| CHOSEN.contains(name)) {
            Some(name) if self > Self::V252 => Err(Unpredictable::Section(name.to_owned())),
            _ => Ok(()),
        }
    }

    /// Whether it reads add-ons.
    pub(super) fn has_addons(self) -> bool {
        self > Self::V252
    }

    /// Whether it has the firmware load the inner kernel when images are not verified.
    pub(super) fn loads_inner_kernel(self) -> bool {
        self < Self::V262
    }

    /// How it interprets what a boot entry passes to it.
    pub(super) fn options(self, handed: Option<&[u8]>) -> StubOptions {
        match self {
            Self::V252 => load_options::for_stub_252(handed),
            Self::V257 | Self::V262 => load_options::for_stub(handed),
        }
    }

    /// A command line, from a section or passed to the stub, as the stub uses it (systemd, util.c,
    /// `mangle_stub_cmdline`). Unlike its successors, 252 (observed: 252.39) keeps blanks at the
    /// start, as the generator of dracut writes them, and takes DEL for a letter.
    pub(super) fn command_line(self, line: &[u8]) -> Result<String, Unpredictable> {
        let text = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text).unwrap_or("\u{fffd}");
        if !text.is_ascii() {
            return Err(Unpredictable::CommandLine("has other characters than ASCII"));
        }
        let blank = |c: char| c <= ' ' || c == '\x7f' && self > Self::V252;
        let line = text.trim_end_matches(blank).replace(blank, " ");
        Ok(if self > Self::V252 { line.trim_start().to_owned() } else { line })
    }

    /// The archives that it creates from its own sections, in their order in the initial file
    /// system.
    pub(super) fn archives(self, file: &PeFile) -> impl Iterator<Item = Vec<u8>> {
        let names = [
            (".pcrsig", "tpm2-pcr-signature.json"),
            (".pcrpkey", "tpm2-pcr-public-key.pem"),
            (".osrel", "os-release"),
            (".profile", "profile"),
        ];
        let count = if self == Self::V252 { 2 } else { names.len() };
        names.into_iter().take(count).filter_map(|(section, name)| {
            let content = file.section(section).filter(|content| !content.is_empty())?;
            Some(cpio::one(cpio::META, name, content))
        })
    }

    /// Checks that what the stub passes to the kernel follows from the image and the files next to
    /// it.
    pub(super) fn check_kernel(self, file: &PeFile, line: &str) -> Result<(), Unpredictable> {
        if self == Self::V262 {
            return Err(Unpredictable::BootSecret);
        }
        if line.is_empty() {
            return Err(Unpredictable::CommandLine("is empty"));
        }
        kernel::check_options(line)?;
        let start = file.part(".linux").map(|part| part.start.as_slice());
        kernel::check_version(start.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn white_space_is_used_as_real_stubs_used_it() {
        // SHA-256 of the load options in PCR 9 of boots of Debian 12 (252.39) and 13 (257.13), without
        // and, for the first two, with systemd-boot before them.
        const OBSERVED: [(StubProfile, &str, [u8; 4]); 5] = [
            (StubProfile::V252, " console=ttyS0  quiet\tx=1 ", [0x7c, 0xdb, 0x2e, 0xf3]),
            (StubProfile::V252, MIXED, [0xf9, 0x78, 0x20, 0x51]),
            (StubProfile::V252, "console=ttyS0 x \x7f", [0xc8, 0x52, 0x56, 0x45]),
            (StubProfile::V257, MIXED, [0x36, 0xa6, 0x58, 0x91]),
            (StubProfile::V257, "console=ttyS0 x \x7f", [0xca, 0xfd, 0x14, 0xde]),
        ];
        const MIXED: &str = "\n\tconsole=ttyS0 \t\x01a\x7fb \n\t x\r ";
        for (profile, section, start) in OBSERVED {
            let line = profile.command_line(section.as_bytes()).unwrap();
            let digest = Sha256::digest(kernel::wide(&line));
            assert_eq!(digest[..4], start, "{profile:?} {section:?}: {line:?}");
        }
    }
}
