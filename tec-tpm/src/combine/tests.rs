mod simulation;

use tec_core::attest::PinnedPcrs;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};

use super::*;
use crate::event_log::{EventKind, EventLog, EventLogBuilder};

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
const PCR7: PcrIndex = PcrIndex::SECURE_BOOT;
const PCR14: PcrIndex = PcrIndex::MOK;

/// An image from lines of register, ID and what is measured (64 digits are a digest).
fn image(lines: &[(PcrIndex, &str, &str)]) -> ExpectedPcrs {
    let event = |(pcr, id, content): &(PcrIndex, &str, &str)| {
        let digest = content.parse().unwrap_or_else(|_| Sha256Digest::of(content));
        ImageEvent::new("E", *pcr, digest, *id)
    };
    let registers: PcrSet = lines.iter().map(|(pcr, ..)| *pcr).collect();
    let pcrs = registers.iter().map(|pcr| ExpectedPcr::from_events(pcr, lines.iter().map(event)));
    ExpectedPcrs::new(pcrs.collect())
}

fn value(image: &ExpectedPcrs, pcr: PcrIndex) -> Sha256Digest {
    image.pcr(pcr).unwrap().value
}

fn sorted(mut values: Vec<Sha256Digest>) -> Vec<Sha256Digest> {
    values.sort_unstable();
    values
}

fn set(pcrs: &[PcrIndex]) -> PcrSet {
    pcrs.iter().copied().collect()
}

fn quoted(values: &[(PcrIndex, Sha256Digest)]) -> PcrValues {
    let mut all = [Sha256Digest::ZERO; PCR_COUNT];
    for (pcr, value) in values {
        all[pcr.as_usize()] = *value;
    }
    PcrValues::new(all)
}

fn chain(shim: &str, grub: &str, kernels: &[&str]) -> ExpectedPcrs {
    let mut lines = vec![
        (PCR4, "Pcr4EfiCall", "call"),
        (PCR4, "Pcr4Separator", "separator"),
        (PCR4, "Pcr4Shim", shim),
        (PCR4, "Pcr4Grub", grub),
    ];
    lines.extend(kernels.iter().map(|kernel| (PCR4, "Pcr4Vmlinuz", *kernel)));
    image(&lines)
}

/// The chain with registers 7 and 14.
fn full(shim: &str, kernel: &str, level: &str, keys: &str) -> ExpectedPcrs {
    let moks = format!("lists of {shim}");
    let authority = format!("authority of {shim} in {keys}");
    image(&[
        (PCR4, "Pcr4EfiCall", "call"),
        (PCR4, "Pcr4Separator", "separator"),
        (PCR4, "Pcr4Shim", shim),
        (PCR4, "Pcr4Grub", "grub"),
        (PCR4, "Pcr4Vmlinuz", kernel),
        (PCR7, "Pcr7SecureBoot", "on"),
        (PCR7, "Pcr7Db", keys),
        (PCR7, "Pcr7Separator", "separator"),
        (PCR7, "Pcr7ShimCert", &authority),
        (PCR7, "Pcr7SbatLevel", level),
        (PCR14, "Pcr14MokList", &moks),
    ])
}

const EFI_CALL: &str = "3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba";
const SEPARATOR: &str = "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119";
const SHIM: &str = "94896c17d49fc8c8df0cc2836611586edab1615ce7cb58cf13fc5798de56b367";
const GRUB_A: &str = "bc6844fc7b59b4f0c7da70a307fc578465411d7a2c34b0f4dc2cc154c873b644";
const KERNEL_A: &str = "72c613f1b4d60dcf51f82f3458cca246580d23150130ec6751ac6fa62c867364";
const GRUB_B: &str = "f45c2c974192366a5391e077c3cbf91e735e86eba2037fd86a1f1501818f73f4";
const KERNEL_B: &str = "f31e645e5e9ed131eea5dca0a18893a21e5625b4a56314fa39587ddc33a7fa91";

fn vector(grub: &str, kernel: &str) -> ExpectedPcrs {
    image(&[
        (PCR4, "Pcr4EfiCall", EFI_CALL),
        (PCR4, "Pcr4Separator", SEPARATOR),
        (PCR4, "Pcr4Shim", SHIM),
        (PCR4, "Pcr4Grub", grub),
        (PCR4, "Pcr4Vmlinuz", kernel),
    ])
}

