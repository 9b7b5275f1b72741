//! States between two images, with a policy that knows exactly one.

use tec_core::attest::{LogEvidence, LoggedEvent, VerifiedEvidence};
use tec_core::boot::{BootPart, BootState, BootStates, LiveImages, NearState, Pins, WholeImages};
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ImageEvent};
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrValues};

use super::*;
use crate::policy::pcr_reference_name;

/// In addition to whole images, what image 3 would measure is the boot loader of image 1 with the kernel of
/// image 2.
#[derive(Debug)]
struct OneMix;

impl OneMix {
    fn mix(live: &LiveImages<'_>) -> Option<(Sha256Digest, BootState)> {
        let (one, two) = (sample::image_name(1), sample::image_name(2));
        let is_live = |name| live.iter().any(|image| image.name == name);
        let part = |component: &str, image| {
            let pcrs = [PcrIndex::BOOT_MANAGER];
            BootPart::new(vec![component.to_owned()], pcrs, vec![image])
        };
        let state =
            BootState::mixed(vec![part("bootloader", one.clone()), part("kernel", two.clone())]);
        let value = sample::image(3).expected.pcrs[0].value;
        (is_live(one) && is_live(two)).then_some((value, state))
    }
}

impl BootStates for OneMix {
    fn admit(
        &self,
        live: &LiveImages<'_>,
        quoted: &PcrValues,
        pinned: PinnedPcrs,
    ) -> Vec<BootState> {
        let mut states = WholeImages.admit(live, quoted, pinned);
        let mix = Self::mix(live).filter(|(v, _)| v == quoted.value(PcrIndex::BOOT_MANAGER));
        states.extend(mix.map(|(_, state)| state));
        states
    }

    fn values(&self, live: &LiveImages<'_>, pcr: PcrIndex) -> Vec<Sha256Digest> {
        let mut values = WholeImages.values(live, pcr);
        values.extend(Self::mix(live).map(|(value, _)| value));
        values.sort_unstable();
        values
    }

    fn nearest(
        &self,
        live: &LiveImages<'_>,
        evidence: &VerifiedEvidence,
        pinned: PinnedPcrs,
    ) -> Option<NearState> {
        WholeImages.nearest(live, evidence, pinned)
    }

    fn trouble(&self, _: &LiveImages<'_>, _: PinnedPcrs) -> Option<String> {
        None
    }
}

/// A world of images 1 and 2 with a machine between them.
async fn world() -> World {
    let mut world = World::new().await;
    let backend = live_of(&world).with_states(Arc::new(OneMix));
    world.kbs = Kbs::new(config(Arc::new(backend), &world.clock));
    world.attester = FakeAttester::new(1, 3);
    let images: &dyn ImageRegistry = &*world.registry;
    images.put(&sample::image(2)).await.unwrap();
    world
}

#[tokio::test]
async fn the_policies_get_every_value_and_the_audit_log_names_the_mix() {
    let world = world().await;
    let cookie = attest(&world).await;
    let answer = get(&own_path()).cookie(&cookie).of(&world.kbs).await;
    assert_eq!(answer.status, StatusCode::OK);
    let told = "boot between images: bootloader of image-0001 + kernel of image-0002";
    let events = world.registry.events();
    assert!(events.last().unwrap().subject.contains(told), "{events:?}");
    let attempts: &dyn AttemptLog = &*world.registry;
    let attempt = attempts.latest(None, 1).await.unwrap().remove(0);
    let booted = attempt.booted.unwrap();
    assert!(booted.is_mixed());
    assert_eq!(booted.sentence(), told);
}

#[tokio::test]
async fn a_mix_is_refused_as_soon_as_one_of_its_images_is_revoked() {
    for number in [1, 2] {
        let world = world().await;
        let cookie = attest(&world).await;
        let images: &dyn ImageRegistry = &*world.registry;
        let image = sample::image_name(number);
        images.revoke(&image, &sample::line_at(1000)).await.unwrap();
        denied_after(&world, &cookie, Code::PcrMismatch).await;
        let (_, answer) = attest_with(&world, &world.attester).await;
        let token = answer.json()["token"].as_str().unwrap().to_owned();
        let payload = token.split('.').nth(1).unwrap();
        let claims = URL_SAFE_NO_PAD.decode(payload).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        assert_ne!(claims["submods"]["cpu0"]["ear.status"], "affirming");
    }
}

