use crate::attest::{PinnedPcrs, Tee, VerifiedEvidence};
use crate::boot::{BootState, BootStates, LiveImages, Pins};
use crate::digest::Sha256Digest;
use crate::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use crate::pcr::{PCR_COUNT, PcrIndex, PcrValues};
use crate::testing::sample;

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
const MOK: PcrIndex = PcrIndex::MOK;
/// Second at which image 2 expires.
const EXPIRY: i64 = 100;

/// Checks the contract of [`BootStates`] with images of which one expires and one is revoked. Asks for the
/// sets in turn, so that cached results of one set must not leak into another.
///
/// # Panics
/// If the contract is broken.
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
    check_pins(states);
}

/// Images that pin different registers, at the same time.
fn check_pins(states: &dyn BootStates) {
    let alone = image(1);
    let keys = |mut image: ApprovedImage, text: &str| {
        let event = ImageEvent::new("EV_IPL", MOK, Sha256Digest::of(text), "Pcr14MokList");
        image.expected.pcrs.push(ExpectedPcr::from_events(MOK, [event]));
        image
    };
    let both = keys(image(2), "keys");
    let mut blind = keys(image(3), "keys of a stranger");
    blind.expected.pcrs.retain(|pcr| pcr.id != PCR4);
    let images = [alone.clone(), both.clone(), blind.clone()];
    let live = LiveImages::at(&images, sample::time(EXPIRY));
    let admitted = |quoted: &PcrValues| Pins::Predicted.admit(states, &live, quoted);
    let other = Some(Sha256Digest::of("other keys"));
    for (boot, image) in [
        (boot_with(&alone, None), Some(&alone)),
        (boot_with(&alone, other), Some(&alone)),
        (boot_with(&both, None), Some(&both)),
        (boot_with(&both, other), None),
        (boot_with(&blind, None), None),
        (boot_with(&image_of(2, 1), None), None),
    ] {
        let found = admitted(&boot);
        let found: Vec<_> = found.iter().flat_map(BootState::images).collect();
        let expected: Vec<_> = image.iter().map(|image| &image.name).collect();
        assert_eq!(found, expected);
    }
    let trouble = Pins::Predicted.trouble(states, &live).unwrap_or_default();
    for image in [&alone, &both, &blind] {
        assert!(trouble.contains(image.name.as_str()), "{} in {trouble}", image.name);
    }
    assert_eq!(Pins::Predicted.shared(&live), PinnedPcrs::boot_manager());
    assert!(Pins::Predicted.any(&live).contains(MOK));
    let listed = Pins::Predicted.values(states, &live, MOK);
    assert_eq!(listed, both.expected.pcr(MOK).map(|expected| expected.value).as_slice());

    // The same programs, approved twice: the image that states less is a state of its own.
    let twins = [keys(alone.clone(), "keys"), ApprovedImage { name: image(4).name, ..alone }];
    let live = LiveImages::at(&twins, sample::time(EXPIRY));
    let [first, second] = &twins;
    for (boot, image) in [(boot_with(first, None), first), (boot_with(first, other), second)] {
        let found = Pins::Predicted.admit(states, &live, &boot);
        let found = found.first().map(|state| state.images().cloned().collect::<Vec<_>>());
        assert_eq!(found, Some(vec![image.name.clone()]));
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
        let other = PinnedPcrs::only(MOK);
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

/// Checks that the lists for policies match what is admitted, register by register.
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

/// An image with its own boot loader and kernel.
fn image(number: u64) -> ApprovedImage {
    image_of(number, number)
}

/// The boot loader of one image with the kernel of another.
fn image_of(loader: u64, kernel: u64) -> ApprovedImage {
    let part = |id: &str, number| {
        let digest = Sha256Digest::of(format!("{id} of {number}"));
        ImageEvent::new("EV_EFI_BOOT_SERVICES_APPLICATION", PCR4, digest, id)
    };
    let parts = [part("Pcr4Shim", loader), part("Pcr4Vmlinuz", kernel)];
    let pcr = ExpectedPcr::from_events(PCR4, parts);
    let mut image = sample::image(loader);
    image.expected = ExpectedPcrs::new(vec![pcr]);
    image
}

fn quoted(pcr4: Sha256Digest) -> PcrValues {
    values([(PCR4, pcr4)])
}

/// Register values after a boot of the image, optionally with another value of PCR 14.
fn boot_with(image: &ApprovedImage, keys: Option<Sha256Digest>) -> PcrValues {
    let expected = image.expected.pcrs.iter().map(|pcr| (pcr.id, pcr.value));
    values(expected.chain(keys.map(|keys| (MOK, keys))))
}

/// The last value for a register wins; zero elsewhere.
fn values(some: impl IntoIterator<Item = (PcrIndex, Sha256Digest)>) -> PcrValues {
    let mut values = [Sha256Digest::ZERO; PCR_COUNT];
    for (pcr, value) in some {
        if let Some(slot) = values.get_mut(pcr.as_usize()) {
            *slot = value;
        }
    }
    PcrValues::new(values)
}

fn boot_of(image: &ApprovedImage) -> VerifiedEvidence {
    let pcr4 = image.expected.pcr(PCR4).map(|expected| expected.value);
    let values = quoted(pcr4.unwrap_or(Sha256Digest::ZERO));
    VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), values)
}