/// The digests and values from the tests of the existing operator (two Fedora images).
#[test]
fn two_images_give_the_four_known_values() {
    let (a, b) = (vector(GRUB_A, KERNEL_A), vector(GRUB_B, KERNEL_B));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let known = [
        ("ff2b357be4a4bc66be796d4e7b2f1f27077dc89b96220aae60b443bcf4672525", "a"),
        ("37517a1f76c4d5cf615f4690921c732ad31359aac55f3aaf66d65a8ed38655a9", "b"),
        (
            "0c4e52c0bc5d2fedbf83b2fee82664dbe5347a79cfb2cbcb9a37f64211add6e8",
            "bootloader of a + kernel of b",
        ),
        (
            "cc5a5360e64b25718be370ca2056645a9ba9e9bae33df08308d6b8e05b8ebb87",
            "bootloader of b + kernel of a",
        ),
    ];
    let values = known.map(|(value, _)| value.parse().unwrap()).to_vec();
    assert_eq!(combined.values(PCR4), sorted(values));
    for (value, made_by) in known {
        let provenance = combined.provenance(PCR4, &value.parse().unwrap());
        assert_eq!(provenance.len(), 1);
        assert_eq!(provenance[0].to_string(), made_by);
    }
    assert_eq!(combined.undetermined(), []);
}

#[test]
fn one_image_gives_itself_and_none_gives_nothing() {
    let a = vector(GRUB_A, KERNEL_A);
    let one = Combiner::new().combine(&[("a", &a)]).unwrap();
    assert_eq!(one.values(PCR4), [value(&a, PCR4)]);
    assert_eq!(one.provenance(PCR4, &value(&a, PCR4))[0].whole_images(), ["a"]);
    let none = Combiner::new().combine(&[]).unwrap();
    assert!(none.registers().is_empty());
    assert!(none.values(PCR4).is_empty());
}

#[test]
fn a_kernel_that_is_measured_twice_moves_as_one() {
    let a = chain("shim", "grub 2.06 a", &["kernel a", "kernel a"]);
    let b = chain("shim", "grub 2.06 b", &["kernel b", "kernel b"]);
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let mixes = [
        chain("shim", "grub 2.06 a", &["kernel b", "kernel b"]),
        chain("shim", "grub 2.06 b", &["kernel a", "kernel a"]),
    ];
    let expected = [&a, &b, &mixes[0], &mixes[1]].map(|i| value(i, PCR4)).to_vec();
    assert_eq!(combined.values(PCR4), sorted(expected));
}

/// Upgrading from Debian 12 to 13: the old GRUB causes every kernel to be measured twice, the new
/// one once.
#[test]
fn the_loader_decides_how_often_a_kernel_is_measured() {
    let old = chain("shim", "grub 2.06", &["linux 6.1", "linux 6.1"]);
    let new = chain("shim", "grub 2.12", &["linux 6.12"]);
    let combined = Combiner::new().combine(&[("12", &old), ("13", &new)]).unwrap();
    let mixes = [
        chain("shim", "grub 2.06", &["linux 6.12", "linux 6.12"]),
        chain("shim", "grub 2.12", &["linux 6.1"]),
    ];
    let expected = [&old, &new, &mixes[0], &mixes[1]].map(|i| value(i, PCR4)).to_vec();
    assert_eq!(combined.values(PCR4), sorted(expected));
}

/// Without Secure Boot, kernels are measured under GRUB 2.14 but not under 2.12; the digest of the
/// old kernel is found nowhere.
#[test]
fn a_kernel_that_was_never_measured_is_not_guessed() {
    let old = chain("shim", "grub 2.12", &[]);
    let new = chain("shim", "grub 2.14", &["linux 7.2"]);
    let combined = Combiner::new().combine(&[("13", &old), ("sid", &new)]).unwrap();
    let expected = vec![value(&old, PCR4), value(&new, PCR4)];
    assert_eq!(combined.values(PCR4), sorted(expected));
    let undetermined = combined.undetermined();
    assert_eq!(undetermined.len(), 1);
    assert_eq!(undetermined[0].reason, Reason::NotMeasured);
    assert_eq!(undetermined[0].state.to_string(), "bootloader of sid + kernel of 13");
}

