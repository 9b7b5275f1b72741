//! Which inputs of a boot no pinned register covers.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{BootState, Pins};
use crate::image::{ApprovedImage, ExpectedPcrs};
use crate::pcr::PcrIndex;

/// Event of PCR 4 for the kernel.
const KERNEL: &str = "Pcr4Vmlinuz";
/// Event of PCR 4 for a unified kernel image, with kernel, initramfs and command line in one file.
const UKI: &str = "Pcr4Uki";
/// Event of PCR 4 for systemd-boot, which measures the options that it hands to a kernel into PCR 12.
const MANAGER: &str = "Pcr4Manager";
/// Event of PCR 4 for a program of a boot that was approved as it was logged. It says nothing about the kernel,
/// unless PCR 11 has the sections of a unified kernel image.
const AS_LOGGED: &str = "Pcr4Booted";

/// An input of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum BootInput {
    /// The kernel.
    Kernel,
    /// The initial file system, with the programs that start before the disk is open.
    Initramfs,
    /// The kernel command line, and with GRUB all commands of its configuration.
    CommandLine,
}

impl fmt::Display for BootInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Initramfs => "initramfs",
            Self::CommandLine => "command line",
        })
    }
}

/// The inputs of an image's boot that no pinned register covers. Displayed as a sentence, such as `initramfs and
/// command line are NOT checked`; empty if everything is checked.
///
/// A machine gets its key whatever they are; where each image pins what it states, only in its first boot of the
/// image: later ones are held to that one (see [`ImageBoot`](crate::platform::ImageBoot)). Read from JSON, it does
/// not know of this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeSet<BootInput>", into = "BTreeSet<BootInput>")]
pub struct Unpinned {
    inputs: BTreeSet<BootInput>,
    /// Only in the first boot of a machine.
    at_first: bool,
}

impl Unpinned {
    /// Whether every input is checked.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// The inputs, in boot order.
    pub fn iter(&self) -> impl Iterator<Item = BootInput> {
        self.inputs.iter().copied()
    }
}

impl From<BTreeSet<BootInput>> for Unpinned {
    fn from(inputs: BTreeSet<BootInput>) -> Self {
        Self { inputs, at_first: false }
    }
}

impl From<Unpinned> for BTreeSet<BootInput> {
    fn from(unpinned: Unpinned) -> Self {
        unpinned.inputs
    }
}

impl fmt::Display for Unpinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(|input| input.to_string()).collect();
        let when = if self.at_first { " in the first boot of each machine" } else { "" };
        match names.as_slice() {
            [] => Ok(()),
            [only] => write!(f, "{only} is NOT checked{when}"),
            [first @ .., last] => {
                write!(f, "{} and {last} are NOT checked{when}", first.join(", "))
            }
        }
    }
}

impl BootInput {
    /// All inputs, in boot order.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Initramfs, Self::CommandLine];
}

impl Pins {
    /// The inputs of an image's boot that no pinned register covers.
    ///
    /// # Security
    /// As [`covering`](Self::covering).
    pub fn unpinned(self, expected: &ExpectedPcrs) -> Unpinned {
        let is_open = |input: &BootInput| self.covering(expected, *input).is_none();
        let inputs = BootInput::ALL.into_iter().filter(is_open).collect();
        Unpinned { inputs, at_first: self == Self::Predicted && expected.first_boot }
    }

