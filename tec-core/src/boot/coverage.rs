//! What an approved image covers of its boots, part by part, in one table for commands, pages and conditions.

use std::fmt;

use serde::Serialize;

use super::{BootInput, Pins};
use crate::image::ExpectedPcrs;
use crate::pcr::PcrIndex;

/// Registers of the platform baseline, see [`crate::platform`].
const FIRMWARE: [u8; 2] = [0, 2];

/// A part of a boot that decides what a machine with its key runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CoveredPart {
    /// The firmware and its option ROMs.
    Firmware,
    /// The state of Secure Boot, and its keys.
    SecureBootKeys,
    /// The programs that the firmware starts, up to the kernel: shim, GRUB, systemd-boot.
    BootLoader,
    /// The kernel.
    Kernel,
    /// The initial file system.
    Initramfs,
    /// The kernel command line.
    CommandLine,
    /// System extensions beside a unified kernel image.
    SystemExtensions,
    /// Machine owner keys of shim.
    MachineOwnerKeys,
    /// The root file system.
    RootFileSystem,
}

/// What holds a part of a boot to what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CoveredBy {
    /// Nothing.
    Nothing,
    /// Not known.
    Unknown,
    /// The first accepted boot of this image on each machine.
    FirstBoot,
    /// The platform baseline of each machine: its first accepted boot, or an approved change.
    PlatformBaseline,
    /// The values of the image.
    Image,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CoverageRow {
    /// The part.
    pub part: CoveredPart,
    /// The registers that cover it, if any do.
    pub pcrs: Vec<PcrIndex>,
    /// How they are held.
    pub by: CoveredBy,
}

/// What covers each part of an image's boots, in boot order. Displayed in one line, with what is not covered first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Coverage(Vec<CoverageRow>);

impl Pins {
    /// What covers each part of the boots of an image with this prediction.
    ///
    /// # Security
    /// As [`covering`](Self::covering). Whether the root file system is encrypted with the released key is not known
    /// here, so it is covered only by a hash on a command line that is covered.
    pub fn coverage(self, expected: &ExpectedPcrs) -> Coverage {
        let lines = self.input(expected, BootInput::CommandLine);
        let root = match (&lines.1, expected.root_hash) {
            (CoveredBy::Nothing, _) | (_, Some(false)) => (Vec::new(), CoveredBy::Nothing),
            (_, None) => (Vec::new(), CoveredBy::Unknown),
            (_, Some(true)) => lines.clone(),
        };
        let firmware = FIRMWARE.into_iter().filter_map(|index| PcrIndex::new(index).ok()).collect();
        let rows = [
            (CoveredPart::Firmware, self.platform(expected, firmware)),
            (CoveredPart::SecureBootKeys, self.platform(expected, vec![PcrIndex::SECURE_BOOT])),
            (CoveredPart::BootLoader, self.register(expected, PcrIndex::BOOT_MANAGER)),
            (CoveredPart::Kernel, self.input(expected, BootInput::Kernel)),
            (CoveredPart::Initramfs, self.input(expected, BootInput::Initramfs)),
            (CoveredPart::CommandLine, lines),
            (CoveredPart::SystemExtensions, self.register(expected, PcrIndex::SYSTEM_EXTENSIONS)),
            (CoveredPart::MachineOwnerKeys, self.register(expected, PcrIndex::MOK)),
            (CoveredPart::RootFileSystem, root),
        ];
        Coverage(rows.map(|(part, (pcrs, by))| CoverageRow { part, pcrs, by }).into())
    }

    fn input(self, expected: &ExpectedPcrs, input: BootInput) -> (Vec<PcrIndex>, CoveredBy) {
        if let Some(pcr) = self.covering(expected, input) {
            return (vec![pcr], CoveredBy::Image);
        }
        let is_unified = expected.pcr(PcrIndex::KERNEL_BOOT).is_some();
        let elsewhere = match input {
            BootInput::Kernel | BootInput::Initramfs => PcrIndex::BOOT_FILES,
            BootInput::CommandLine if is_unified => PcrIndex::KERNEL_CONFIG,
            BootInput::CommandLine => PcrIndex::BOOT_COMMANDS,
        };
        // That the image states a register does not mean that it covers this.
        let (pcrs, by) = self.register(expected, elsewhere);
        if by == CoveredBy::FirstBoot { (pcrs, by) } else { (Vec::new(), CoveredBy::Nothing) }
    }

