//! Describes in one sentence which parts of an image's boot are checked and which are not.

use tec_core::boot::Pins;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;

/// Registers that every image has, and what goes unchecked without them. Kernel, initramfs and command line
/// are told by [`Pins::unpinned`].
const OF_GRUB: [(PcrIndex, &str); 3] = [
    (PcrIndex::MOK, " (enrolled machine owner keys are not checked)"),
    (PcrIndex::BOOT_COMMANDS, ""),
    (PcrIndex::BOOT_FILES, ""),
];
/// The same for a unified kernel image.
const OF_UKI: [(PcrIndex, &str); 3] = [
    (PcrIndex::MOK, " (enrolled machine owner keys are not checked)"),
    (PcrIndex::KERNEL_CONFIG, " (credentials beside the image are not checked)"),
    (PcrIndex::SYSTEM_EXTENSIONS, " (system extensions are not checked)"),
];

/// The message of a committed image.
pub(super) fn told(pins: Pins, expected: &ExpectedPcrs) -> String {
    let is_stated = |pcr: &PcrIndex| expected.pcr(*pcr).is_some();
    let Some(pinned) = pins.of_expected(expected) else {
        return "no prediction of PCR 4: no boot of this image gets a key".to_owned();
    };
    let pinned: Vec<_> = pinned.iter().collect();
    let told = format!("pinned: {}", list(&pinned, ", "));
    let lacking: Vec<_> = pinned.iter().copied().filter(|pcr| !is_stated(pcr)).collect();
    if !lacking.is_empty() {
        let lacking = list(&lacking, ", ");
        return format!("{told}; no prediction of PCR {lacking}: no boot of this image gets a key");
    }
    let unpinned = pins.unpinned(expected);
    // First, so that no table cuts it off.
    let told = if unpinned.is_empty() { told } else { format!("{unpinned}; {told}") };
    let others = others(&pinned, expected);
    match (others.is_empty(), pins) {
        (true, _) => told,
        (false, Pins::Predicted) => format!("{told}; not predicted: {}", others.join(", ")),
        (false, Pins::Exactly(_)) => format!("{told}; not pinned: {}", others.join(", ")),
    }
}

/// Registers that are not pinned, each with what therefore goes unchecked.
fn others(pinned: &[PcrIndex], expected: &ExpectedPcrs) -> Vec<String> {
    let mut events = expected.pcrs.iter().flat_map(|pcr| &pcr.events);
    let is_uki = events.any(|event| event.id.contains("Uki"));
    let all = if is_uki { &OF_UKI } else { &OF_GRUB };
    let others = all.iter().filter(|(pcr, _)| !pinned.contains(pcr));
    others.map(|(pcr, what)| format!("{pcr}{what}")).collect()
}

fn list(registers: &[PcrIndex], between: &str) -> String {
    let registers: Vec<_> = registers.iter().map(ToString::to_string).collect();
    registers.join(between)
}

#[cfg(test)]
mod tests {
    use tec_core::attest::PinnedPcrs;
    use tec_core::digest::Sha256Digest;
    use tec_core::image::{ExpectedPcr, ImageEvent};
    use tec_core::pcr::PcrSet;

    use super::*;

    const GRUB: [&str; 5] =
        ["4 Pcr4Vmlinuz", "7 Pcr7Db", "8 Pcr8KernelCmdline", "9 Pcr9File", "14 Pcr14MokList"];

    /// A prediction with an event of each of these registers.
    fn stating(events: &[&str]) -> ExpectedPcrs {
        let pcr = |event: &&str| {
            let (index, id) = event.split_once(' ').unwrap();
            let pcr = PcrIndex::new(index.parse().unwrap()).unwrap();
            let event = ImageEvent::new("E", pcr, Sha256Digest::of("e"), id);
            ExpectedPcr::from_events(pcr, [event])
        };
        ExpectedPcrs::new(events.iter().map(pcr).collect())
    }

    fn exactly(registers: &[u8]) -> Pins {
        let set: PcrSet = registers.iter().map(|index| PcrIndex::new(*index).unwrap()).collect();
        PinnedPcrs::new(set).unwrap().into()
    }

    #[test]
    fn what_no_prediction_knows_is_told_with_its_consequence() {
        let [boot, secure_boot, commands, files, keys] = GRUB;
        let grub = |events: &[&str]| told(Pins::Predicted, &stating(events));
        assert_eq!(
            grub(&[boot, secure_boot]),
            "initramfs and command line are NOT checked; pinned: 4; not predicted: 14 (enrolled \
             machine owner keys are not checked), 8, 9"
        );
        assert_eq!(
            grub(&[boot, commands, keys]),
            "initramfs is NOT checked; pinned: 4, 8, 14; not predicted: 9"
        );
        assert_eq!(grub(&[boot, commands, files, keys]), "pinned: 4, 8, 9, 14");
        let uki = ["4 Pcr4Uki", "11 Pcr11Initrd", "12 Pcr12LoadOptions", "14 Pcr14MokList"];
        assert_eq!(
            told(Pins::Predicted, &stating(&uki)),
            "pinned: 4, 11, 12, 14; not predicted: 13 (system extensions are not checked)"
        );
    }

    #[test]
    fn an_image_that_no_boot_can_match_is_told_as_such() {
        let without = stating(&[GRUB[1], GRUB[4]]);
        let told_of = |pins| told(pins, &without);
        let end = "no boot of this image gets a key";
        assert_eq!(told_of(Pins::Predicted), format!("no prediction of PCR 4: {end}"));
        let exactly = exactly(&[4, 14]);
        assert_eq!(told_of(exactly), format!("pinned: 4, 14; no prediction of PCR 4: {end}"));
    }

    #[test]
    fn registers_that_an_admin_left_out_are_told_too() {
        assert_eq!(
            told(exactly(&[4, 14]), &stating(&GRUB)),
            "initramfs and command line are NOT checked; pinned: 4, 14; not pinned: 8, 9"
        );
    }
}