    /// The pinned register that covers an input of an image's boot; `None` if none does.
    ///
    /// # Security
    /// What the pinned registers do not show to be covered is not covered. Nothing is without PCR
    /// 4: what the others contain depends on the program that measured it. A unified kernel image
    /// covers its own initramfs and command line, but takes further command lines from outside (PCR
    /// 12). System extensions (PCR 13) are not among the inputs. Of a boot that was approved as it was logged,
    /// the log claimed which component an event belongs to.
    pub fn covering(self, expected: &ExpectedPcrs, input: BootInput) -> Option<PcrIndex> {
        let pinned = self.of_expected(expected)?;
        let is_pinned = |pcr| pinned.contains(pcr) && expected.pcr(pcr).is_some();
        let states = |pcr, ids: &[&str]| {
            let events = expected.pcr(pcr).map_or(&[][..], |expected| &expected.events);
            events.iter().any(|event| ids.contains(&event.id.as_str()))
        };
        let by = |pcr, covers: bool| (covers && is_pinned(pcr)).then_some(pcr);
        let covered = |pcr, ids: &[&str]| by(pcr, states(pcr, ids));
        by(PcrIndex::BOOT_MANAGER, true)?;
        let files = covered(PcrIndex::BOOT_FILES, &["Pcr9File"]);
        let hands = covered(PcrIndex::BOOT_MANAGER, &[MANAGER]).is_some();
        let uki = covered(PcrIndex::BOOT_MANAGER, &[UKI]).or_else(|| {
            let has_sections = states(PcrIndex::KERNEL_BOOT, &["Pcr11Linux"]);
            covered(PcrIndex::BOOT_MANAGER, &[AS_LOGGED]).filter(|_| has_sections)
        });
        let kernel = covered(PcrIndex::BOOT_MANAGER, &[KERNEL]).or(uki);
        match input {
            BootInput::Kernel => kernel.or(files),
            // Without a section for it, the kernel of the image may find one elsewhere.
            BootInput::Initramfs => files
                .or_else(|| uki.filter(|_| states(PcrIndex::KERNEL_BOOT, &["Pcr11Initrd"])))
                // What a checked kernel finds, it measures.
                .or_else(|| kernel.and_then(|_| covered(PcrIndex::BOOT_FILES, &["Pcr9Initrd"]))),
            BootInput::CommandLine => covered(PcrIndex::BOOT_COMMANDS, &["Pcr8KernelCmdline"])
                .or_else(|| by(PcrIndex::KERNEL_CONFIG, hands || uki.is_some())),
        }
    }

