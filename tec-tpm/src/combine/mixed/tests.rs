use tec_core::attest::{LogEvidence, LoggedEvent, Tee};
use tec_core::boot::Pins;
use tec_core::explain::{PcrMismatch, explain_pcrs};
use tec_core::image::ApprovedImage;
use tec_core::pcr::PCR_COUNT;
use tec_core::testing;
use tec_core::testing::sample;

use super::*;
use crate::combine::{Grouping, Loaders, MokLists};

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
const PCR14: PcrIndex = PcrIndex::MOK;

/// What a machine boots, given the image name of each part.
#[derive(Clone, Copy)]
struct Chain<'a> {
    shim: &'a str,
    grub: &'a str,
    kernel: &'a str,
    keys: &'a str,
}

fn of(image: &str) -> Chain<'_> {
    Chain { shim: image, grub: image, kernel: image, keys: image }
}

impl Chain<'_> {
    fn events(&self) -> Vec<ImageEvent> {
        let event = |pcr, id: &str, text: String| {
            ImageEvent::new("E", pcr, Sha256Digest::of(&text), id).from_file(text)
        };
        vec![
            event(PCR4, "Pcr4Shim", format!("shim {}", self.shim)),
            event(PCR4, "Pcr4Grub", format!("grub {}", self.grub)),
            event(PCR4, "Pcr4Vmlinuz", format!("kernel {}", self.kernel)),
            event(PCR14, "Pcr14MokList", format!("keys {}", self.keys)),
        ]
    }

    fn expected(&self) -> ExpectedPcrs {
        let fold = |pcr| ExpectedPcr::from_events(pcr, self.events());
        ExpectedPcrs::new(vec![fold(PCR4), fold(PCR14)])
    }

    fn boot(&self) -> VerifiedEvidence {
        let mut values = [Sha256Digest::ZERO; PCR_COUNT];
        for expected in self.expected().pcrs {
            values[expected.id.as_usize()] = expected.value;
        }
        let key = sample::public_key(1);
        let mut evidence = VerifiedEvidence::new(Tee::Tpm, key, PcrValues::new(values));
        let logged =
            |(number, e): (u32, ImageEvent)| LoggedEvent::new(number, e.pcr, e.hash, "EV", None);
        evidence.log = LogEvidence::Parsed {
            events: (0..).zip(self.events()).map(logged).collect(),
            replayed: PcrIndex::all().collect(),
            cut: None,
        };
        evidence
    }
}

fn image(name: &str) -> ApprovedImage {
    let expected = of(name).expected();
    ApprovedImage::new(name.parse().unwrap(), "dir", expected, sample::time(1))
}

fn both() -> Pins {
    PinnedPcrs::new([PCR4, PCR14].into_iter().collect()).unwrap().into()
}

fn explain(
    chain: Chain<'_>,
    images: &[ApprovedImage],
    seconds: i64,
) -> Result<BootState, Box<PcrMismatch>> {
    let (now, states) = (sample::time(seconds), MixedStates::default());
    explain_pcrs(&chain.boot(), images, both(), now, &states).map(|explained| explained.booted)
}

#[test]
fn mixed_states_conform() {
    testing::boot_states(&MixedStates::default());
    let split = Grouping::new(Loaders::Separate, MokLists::Independent);
    testing::boot_states(&MixedStates::new(Combiner::new().with_grouping(split)));
}

#[test]
fn a_mix_is_told_by_part_register_and_image() {
    let images = [image("old"), image("new")];
    let chain = Chain { kernel: "old", ..of("new") };
    let state = explain(chain, &images, 10).unwrap();
    let json = serde_json::to_value(&state).unwrap();
    let expected = serde_json::json!({"parts": [
        {"components": ["bootloader"], "pcrs": [4, 14], "images": ["new"]},
        {"components": ["kernel"], "pcrs": [4], "images": ["old"]},
    ]});
    assert_eq!(json, expected);
    let whole = explain(of("new"), &images, 10).unwrap();
    assert_eq!(whole, BootState::whole(["new".parse().unwrap()], [PCR4, PCR14]));
}

#[test]
fn a_mix_ends_with_the_approval_of_any_of_its_images() {
    let chain = Chain { kernel: "old", ..of("new") };
    for ending in ["old", "new"] {
        let mut images = [image("old"), image("new")];
        let ends = images.iter_mut().find(|i| i.name.as_str() == ending);
        ends.unwrap().expires_at = Some(sample::time(50));
        assert!(explain(chain, &images, 49).is_ok());
        assert!(explain(chain, &images, 50).is_err(), "without {ending}");

        let mut images = [image("old"), image("new")];
        let ends = images.iter_mut().find(|i| i.name.as_str() == ending);
        ends.unwrap().revoked_at = Some(sample::time(50));
        assert!(explain(chain, &images, 10).is_err(), "without {ending}");
    }
}

