use super::*;
use crate::attest::{LogEvidence, Tee};
use crate::boot::WholeImages;
use crate::digest::Sha256Digest;
use crate::image::{ExpectedPcr, ExpectedPcrs};
use crate::pcr::{PCR_COUNT, PcrValues};
use crate::testing::sample;

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
const PCR14: PcrIndex = PcrIndex::MOK;

/// What is measured, by component; the digest is that of the text.
type Chain<'a> = &'a [(PcrIndex, &'a str, &'a str)];

fn image(name: &str, chain: Chain<'_>) -> ApprovedImage {
    let event = |(pcr, id, text): &(PcrIndex, &str, &str)| {
        ImageEvent::new("E", *pcr, Sha256Digest::of(text), *id).from_file(format!("boot/{text}"))
    };
    let pcrs =
        [PCR4, PCR14].map(|pcr| ExpectedPcr::from_events(pcr, chain.iter().map(event))).to_vec();
    let name = name.parse().unwrap();
    ApprovedImage::new(name, "dir", ExpectedPcrs::new(pcrs), sample::time(1))
}

fn boot(chain: Chain<'_>) -> VerifiedEvidence {
    let mut values = [Sha256Digest::ZERO; PCR_COUNT];
    let mut events = Vec::new();
    for (number, (pcr, _, text)) in (0..).zip(chain) {
        let digest = Sha256Digest::of(text);
        let value = &mut values[pcr.as_usize()];
        *value = value.extended(&digest);
        events.push(LoggedEvent::new(number, *pcr, digest, "EV", None));
    }
    let key = sample::public_key(1);
    let mut evidence = VerifiedEvidence::new(Tee::Tpm, key, PcrValues::new(values));
    evidence.log = LogEvidence::Parsed { events, replayed: PcrIndex::all().collect(), cut: None };
    evidence
}

fn both() -> Pins {
    PinnedPcrs::new([PCR4, PCR14].into_iter().collect()).unwrap().into()
}

fn refused(evidence: &VerifiedEvidence, images: &[ApprovedImage]) -> PcrMismatch {
    let now = sample::time(100);
    *explain_pcrs(evidence, images, both(), now, &WholeImages).unwrap_err()
}

const OLD: Chain<'static> = &[
    (PCR4, "Pcr4Shim", "shim 1"),
    (PCR4, "Pcr4Vmlinuz", "kernel 1"),
    (PCR14, "Pcr14MokList", "list 1"),
];
const NEW: Chain<'static> = &[
    (PCR4, "Pcr4Shim", "shim 2"),
    (PCR4, "Pcr4Vmlinuz", "kernel 2"),
    (PCR14, "Pcr14MokList", "list 2"),
];

#[test]
fn the_image_with_the_fewest_differing_components_is_compared() {
    let chain = [NEW[0], (PCR4, "Pcr4Vmlinuz", "evil"), NEW[2]];
    let told = refused(&boot(&chain), &[image("old", OLD), image("new", NEW)]);
    assert_eq!(told.closest.as_ref().unwrap().to_string(), "new");
    assert_eq!(told.pcr, PCR4);
    assert_eq!(told.others, []);
    assert_eq!(told.summary(), "PCR 4: kernel (boot/kernel 2) differs");
}

#[test]
fn each_register_that_differs_is_told_with_its_component() {
    let chain = [NEW[0], (PCR14, "Pcr14MokList", "list of nobody")];
    let told = refused(&boot(&chain), &[image("new", NEW)]);
    let [other] = told.others.as_slice() else {
        panic!("{:?}", told.others);
    };
    assert_eq!((told.pcr, other.pcr, other.events.len()), (PCR4, PCR14, 1));
    assert_eq!(
        told.summary(),
        "PCR 4: kernel (boot/kernel 2) was not measured; PCR 14: machine owner keys (boot/list 2) \
         differs"
    );
    let json = serde_json::to_value(&told).unwrap();
    assert_eq!(serde_json::from_value::<PcrMismatch>(json).unwrap(), told);
}

#[test]
fn registers_that_do_not_occur_together_are_told_one_by_one() {
    let chain = [OLD[0], OLD[1], NEW[2]];
    let told = refused(&boot(&chain), &[image("old", OLD), image("new", NEW)]);
    assert_eq!(told.pcr, PCR14, "PCR 4 is that of the closest image");
    assert_eq!(
        told.summary(),
        "PCR 14: machine owner keys (boot/list 1) differs; PCR 4 of old, PCR 14 of new do not occur \
         together"
    );
}

#[test]
fn a_component_of_an_image_that_ended_is_told_as_such() {
    let mut old = image("old", OLD);
    old.revoked_at = Some(sample::time(50));
    let chain = [NEW[0], OLD[1], NEW[2]];
    let told = refused(&boot(&chain), &[image("new", NEW), old.clone()]);
    assert_eq!(
        told.summary(),
        "PCR 4: kernel (boot/kernel 2) is that of old, whose approval expired or was revoked"
    );
    let told = refused(&boot(OLD), &[image("new", NEW), old]);
    assert_eq!(told.closest.as_ref().unwrap().to_string(), "old");
    assert!(told.ended.unwrap().starts_with("old was revoked at"));
}

#[test]
fn what_was_measured_besides_or_not_at_all_is_told() {
    let images = [image("old", OLD)];
    let twice = [OLD[0], OLD[1], OLD[1], OLD[2]];
    let told = refused(&boot(&twice), &images);
    assert_eq!(told.summary(), "PCR 4: kernel was measured in addition");
    let stranger = [OLD[0], (PCR4, "", "driver"), OLD[1], OLD[2]];
    let told = refused(&boot(&stranger), &images);
    assert!(told.summary().contains("that is in no image"));
    assert!(told.events.iter().all(|event| event.expected.is_none()));
    let without = [OLD[0], OLD[2]];
    let told = refused(&boot(&without), &images);
    assert_eq!(told.summary(), "PCR 4: kernel (boot/kernel 1) was not measured");
}

#[test]
fn without_a_log_the_first_differing_register_is_told() {
    let mut evidence = boot(&[OLD[0], OLD[1], (PCR14, "", "list 3")]);
    evidence.log = LogEvidence::Absent;
    let told = refused(&evidence, &[image("new", NEW), image("old", OLD)]);
    assert_eq!((told.pcr, told.events.len()), (PCR14, 0));
    assert_eq!(told.closest.as_ref().unwrap().to_string(), "old");
}

#[test]
fn without_images_everything_is_refused() {
    let told = refused(&boot(OLD), &[]);
    assert_eq!((told.closest, told.pcr), (None, PCR4));
    assert_eq!(told.apart, []);
}

#[test]
fn refusals_of_earlier_versions_are_read() {
    let old = serde_json::json!({
        "pcr": 4, "quoted": Sha256Digest::ZERO, "closest": "old", "events": [], "others": [14],
    });
    let told: PcrMismatch = serde_json::from_value(old).unwrap();
    assert_eq!(told.closest.unwrap().to_string(), "old");
}