    /// What is not checked of any of the images that a state may consist of.
    pub(crate) fn unpinned_in(self, state: &BootState, images: &[ApprovedImage]) -> Unpinned {
        let is_of_state = |image: &&ApprovedImage| state.images().any(|name| *name == image.name);
        let of_state = images.iter().filter(is_of_state);
        of_state
            .flat_map(|image| self.unpinned(&image.expected).inputs)
            .collect::<BTreeSet<_>>()
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Sha256Digest;
    use crate::evidence::PinnedPcrs;
    use crate::image::{ExpectedPcr, ImageEvent};

    const GRUB: [(u8, &[&str]); 4] = [
        (4, &["Pcr4Shim", "Pcr4Grub", "Pcr4Vmlinuz"]),
        (8, &["Pcr8Command", "Pcr8KernelCmdline"]),
        (9, &["Pcr9File"]),
        (14, &["Pcr14MokList"]),
    ];
    const UNIFIED: [(u8, &[&str]); 3] =
        [(4, &["Pcr4Uki"]), (11, &["Pcr11Linux", "Pcr11Initrd"]), (12, &[])];

    /// Afterwards, the machine is held to it.
    const FIRST: &str = " in the first boot of each machine";

    fn expected(registers: &[(u8, &[&str])]) -> ExpectedPcrs {
        let register = |(index, ids): &(u8, &[&str])| {
            let pcr = PcrIndex::new(*index).unwrap();
            let event = |id: &&str| ImageEvent::new("E", pcr, Sha256Digest::of(id), *id);
            ExpectedPcr::from_events(pcr, ids.iter().map(event))
        };
        let mut expected = ExpectedPcrs::new(registers.iter().map(register).collect());
        expected.first_boot = true;
        expected
    }

    fn exactly(registers: &[u8]) -> Pins {
        let set = registers.iter().map(|index| PcrIndex::new(*index).unwrap()).collect();
        PinnedPcrs::new(set).unwrap().into()
    }

    fn said(pins: Pins, registers: &[(u8, &[&str])]) -> String {
        pins.unpinned(&expected(registers)).to_string()
    }

    #[test]
    fn a_grub_boot_needs_its_commands_and_its_files() {
        let [boot, commands, files, keys] = GRUB;
        let predicted = |registers: &[(u8, &[&str])]| said(Pins::Predicted, registers);
        let neither = "initramfs and command line are NOT checked";
        assert_eq!(predicted(&[boot]), format!("{neither}{FIRST}"));
        assert_eq!(predicted(&[boot, keys]), format!("{neither}{FIRST}"));
        assert_eq!(predicted(&[boot, commands]), format!("initramfs is NOT checked{FIRST}"));
        assert_eq!(predicted(&[boot, files]), format!("command line is NOT checked{FIRST}"));
        assert_eq!(predicted(&GRUB), "");
        assert_eq!(said(exactly(&[4, 14]), &GRUB), neither, "left out by an admin");
        let mut unheld = expected(&[boot]);
        unheld.first_boot = false;
        assert_eq!(Pins::Predicted.unpinned(&unheld).to_string(), neither);
    }

    /// With Secure Boot off, GRUB before 2.14 measures no kernel into PCR 4.
    #[test]
    fn a_kernel_that_is_not_in_pcr_4_is_checked_only_as_a_file() {
        let boot: (u8, &[&str]) = (4, &["Pcr4Shim", "Pcr4Grub"]);
        let [_, commands, files, _] = GRUB;
        let all = "kernel, initramfs and command line are NOT checked";
        assert_eq!(said(Pins::Predicted, &[boot]), format!("{all}{FIRST}"));
        assert_eq!(said(Pins::Predicted, &[boot, commands, files]), "");
    }

    #[test]
    fn a_unified_kernel_image_needs_what_it_takes_from_outside() {
        let [boot, sections, outside] = UNIFIED;
        let predicted = |registers: &[(u8, &[&str])]| said(Pins::Predicted, registers);
        assert_eq!(predicted(&UNIFIED), "");
        assert_eq!(said(exactly(&[4, 12]), &UNIFIED), "", "PCR 4 covers the sections");
        assert_eq!(said(exactly(&[4]), &UNIFIED), "command line is NOT checked");
        let open = |what: &str| format!("{what} is NOT checked{FIRST}");
        assert_eq!(predicted(&[boot, sections]), open("command line"));
        assert_eq!(predicted(&[boot, outside]), open("initramfs"));
        let without: (u8, &[&str]) = (11, &["Pcr11Linux"]);
        assert_eq!(predicted(&[boot, without, outside]), open("initramfs"));
    }

    #[test]
    fn a_kernel_that_systemd_boot_starts_needs_what_is_handed_to_it() {
        let boot: (u8, &[&str]) = (4, &["Pcr4Manager", "Pcr4Vmlinuz"]);
        let options: (u8, &[&str]) = (12, &["Pcr12LoadOptions"]);
        let found: (u8, &[&str]) = (9, &["Pcr9LoadOptions", "Pcr9Initrd"]);
        let predicted = |registers: &[(u8, &[&str])]| {
            said(Pins::Predicted, registers).trim_end_matches(FIRST).to_owned()
        };
        assert_eq!(predicted(&[boot, found, options]), "");
        assert_eq!(predicted(&[boot, found]), "command line is NOT checked");
        assert_eq!(predicted(&[boot, options]), "initramfs is NOT checked");
        let grub: (u8, &[&str]) = (4, &["Pcr4Shim", "Pcr4Grub"]);
        let open = "kernel, initramfs and command line are NOT checked";
        assert_eq!(predicted(&[grub, found, options]), open, "any kernel measures what it likes");
    }

    #[test]
    fn what_cannot_be_told_is_not_checked() {
        let all = "kernel, initramfs and command line are NOT checked";
        let [boot, commands, files, _] = GRUB;
        let predicted = |registers: &[(u8, &[&str])]| said(Pins::Predicted, registers);
        let first = format!("{all}{FIRST}");
        assert_eq!(predicted(&[commands, files]), first, "nothing is pinned");
        assert_eq!(said(exactly(&[8, 9]), &GRUB), all, "anything could have measured these");
        assert_eq!(said(exactly(&[4, 8, 9]), &[commands, files]), all, "no value to compare");
        assert_eq!(said(exactly(&[11, 12]), &UNIFIED), all);
        // A GRUB that measures nothing leaves both at zero.
        let zero = [boot, (8, &[]), (9, &[])];
        let two = "initramfs and command line are NOT checked";
        assert_eq!(predicted(&zero), format!("{two}{FIRST}"));
        let unknown: (u8, &[&str]) = (4, &["Pcr4Custom"]);
        assert_eq!(predicted(&[unknown]), first);
    }

    #[test]
    fn what_covers_an_input_is_named() {
        let covering = |registers: &[(u8, &[&str])]| {
            let expected = expected(registers);
            let by = |input| Pins::Predicted.covering(&expected, input).map(PcrIndex::as_usize);
            BootInput::ALL.map(by)
        };
        assert_eq!(covering(&GRUB), [Some(4), Some(9), Some(8)]);
        assert_eq!(covering(&GRUB[..1]), [Some(4), None, None]);
        assert_eq!(covering(&UNIFIED), [Some(4), Some(4), Some(12)]);
    }

    #[test]
    fn programs_read_a_list() {
        let unpinned = Pins::Predicted.unpinned(&expected(&GRUB[..1]));
        let json = serde_json::to_value(&unpinned).unwrap();
        assert_eq!(json, serde_json::json!(["initramfs", "command-line"]));
        let read: Unpinned = serde_json::from_value(json).unwrap();
        assert!(read.iter().eq(unpinned.iter()));
        assert_eq!(read.to_string(), "initramfs and command line are NOT checked");
    }
}
