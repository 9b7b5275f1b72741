//! Describes in one sentence which parts of an image's boot are checked and which are not.

use tec_core::boot::Pins;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;

/// Registers that an image booted by GRUB determines, and what goes unchecked without them.
const OF_GRUB: [(&[PcrIndex], &str); 4] = [
    (&[PcrIndex::MOK], "enrolled machine owner keys are"),
    (&[PcrIndex::BOOT_COMMANDS, PcrIndex::BOOT_FILES], "command line and initramfs are"),
    (&[PcrIndex::BOOT_COMMANDS], "the command line is"),
    (&[PcrIndex::BOOT_FILES], "the initramfs is"),
];
/// The same for a unified kernel image: PCR 4 covers its own command line and initramfs.
const OF_UKI: [(&[PcrIndex], &str); 3] = [
    (&[PcrIndex::MOK], "enrolled machine owner keys are"),
    (&[PcrIndex::KERNEL_CONFIG], "command lines and credentials beside the image are"),
    (&[PcrIndex::SYSTEM_EXTENSIONS], "system extensions are"),
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
    let unchecked = unchecked(&pinned, expected);
    match (unchecked.is_empty(), pins) {
        (true, _) => told,
        (false, Pins::Predicted) => format!("{told}; not predicted: {}", unchecked.join(", ")),
        (false, Pins::Exactly(_)) => format!("{told}; not pinned: {}", unchecked.join(", ")),
    }
}

/// Registers that are not pinned, each with what therefore goes unchecked.
fn unchecked(pinned: &[PcrIndex], expected: &ExpectedPcrs) -> Vec<String> {
    let mut events = expected.pcrs.iter().flat_map(|pcr| &pcr.events);
    let is_uki = events.any(|event| event.id.contains("Uki"));
    let all: &[(&[PcrIndex], &str)] = if is_uki { &OF_UKI } else { &OF_GRUB };
    let mut named = Vec::new();
    let mut unchecked = Vec::new();
    for (registers, what) in all {
        let is_new = |pcr: &PcrIndex| !pinned.contains(pcr) && !named.contains(pcr);
        if registers.iter().all(is_new) {
            unchecked.push(format!("{} ({what} not checked)", list(registers, " and ")));
            named.extend_from_slice(registers);
        }
    }
    unchecked
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

    fn stating(registers: &[u8], kernel: &str) -> ExpectedPcrs {
        let pcr = |index: &u8| {
            let pcr = PcrIndex::new(*index).unwrap();
            let event = ImageEvent::new("E", pcr, Sha256Digest::of("e"), kernel);
            ExpectedPcr::from_events(pcr, [event])
        };
        ExpectedPcrs::new(registers.iter().map(pcr).collect())
    }

    fn exactly(registers: &[u8]) -> Pins {
        let set: PcrSet = registers.iter().map(|index| PcrIndex::new(*index).unwrap()).collect();
        PinnedPcrs::new(set).unwrap().into()
    }

    #[test]
    fn what_no_prediction_knows_is_told_with_its_consequence() {
        let grub = |registers: &[u8]| told(Pins::Predicted, &stating(registers, "Pcr4Vmlinuz"));
        assert_eq!(
            grub(&[4, 7]),
            "pinned: 4; not predicted: 14 (enrolled machine owner keys are not checked), 8 and 9 \
             (command line and initramfs are not checked)"
        );
        assert_eq!(
            grub(&[4, 8, 14]),
            "pinned: 4, 8, 14; not predicted: 9 (the initramfs is not checked)"
        );
        assert_eq!(grub(&[4, 8, 9, 14]), "pinned: 4, 8, 9, 14");
        let uki = told(Pins::Predicted, &stating(&[4, 11, 12, 14], "Pcr4Uki"));
        assert_eq!(
            uki,
            "pinned: 4, 11, 12, 14; not predicted: 13 (system extensions are not checked)"
        );
    }

    #[test]
    fn an_image_that_no_boot_can_match_is_told_as_such() {
        let without = stating(&[7, 14], "Pcr14MokList");
        let told_of = |pins| told(pins, &without);
        let end = "no boot of this image gets a key";
        assert_eq!(told_of(Pins::Predicted), format!("no prediction of PCR 4: {end}"));
        let exactly = exactly(&[4, 14]);
        assert_eq!(told_of(exactly), format!("pinned: 4, 14; no prediction of PCR 4: {end}"));
    }

    #[test]
    fn registers_that_an_admin_left_out_are_told_too() {
        let told = told(exactly(&[4, 14]), &stating(&[4, 8, 9, 14], "Pcr4Vmlinuz"));
        assert_eq!(
            told,
            "pinned: 4, 14; not pinned: 8 and 9 (command line and initramfs are not checked)"
        );
    }
}