#[test]
fn three_images_mix_in_one_state_when_the_loaders_are_separate() {
    let images = ["a", "b", "c"].map(|n| chain(&format!("shim {n}"), &format!("grub {n}"), &[n]));
    let named = [("a", &images[0]), ("b", &images[1]), ("c", &images[2])];
    let unit = Combiner::new().combine(&named).unwrap();
    assert_eq!(unit.values(PCR4).len(), 9);
    let split = Grouping::new(Loaders::Separate, MokLists::FollowShim);
    let split = Combiner::new().with_grouping(split).combine(&named).unwrap();
    assert_eq!(split.values(PCR4).len(), 27);
    let mixed = value(&chain("shim a", "grub b", &["c"]), PCR4);
    let made_by = &split.provenance(PCR4, &mixed)[0];
    assert_eq!(made_by.to_string(), "shim of a + GRUB of b + kernel of c");
}

#[test]
fn registers_of_one_loader_occur_only_together() {
    let level = "sbat,1,2021030218\n";
    let (a, b) = (full("shim a", "kernel a", level, "db"), full("shim b", "kernel b", level, "db"));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let counts = [PCR4, PCR7, PCR14].map(|pcr| combined.values(pcr).len());
    assert_eq!(counts, [4, 2, 2]);
    let joint = combined.joint(set(&[PCR4, PCR7, PCR14])).unwrap();
    assert_eq!(joint.len(), 4, "not 4 times 2 times 2");
    assert!(joint.iter().map(|state| &state.values).is_sorted());
    assert!(joint.iter().any(|state| state.made_by[0].to_string() == "a"));
}

#[test]
fn owner_key_lists_of_captured_files_may_come_with_any_loader() {
    let level = "sbat,1,2021030218\n";
    let (a, b) = (full("shim a", "kernel", level, "db"), full("shim b", "kernel", level, "db"));
    let grouping = Grouping::new(Loaders::OneUnit, MokLists::Independent);
    let combiner = Combiner::new().with_grouping(grouping);
    let combined = combiner.combine(&[("a", &a), ("b", &b)]).unwrap();
    assert_eq!(combined.joint(set(&[PCR4, PCR14])).unwrap().len(), 4);
}

/// The authority that vouches for a shim is unknown for keys with which the shim was never seen.
#[test]
fn an_authority_of_new_keys_is_undetermined_unless_all_agree() {
    let level = "sbat,1,2021030218\n";
    let (a, b) = (full("shim a", "kernel", level, "db 1"), full("shim b", "kernel", level, "db 2"));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let expected = vec![value(&a, PCR7), value(&b, PCR7)];
    assert_eq!(combined.values(PCR7), sorted(expected));
    let reasons: Vec<_> = combined.undetermined().iter().map(|u| u.reason).collect();
    assert_eq!(reasons, [Reason::Entangled, Reason::Entangled]);
}

fn levels() -> SbatLevels {
    // The tests measure the plain texts.
    SbatLevels::of_digests([
        (Sha256Digest::of("2021"), 2021),
        (Sha256Digest::of("2023"), 2023),
        (Sha256Digest::of("2025"), 2025),
    ])
}

#[test]
fn a_stored_level_only_rises() {
    let (a, b) = (full("a", "kernel", "2021", "db"), full("b", "kernel", "2023", "db"));
    let combiner = Combiner::new().with_sbat_levels(levels());
    let combined = combiner.combine(&[("a", &a), ("b", &b)]).unwrap();
    let back = image(&[
        (PCR7, "Pcr7SecureBoot", "on"),
        (PCR7, "Pcr7Db", "db"),
        (PCR7, "Pcr7Separator", "separator"),
        (PCR7, "Pcr7ShimCert", "authority of a in db"),
        (PCR7, "Pcr7SbatLevel", "2023"),
    ]);
    let expected = [&a, &b, &back].map(|i| value(i, PCR7)).to_vec();
    assert_eq!(combined.values(PCR7), sorted(expected));
    let made_by = &combined.provenance(PCR7, &value(&back, PCR7))[0];
    assert_eq!(made_by.to_string(), "bootloader of a + SbatLevel of b");
    assert_eq!(combined.undetermined(), []);
}