#[test]
fn a_component_that_a_live_image_has_too_outlives_the_other_approval() {
    let mut twin = image("twin");
    twin.expected = Chain { shim: "new", ..of("old") }.expected();
    let mut images = [image("old"), image("new"), twin];
    images[0].revoked_at = Some(sample::time(50));
    let chain = Chain { kernel: "old", ..of("new") };
    let state = explain(chain, &images, 60).unwrap();
    assert_eq!(state.to_string(), "bootloader of new + kernel of twin");
}

#[test]
fn a_refusal_is_told_against_the_nearest_mix() {
    let images = [image("old"), image("new"), image("other")];
    // The boot loader of one image, the kernel of another, and a list of keys from no image.
    let chain = Chain { kernel: "old", keys: "nobody", ..of("new") };
    let told = explain(chain, &images, 10).unwrap_err();
    let closest = told.closest.as_ref().unwrap().to_string();
    assert_eq!(closest, "bootloader of new + kernel of old");
    assert_eq!((told.pcr, told.others.len()), (PCR14, 0));
    assert_eq!(told.summary(), "PCR 14: machine owner keys (keys new) differs");
}

#[test]
fn a_pair_that_cannot_occur_is_refused_and_told_as_such() {
    let images = [image("old"), image("new")];
    let chain = Chain { kernel: "old", keys: "old", ..of("new") };
    let told = explain(chain, &images, 10).unwrap_err();
    assert_eq!(
        told.summary(),
        "PCR 14: machine owner keys (keys new) differs; PCR 4 of bootloader of new + kernel of old, PCR \
         14 of old do not occur together"
    );
    // shim and GRUB are updated as one unit.
    let chain = Chain { grub: "old", ..of("new") };
    let told = explain(chain, &images, 10).unwrap_err();
    assert_eq!(told.summary(), "PCR 4: GRUB (grub new) differs");
    assert_eq!(told.events[1].known_as[0].image.as_str(), "old");
}

#[test]
fn without_a_log_the_nearest_state_is_that_of_the_most_values() {
    let images = [image("old"), image("new")];
    let mut evidence = Chain { kernel: "old", keys: "nobody", ..of("new") }.boot();
    evidence.log = LogEvidence::Absent;
    let states = MixedStates::default();
    let now = sample::time(10);
    let told = explain_pcrs(&evidence, &images, both(), now, &states).unwrap_err();
    let closest = told.closest.as_ref().unwrap().to_string();
    assert_eq!(closest, "bootloader of new + kernel of old");
    assert_eq!((told.pcr, told.events.len()), (PCR14, 0));
}

#[test]
fn states_that_cannot_be_known_are_refused_and_said_to_be_so() {
    let without_kernel = |name: &str| {
        let mut expected = of(name).expected();
        let events = expected.pcrs[0].events.clone().into_iter().take(2);
        expected.pcrs[0] = ExpectedPcr::from_events(PCR4, events);
        expected
    };
    let mut old = image("old");
    old.expected = without_kernel("old");
    let images = [old, image("new")];
    let chain = Chain { kernel: "old", ..of("new") };
    let told = explain(chain, &images, 10).unwrap_err();
    let trouble = told.trouble.unwrap();
    assert!(
        trouble.starts_with("PCR 4 of bootloader of new + kernel of old is not known"),
        "{trouble}"
    );
}

#[test]
fn images_that_cannot_be_combined_count_as_they_come() {
    let mut odd = image("odd");
    odd.expected.pcrs.push(odd.expected.pcrs[0].clone());
    let images = [image("old"), image("new"), odd];
    assert!(explain(of("old"), &images, 10).is_ok());
    let chain = Chain { kernel: "old", ..of("new") };
    let told = explain(chain, &images, 10).unwrap_err();
    assert!(told.trouble.unwrap().contains("image odd has two entries"));
    let live = LiveImages::at(&images, sample::time(10));
    assert_eq!(MixedStates::default().values(&live, PCR14).len(), 3);
}

#[test]
fn a_combination_is_computed_once_for_a_set_and_anew_for_another() {
    let states = MixedStates::default();
    let mut images = [image("old"), image("new")];
    images[0].expires_at = Some(sample::time(50));
    let at = |images: &[ApprovedImage], seconds| {
        states.of(&LiveImages::at(images, sample::time(seconds)))
    };
    let first = at(&images, 1);
    assert!(Arc::ptr_eq(&first, &at(&images, 49)));
    assert!(!Arc::ptr_eq(&first, &at(&images, 50)), "it expired");
    let second = at(&images, 1);
    images[1].expected = of("newer").expected();
    assert!(!Arc::ptr_eq(&second, &at(&images, 1)), "it was replaced");
}
