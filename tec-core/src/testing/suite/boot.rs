use crate::attest::{PinnedPcrs, Tee, VerifiedEvidence};
use crate::boot::{BootState, BootStates, LiveImages};
use crate::digest::Sha256Digest;
use crate::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use crate::pcr::{PCR_COUNT, PcrIndex, PcrValues};
use crate::testing::sample;

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
/// Second at which image 2 expires.
const EXPIRY: i64 = 100;

/// Checks the contract of [`BootStates`] over images of which one expires and one is revoked, with
/// the sets asked for in turns, so that what is remembered of one set must not leak into another.
///
/// # Panics
/// Where the contract is broken.
pub fn boot_states(states: &dyn BootStates) {
    let mut images: Vec<_> = (1..=4).map(image).collect();
    if let Some(second) = images.get_mut(1) {
        second.expires_at = Some(sample::time(EXPIRY));
    }
    let mut after: Vec<_> = images.clone();
    if let Some(third) = after.get_mut(2) {
        third.revoked_at = Some(sample::time(EXPIRY + 1));
    }
    for _ in 0..2 {
        for registry in [&images, &after, &Vec::new()] {
            for now in [EXPIRY - 1, EXPIRY, EXPIRY + 1] {
                let live = LiveImages::at(registry, sample::time(now));
                check_whole_images(states, &live, &images);
                check_values(states, &live);
            }
        }
    }
}

fn check_whole_images(states: &dyn BootStates, live: &LiveImages<'_>, all: &[ApprovedImage]) {
    for image in all {
        let evidence = boot_of(image);
        let admitted = states.admit(live, &evidence.pcrs, PinnedPcrs::only(PCR4));
        let is_live = live.iter().any(|other| other.name == image.name);
        assert_eq!(!admitted.is_empty(), is_live, "{}", image.name);
        if let Some(first) = admitted.first() {
            assert!(!first.is_mixed(), "a whole image comes first");
            assert!(first.images().eq([&image.name]), "it is told by its name");
            let nearest = states.nearest(live, &evidence, PinnedPcrs::only(PCR4));
            assert_eq!(nearest.map(|near| near.state), Some(first.clone()));
        }
        let other = PinnedPcrs::only(PcrIndex::MOK);
        let unsaid = states.admit(live, &evidence.pcrs, other);
        assert!(unsaid.is_empty(), "no image says anything of PCR 14");
    }
    let stranger = boot_of(&image(9));
    let alone = PinnedPcrs::only(PCR4);
    assert!(states.admit(live, &stranger.pcrs, alone).is_empty());
    let nearest = states.nearest(live, &stranger, alone);
    assert_eq!(nearest.is_some(), live.iter().next().is_some());
    assert_eq!(states.trouble(live, alone), None);
}

/// The lists that policies get are what is admitted, register by register.
fn check_values(states: &dyn BootStates, live: &LiveImages<'_>) {
    let values = states.values(live, PCR4);
    assert!(values.is_sorted(), "values are sorted");
    for value in &values {
        let admitted = states.admit(live, &quoted(*value), PinnedPcrs::only(PCR4));
        assert!(!admitted.is_empty(), "{value} is listed and not admitted");
        for image in admitted.iter().flat_map(BootState::images) {
            let named = live.iter().any(|other| other.name == *image);
            assert!(named, "{image} is not live");
        }
    }
    for image in live.iter() {
        let whole = image.expected.pcr(PCR4).map(|expected| expected.value);
        assert!(whole.is_some_and(|value| values.contains(&value)));
    }
    let mut distinct = values.clone();
    distinct.dedup();
    assert_eq!(distinct, values, "each value stands once");
}

/// An image with a boot loader and a kernel of its own.
fn image(number: u64) -> ApprovedImage {
    let part = |id: &str| {
        let digest = Sha256Digest::of(format!("{id} of {number}"));
        ImageEvent::new("EV_EFI_BOOT_SERVICES_APPLICATION", PCR4, digest, id)
    };
    let pcr = ExpectedPcr::from_events(PCR4, [part("Pcr4Shim"), part("Pcr4Vmlinuz")]);
    let mut image = sample::image(number);
    image.expected = ExpectedPcrs::new(vec![pcr]);
    image
}

fn quoted(pcr4: Sha256Digest) -> PcrValues {
    let mut values = [Sha256Digest::ZERO; PCR_COUNT];
    if let Some(value) = values.get_mut(PCR4.as_usize()) {
        *value = pcr4;
    }
    PcrValues::new(values)
}

fn boot_of(image: &ApprovedImage) -> VerifiedEvidence {
    let pcr4 = image.expected.pcr(PCR4).map(|expected| expected.value);
    let values = quoted(pcr4.unwrap_or(Sha256Digest::ZERO));
    VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), values)
}