#[test]
fn a_level_that_machines_have_stored_counts_without_an_image() {
    let a = full("a", "kernel", "2021", "db");
    let levels = levels().with_stored_digest(Sha256Digest::of("2025"));
    let combined = Combiner::new().with_sbat_levels(levels).combine(&[("a", &a)]).unwrap();
    let values = combined.values(PCR7);
    assert_eq!(values.len(), 2);
    let stored = values.iter().find(|v| **v != value(&a, PCR7)).unwrap();
    let made_by = &combined.provenance(PCR7, stored)[0];
    assert_eq!(made_by.to_string(), "bootloader of a + SbatLevel of no image");
}

#[test]
fn levels_of_unknown_order_do_not_rise() {
    let (a, b) = (full("a", "kernel", "odd", "db"), full("b", "kernel", "even", "db"));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    assert_eq!(combined.values(PCR7).len(), 2);
    let reasons: Vec<_> = combined.undetermined().iter().map(|u| u.reason).collect();
    assert_eq!(reasons, [Reason::LevelOrder, Reason::LevelOrder]);
}

#[test]
fn chains_of_another_sort_are_not_mixed() {
    let uki = image(&[
        (PCR4, "Pcr4EfiCall", "call"),
        (PCR4, "Pcr4Separator", "separator"),
        (PCR4, "Pcr4Uki", "uki"),
    ]);
    let grub = chain("shim", "grub", &["kernel"]);
    let combined = Combiner::new().combine(&[("uki", &uki), ("grub", &grub)]).unwrap();
    assert_eq!(combined.values(PCR4), sorted(vec![value(&uki, PCR4), value(&grub, PCR4)]));
}

#[test]
fn a_unified_kernel_image_brings_its_add_ons_along() {
    let image = |shim: &str, uki: &[&str]| {
        let mut lines = vec![(PCR4, "Pcr4Separator", "s"), (PCR4, "Pcr4Shim", shim)];
        lines.extend(uki.iter().map(|part| (PCR4, "Pcr4Uki", *part)));
        super::tests::image(&lines)
    };
    let (a, b) = (image("shim a", &["uki a"]), image("shim b", &["uki b", "add-on"]));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let mixes = [image("shim a", &["uki b", "add-on"]), image("shim b", &["uki a"])];
    let expected = [&a, &b, &mixes[0], &mixes[1]].map(|i| value(i, PCR4)).to_vec();
    assert_eq!(combined.values(PCR4), sorted(expected));
}

#[test]
fn images_with_and_without_enforcement_are_not_mixed() {
    let off = "115aa827dbccfb44d216ad9ecfda56bdea620b860a94bed5b7a27bba1c4d02d8";
    let image = |shim: &str, kernel: &str, state: &str| {
        image(&[
            (PCR4, "Pcr4Shim", shim),
            (PCR4, "Pcr4Vmlinuz", kernel),
            (PCR7, "Pcr7SecureBoot", state),
        ])
    };
    let (a, b) = (image("shim a", "kernel a", "on"), image("shim b", "kernel b", off));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    assert_eq!(combined.values(PCR4).len(), 2);
    let unknown = chain("shim c", "grub", &["kernel c"]);
    let all = [("a", &a), ("b", &b), ("c", &unknown)];
    let combined = Combiner::new().combine(&all).unwrap();
    assert!(combined.values(PCR4).len() > 3, "an image that does not say mixes with both");
}

/// The last number of an ID stands for what an image does not state.
#[test]
fn more_ids_than_are_numbered_are_refused() {
    let of = |count: usize| {
        let event = |id: usize| ImageEvent::new("E", PCR4, Sha256Digest::ZERO, id.to_string());
        let events = (0..count).map(event);
        ExpectedPcrs::new(vec![ExpectedPcr::from_events(PCR4, events)])
    };
    let combine = |image: &ExpectedPcrs| Combiner::new().combine(&[("a", image)]).map(drop);
    assert_eq!(combine(&of(65_535)), Ok(()));
    assert_eq!(combine(&of(65_536)), Err(CombineError::TooManyComponents));
}

#[test]
fn an_image_whose_events_do_not_fold_is_refused() {
    let mut a = vector(GRUB_A, KERNEL_A);
    a.pcrs[0].value = Sha256Digest::ZERO;
    let error = Combiner::new().combine(&[("a", &a)]).unwrap_err();
    assert_eq!(error, CombineError::Inconsistent { image: "a".to_owned(), pcr: PCR4 });
    let mut twice = vector(GRUB_A, KERNEL_A);
    twice.pcrs.push(twice.pcrs[0].clone());
    let error = Combiner::new().combine(&[("a", &twice)]).unwrap_err();
    assert!(matches!(error, CombineError::RepeatedRegister { .. }));
}

