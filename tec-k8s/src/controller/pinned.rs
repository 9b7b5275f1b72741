//! Describes in one line what covers each part of an image's boot.

use tec_core::boot::Pins;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;

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
    // First what is not covered, so that no table cuts it off.
    format!("{}; {told}", pins.coverage(expected))
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
    fn what_covers_each_part_is_told_with_the_gaps_first() {
        let [boot, secure_boot, commands, files, keys] = GRUB;
        let grub = |events: &[&str]| {
            let mut expected = stating(events);
            expected.first_boot = true;
            told(Pins::Predicted, &expected)
        };
        let platform = "platform baseline: firmware, Secure Boot keys";
        assert_eq!(
            grub(&[boot, secure_boot]),
            format!(
                "not known: root file system; first boot: initramfs, command line, system extensions, \
                 machine owner keys; {platform}; image: boot loader, kernel; pinned: 4"
            )
        );
        assert_eq!(
            grub(&[boot, commands, files, keys]),
            format!(
                "not known: root file system; first boot: system extensions; {platform}; image: boot \
                 loader, kernel, initramfs, command line, machine owner keys; pinned: 4, 8, 9, 14"
            )
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
        let told = told(exactly(&[4, 14]), &stating(&GRUB));
        let gaps = "NOT covered: initramfs, command line, system extensions, root file system; ";
        assert!(told.starts_with(gaps) && told.ends_with("; pinned: 4, 14"), "{told}");
    }
}