    /// How a register is held that depends on the image.
    fn register(self, expected: &ExpectedPcrs, pcr: PcrIndex) -> (Vec<PcrIndex>, CoveredBy) {
        if self.is_held(expected, pcr) {
            return (vec![pcr], CoveredBy::Image);
        }
        let is_open = Self::of_images().any(|one| one == pcr) && expected.pcr(pcr).is_none();
        let is_held = self == Self::Predicted && expected.first_boot;
        if is_held && is_open && self.of_expected(expected).is_some() {
            return (vec![pcr], CoveredBy::FirstBoot);
        }
        (Vec::new(), CoveredBy::Nothing)
    }

    fn platform(self, expected: &ExpectedPcrs, pcrs: Vec<PcrIndex>) -> (Vec<PcrIndex>, CoveredBy) {
        let by_image = pcrs.iter().all(|pcr| self.is_held(expected, *pcr));
        (pcrs, if by_image { CoveredBy::Image } else { CoveredBy::PlatformBaseline })
    }

    /// Whether the image states a register that is pinned, and the programs that measured it.
    fn is_held(self, expected: &ExpectedPcrs, pcr: PcrIndex) -> bool {
        let pinned = self.of_expected(expected);
        let is_held =
            |pcr| pinned.is_some_and(|all| all.contains(pcr)) && expected.pcr(pcr).is_some();
        is_held(PcrIndex::BOOT_MANAGER) && is_held(pcr)
    }
}

impl Coverage {
    /// The rows, in boot order.
    pub fn rows(&self) -> &[CoverageRow] {
        &self.0
    }

    /// Whether nothing is known of the image yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl CoverageRow {
    /// The registers, as in `PCR 0, 2`; empty if there are none.
    pub fn registers(&self) -> String {
        let pcrs: Vec<_> = self.pcrs.iter().map(ToString::to_string).collect();
        if pcrs.is_empty() { String::new() } else { format!("PCR {}", pcrs.join(", ")) }
    }

    /// What covers the part, or what it means that nothing does.
    pub fn sentence(&self) -> &'static str {
        match (self.by, self.part) {
            (CoveredBy::Image, CoveredPart::RootFileSystem) => {
                "hash on the command line that is covered"
            }
            (CoveredBy::Image, _) => "value of the image",
            (CoveredBy::PlatformBaseline, _) => "platform baseline of each machine",
            (CoveredBy::FirstBoot, _) => "first boot of this image on each machine",
            (CoveredBy::Nothing, CoveredPart::RootFileSystem) => {
                "NOT covered, unless it is encrypted with the released key"
            }
            (CoveredBy::Nothing, _) => "NOT covered",
            (CoveredBy::Unknown, _) => {
                "not known: if the command line has no hash of it, only encryption with the released key \
                 protects it"
            }
        }
    }
}

impl fmt::Display for CoveredPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Firmware => "firmware",
            Self::SecureBootKeys => "Secure Boot keys",
            Self::BootLoader => "boot loader",
            Self::Kernel => "kernel",
            Self::Initramfs => "initramfs",
            Self::CommandLine => "command line",
            Self::SystemExtensions => "system extensions",
            Self::MachineOwnerKeys => "machine owner keys",
            Self::RootFileSystem => "root file system",
        })
    }
}