#[test]
fn a_mixed_state_is_admitted_and_registers_of_two_loaders_are_not() {
    let level = "sbat,1,2021030218\n";
    let (a, b) = (full("shim a", "kernel a", level, "db"), full("shim b", "kernel b", level, "db"));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let mixed = value(&full("shim b", "kernel a", level, "db"), PCR4);
    let pinned = PinnedPcrs::new(set(&[PCR4, PCR14])).unwrap();

    let state = quoted(&[(PCR4, mixed), (PCR14, value(&b, PCR14))]);
    let admitted = combined.admit(&state, pinned);
    assert_eq!(admitted[0].to_string(), "bootloader of b + kernel of a");

    let impossible = quoted(&[(PCR4, mixed), (PCR14, value(&a, PCR14))]);
    assert!(combined.admit(&impossible, pinned).is_empty(), "not together");

    let unknown = quoted(&[(PCR4, mixed)]);
    assert!(combined.admit(&unknown, pinned).is_empty(), "no state has this value of PCR 14");
}

#[test]
fn a_value_alone_tells_what_made_it() {
    let (a, b) =
        (chain("shim a", "grub a", &["kernel a"]), chain("shim b", "grub b", &["kernel b"]));
    let catalog = Catalog::new(&[("a", &a), ("b", &b)]).unwrap();
    let ask = |made: &ExpectedPcrs| catalog.value(PCR4, &value(made, PCR4));
    let by = |made: &ExpectedPcrs| match ask(made).made.as_slice() {
        [Made::By(provenance)] => provenance.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(&a).liberty, Some(Liberty::Image));
    let fleet = chain("shim a", "grub a", &["kernel b"]);
    assert_eq!(ask(&fleet).liberty, Some(Liberty::Fleet));
    assert_eq!(by(&fleet), "bootloader of a + kernel of b");
    let split = chain("shim a", "grub b", &["kernel b"]);
    assert_eq!(ask(&split).liberty, Some(Liberty::SplitUnits));
    assert_eq!(by(&split), "shim of a + GRUB and kernel of b");
    let loose = chain("shim a", "grub b", &["kernel a", "kernel a"]);
    let found = ask(&loose);
    assert_eq!(found.liberty, Some(Liberty::Loose));
    let [Made::From(sequence)] = found.made.as_slice() else {
        panic!("{found:?}");
    };
    let (kernel, times) = sequence.last().unwrap();
    assert_eq!(
        (kernel[0].image.as_str(), kernel[0].component.as_str(), *times),
        ("a", "Pcr4Vmlinuz", 2)
    );
    let unknown = ask(&chain("shim c", "grub a", &[]));
    assert_eq!((unknown.liberty, unknown.exhaustive), (None, true));
}

#[test]
fn events_of_a_log_are_told_by_image_or_by_what_every_firmware_measures() {
    let (a, b) = (chain("shim", "grub a", &["kernel a"]), chain("shim", "grub b", &["kernel b"]));
    let catalog = Catalog::new(&[("a", &a), ("b", &b)]).unwrap();
    let bytes = EventLogBuilder::new()
        .startup_locality(3)
        .measure(PCR4, EventKind::SEPARATOR, &[1, 0, 0, 0])
        .image(Sha256Digest::of("shim"), "\\EFI\\BOOT\\BOOTX64.EFI")
        .image(Sha256Digest::of("kernel b"), "")
        .image(Sha256Digest::of("evil"), "")
        .measure_digest(PCR14, EventKind::IPL, Sha256Digest::of("shim"), b"elsewhere")
        .build();
    let found = catalog.log(&EventLog::parse(&bytes).unwrap());
    let told: Vec<_> = found
        .iter()
        .map(|event| {
            let known = event.known_as.iter();
            let known = known.map(|k| format!("{} of {}", k.component, k.image));
            let known = known.collect::<Vec<_>>().join(", ");
            event.well_known.map_or(known, str::to_owned)
        })
        .collect();
    // Events that extend nothing are omitted; a digest only counts in its own register.
    assert_eq!(
        told,
        ["separator after an error", "Pcr4Shim of a, Pcr4Shim of b", "Pcr4Vmlinuz of b", "", "",]
    );
}
