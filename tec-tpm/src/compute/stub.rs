//! What systemd-stub measures: the sections of its unified kernel image, the add-ons beside it,
//! and what it hands to the kernel.

use super::cpio;
use super::kernel;
use super::measurement::Component;
use super::pe::PeFile;
use super::predict::Unpredictable;

/// A generation of systemd-stub whose measurements are known.
///
/// | profile | sections in PCR 11 | add-ons | archives after the initrd | inner kernel in PCR 4 |
/// |---|---|---|---|---|
/// | 252 | without `.uname` and `.sbat` | no | keys of `.pcrpkey` | with Secure Boot off |
/// | 257 | all | yes | the same, and `.osrel` | with Secure Boot off |
/// | 262 | all | yes | the same, and a secret of the machine | never |
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

/// What the stub of a unified kernel image measures cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StubError {
    /// The section that says which stub this is lacks or says something else.
    #[error("there is no .sdmagic section that says which stub this is")]
    NoMagic,
    /// A version that has not been observed.
    #[error("what systemd-stub {version} measures is not known; choose a profile to override")]
    UnknownVersion {
        /// Version.
        version: String,
    },
}

/// A section of a unified kernel image (UAPI group, "Unified Kernel Image", "UKI Components").
pub(super) struct UkiSection {
    pub(super) name: &'static str,
    pub(super) title: Component,
    pub(super) content: Component,
}

/// The sections that are measured, in the order of their measurement.
const MEASURED: [UkiSection; 10] = [
    section(
        ".linux",
        Component::Pcr11Linux,
        Component::Pcr11LinuxContent,
    ),
    section(
        ".osrel",
        Component::Pcr11Osrel,
        Component::Pcr11OsrelContent,
    ),
    section(
        ".cmdline",
        Component::Pcr11Cmdline,
        Component::Pcr11CmdlineContent,
    ),
    section(
        ".initrd",
        Component::Pcr11Initrd,
        Component::Pcr11InitrdContent,
    ),
    section(
        ".ucode",
        Component::Pcr11Ucode,
        Component::Pcr11UcodeContent,
    ),
    section(
        ".splash",
        Component::Pcr11Splash,
        Component::Pcr11SplashContent,
    ),
    section(".dtb", Component::Pcr11Dtb, Component::Pcr11DtbContent),
    section(
        ".uname",
        Component::Pcr11Uname,
        Component::Pcr11UnameContent,
    ),
    section(".sbat", Component::Pcr11Sbat, Component::Pcr11SbatContent),
    section(
        ".pcrpkey",
        Component::Pcr11Pcrpkey,
        Component::Pcr11PcrpkeyContent,
    ),
];
/// Sections whose use depends on the machine or on what its user chooses at boot.
const CHOSEN: [&str; 4] = [".profile", ".dtbauto", ".hwids", ".efifw"];
/// What stub 252 does not know or does not measure.
const NOT_IN_252: [&str; 3] = [".ucode", ".uname", ".sbat"];

const fn section(name: &'static str, title: Component, content: Component) -> UkiSection {
    UkiSection {
        name,
        title,
        content,
    }
}

/// Names of all sections that are hashed.
pub(super) fn hashed_sections() -> impl Iterator<Item = &'static str> {
    MEASURED.iter().map(|section| section.name)
}

impl StubProfile {
    /// Picks the profile by the section `.sdmagic`.
    ///
    /// # Errors
    /// [`StubError`] for anything that has not been observed.
    pub fn from_magic(section: Option<&[u8]>) -> Result<Self, StubError> {
        let text = section.and_then(|section| std::str::from_utf8(section).ok());
        let version = text.and_then(|text| {
            let text = text.trim_end_matches('\0');
            let text = text.strip_prefix("#### LoaderInfo: systemd-stub ")?;
            text.strip_suffix(" ####")
        });
        let version = version.ok_or(StubError::NoMagic)?;
        let major = version.split(['.', '-', '~']).next().unwrap_or_default();
        match major {
            "252" => Ok(Self::V252),
            "257" => Ok(Self::V257),
            "262" => Ok(Self::V262),
            _ => Err(StubError::UnknownVersion {
                version: version.chars().take(32).collect(),
            }),
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
            Some(name) if self > Self::V252 => Err(Unpredictable::Section {
                section: name.to_owned(),
            }),
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

    /// The command line of a section as the stub reads it.
    pub(super) fn command_line(self, section: &[u8]) -> Result<String, Unpredictable> {
        let text = section.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text).unwrap_or("\u{fffd}");
        if !text.is_ascii() {
            return Err(Unpredictable::CommandLine {
                reason: "has other characters than ASCII",
            });
        }
        // systemd, util.c, `mangle_stub_cmdline`.
        let blank = |c: char| c <= ' ' || c == '\x7f';
        let trimmed = text.trim_matches(blank);
        if self == Self::V252 && (trimmed != text || text.contains(|c| c != ' ' && blank(c))) {
            return Err(Unpredictable::CommandLine {
                reason: "has white space that stub 252 may or may not remove",
            });
        }
        Ok(trimmed.replace(blank, " "))
    }

    /// The archives that it appends to the initial file system.
    pub(super) fn archives(self, file: &PeFile) -> Vec<u8> {
        let kept = |name| file.section(name).filter(|content| !content.is_empty());
        let mut names = vec![
            (".pcrsig", "tpm2-pcr-signature.json"),
            (".pcrpkey", "tpm2-pcr-public-key.pem"),
        ];
        if self > Self::V252 {
            names.push((".osrel", "os-release"));
        }
        let archives = names
            .into_iter()
            .filter_map(|(section, name)| Some(cpio::extra_file(name, kept(section)?)));
        archives.collect::<Vec<_>>().concat()
    }

    /// Whether what it hands to the kernel follows from the image.
    pub(super) fn check_initrd(self, file: &PeFile, line: &str) -> Result<(), Unpredictable> {
        if self == Self::V262 {
            return Err(Unpredictable::BootSecret);
        }
        if self > Self::V252 && file.sections().any(|name| name == ".ucode") {
            return Err(Unpredictable::Section {
                section: ".ucode".to_owned(),
            });
        }
        if line.is_empty() {
            return Err(Unpredictable::CommandLine { reason: "is empty" });
        }
        kernel::check_options(line)?;
        let start = file.part(".linux").map(|part| part.start.as_slice());
        kernel::check_version(start.unwrap_or_default())
    }
}