#[tokio::test]
async fn a_register_counts_that_only_the_image_predicts_and_no_policy_names() {
    let mut world = World::new().await;
    let backend = live_of(&world).with_pins(Pins::Predicted);
    world.kbs = Kbs::new(config(Arc::new(backend), &world.clock));
    let cookie = attest(&world).await;
    let mut image = sample::image(1);
    let keys = ImageEvent::new("E", PcrIndex::MOK, Sha256Digest::of("keys"), "Pcr14MokList");
    image.expected.pcrs.push(ExpectedPcr::from_events(PcrIndex::MOK, [keys]));
    let images: &dyn ImageRegistry = &*world.registry;
    images.put(&image).await.unwrap();
    denied_after(&world, &cookie, Code::PcrMismatch).await;
}

/// The value that policies are asked about is the quoted one; what the machine booted is another.
#[tokio::test]
async fn the_policies_get_a_quoted_value_that_differs_by_words_of_systemd_alone() {
    let world = World::new().await;
    let backend = live_of(&world);
    let stated = sample::image(1).expected.pcrs[0].value;
    for (word, is_listed) in [("os-separator", true), ("implant", false)] {
        let quoted = stated.extended(&Sha256Digest::of(word));
        let mut values = [Sha256Digest::ZERO; PCR_COUNT];
        values[4] = quoted;
        let values = PcrValues::new(values);
        let evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), values);
        let admission = backend.admit(sample::attempt_id(1), &Ok(evidence)).await.unwrap();
        assert_eq!(admission.attested.is_some(), is_listed, "{word}");
        let listed =
            admission.references[&pcr_reference_name(PcrIndex::BOOT_MANAGER)].as_array().unwrap();
        assert_eq!(listed.contains(&json!(quoted.to_string())), is_listed, "{word}");
        assert!(listed.contains(&json!(stated.to_string())));
    }
}

/// A register that another image pins is judged, too; its words of systemd come off, whatever is below them.
#[tokio::test]
async fn the_policies_get_no_quoted_value_of_which_no_image_states_the_rest() {
    let world = World::new().await;
    let backend = live_of(&world).with_pins(Pins::Predicted);
    let pcr = PcrIndex::KERNEL_BOOT;
    let image_with = |section: &str| {
        let mut image = sample::image(2);
        let section = ImageEvent::new("E", pcr, Sha256Digest::of(section), "Pcr11Linux");
        image.expected.pcrs.push(ExpectedPcr::from_events(pcr, [section]));
        image
    };
    let images: &dyn ImageRegistry = &*world.registry;
    for (section, is_listed) in [("linux", true), ("another", false)] {
        images.put(&image_with(section)).await.unwrap();
        let words = ["linux", "enter-initrd"].map(Sha256Digest::of);
        let mut values = [Sha256Digest::ZERO; PCR_COUNT];
        let stated = sample::image(1).expected.pcrs[0].value;
        values[4] = stated.extended(&Sha256Digest::of("os-separator"));
        values[11] = words.iter().fold(Sha256Digest::ZERO, |value, word| value.extended(word));
        let quoted = values[11].to_string();
        let values = PcrValues::new(values);
        let mut evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), values);
        let events = (0..).zip(words).map(|(n, word)| LoggedEvent::new(n, pcr, word, "E", None));
        let replayed = [pcr].into_iter().collect();
        evidence.log = LogEvidence::Parsed { events: events.collect(), replayed, cut: None };
        let admission = backend.admit(sample::attempt_id(1), &Ok(evidence)).await.unwrap();
        assert!(admission.attested.is_some(), "image 1 states PCR 4 alone");
        let listed = admission.references[&pcr_reference_name(pcr)].as_array().unwrap();
        assert_eq!(listed.contains(&json!(quoted)), is_listed, "{section}");
    }
}