impl fmt::Display for CoveredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "NOT covered",
            Self::Unknown => "not known",
            Self::FirstBoot => "first boot",
            Self::PlatformBaseline => "platform baseline",
            Self::Image => "image",
        })
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|row| row.by);
        for (number, of_one) in rows.chunk_by(|a, b| a.by == b.by).enumerate() {
            let Some(first) = of_one.first() else { continue };
            let parts: Vec<_> = of_one.iter().map(|row| row.part.to_string()).collect();
            let between = if number == 0 { "" } else { "; " };
            write!(f, "{between}{}: {}", first.by, parts.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Sha256Digest;
    use crate::evidence::PinnedPcrs;
    use crate::image::{ExpectedPcr, ImageEvent};

    const GRUB: [(u8, &str); 6] = [
        (4, "Pcr4Vmlinuz"),
        (8, "Pcr8KernelCmdline"),
        (9, "Pcr9File"),
        (14, "Pcr14MokList"),
        (0, "Pcr0Recorded"),
        (2, "Pcr2Recorded"),
    ];

    fn expected(registers: &[(u8, &str)], root_hash: Option<bool>) -> ExpectedPcrs {
        let register = |(index, id): &(u8, &str)| {
            let pcr = PcrIndex::new(*index).unwrap();
            let event = ImageEvent::new("E", pcr, Sha256Digest::of(id), *id);
            ExpectedPcr::from_events(pcr, [event])
        };
        let mut expected = ExpectedPcrs::new(registers.iter().map(register).collect());
        expected.root_hash = root_hash;
        expected.first_boot = true;
        expected
    }

    fn exactly(registers: &[u8]) -> Pins {
        let set = registers.iter().map(|index| PcrIndex::new(*index).unwrap()).collect();
        PinnedPcrs::new(set).unwrap().into()
    }

    #[test]
    fn each_part_is_listed_under_what_covers_it_and_gaps_come_first() {
        let short = |pins: Pins, expected: &ExpectedPcrs| pins.coverage(expected).to_string();
        let platform = "platform baseline: firmware, Secure Boot keys";
        assert_eq!(
            short(Pins::Predicted, &expected(&GRUB[..4], Some(false))),
            format!(
                "NOT covered: root file system; first boot: system extensions; {platform}; \
                 image: boot loader, kernel, initramfs, command line, machine owner keys"
            )
        );
        assert_eq!(
            short(Pins::Predicted, &expected(&GRUB[..1], None)),
            format!(
                "not known: root file system; first boot: initramfs, command line, system extensions, \
                 machine owner keys; {platform}; image: boot loader, kernel"
            )
        );
        let mut unheld = expected(&GRUB[..4], Some(false));
        unheld.first_boot = false;
        let gaps = "NOT covered: system extensions, root file system; ";
        assert!(short(Pins::Predicted, &unheld).starts_with(gaps));
        // What an admin left out is held by nothing.
        assert_eq!(
            short(exactly(&[4]), &expected(&GRUB[..4], Some(true))),
            format!(
                "NOT covered: initramfs, command line, system extensions, machine owner keys, \
                 root file system; {platform}; image: boot loader, kernel"
            )
        );
    }

    #[test]
    fn a_unified_kernel_image_takes_its_command_line_from_another_register() {
        let row = |registers: &[(u8, &str)], part| {
            let coverage = Pins::Predicted.coverage(&expected(registers, None));
            let row = coverage.rows().iter().find(|row| row.part == part).unwrap();
            (row.registers(), row.by)
        };
        let uki = [(4, "Pcr4Uki"), (11, "Pcr11Linux")];
        let first = |pcr: &str| (pcr.to_owned(), CoveredBy::FirstBoot);
        assert_eq!(row(&uki, CoveredPart::CommandLine), first("PCR 12"));
        assert_eq!(row(&uki, CoveredPart::Initramfs), first("PCR 9"));
        assert_eq!(row(&GRUB[..1], CoveredPart::CommandLine), first("PCR 8"));
        // A stated register without the event covers nothing, and is not held to a first boot.
        let other = [GRUB[0], (9, "Pcr9Other")];
        let nothing = (String::new(), CoveredBy::Nothing);
        assert_eq!(row(&other, CoveredPart::Initramfs), nothing);
        // No boot of it is admitted.
        assert_eq!(row(&GRUB[1..2], CoveredPart::CommandLine), nothing);
        assert_eq!(row(&GRUB[1..2], CoveredPart::MachineOwnerKeys), nothing);
    }

    #[test]
    fn a_hash_of_the_root_covers_as_much_as_the_command_line_is_covered() {
        let root = |pins: Pins, registers: &[(u8, &str)], hash| {
            let coverage = pins.coverage(&expected(registers, hash));
            let row = coverage.rows().last().unwrap().clone();
            (row.registers(), row.by)
        };
        let nothing = (String::new(), CoveredBy::Nothing);
        let by = |pcr: &str, by| (pcr.to_owned(), by);
        let predicted = Pins::Predicted;
        assert_eq!(root(predicted, &GRUB, Some(true)), by("PCR 8", CoveredBy::Image));
        assert_eq!(root(predicted, &GRUB[..1], Some(true)), by("PCR 8", CoveredBy::FirstBoot));
        assert_eq!(root(predicted, &GRUB, None), by("", CoveredBy::Unknown));
        assert_eq!(root(predicted, &GRUB, Some(false)), nothing);
        assert_eq!(root(exactly(&[4]), &GRUB, Some(true)), nothing, "its register is not pinned");
    }

    #[test]
    fn programs_read_rows_and_firmware_that_is_pinned_is_the_image_s() {
        let json =
            |pins: Pins| serde_json::to_value(pins.coverage(&expected(&GRUB, None))).unwrap();
        let row = |by| serde_json::json!({"part": "firmware", "pcrs": [0, 2], "by": by});
        assert_eq!(json(Pins::Predicted)[0], row("platform-baseline"));
        assert_eq!(json(exactly(&[0, 2, 4]))[0], row("image"));
        assert_eq!(json(exactly(&[0, 2]))[0], row("platform-baseline"), "no values of programs");
        assert_eq!(json(Pins::Predicted)[8]["part"], "root-file-system");
    }
}
