//! Which values of registers the policies get, and which registers count.

use tec_core::attest::{LogEvidence, LoggedEvent, VerifiedEvidence};
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ImageEvent};
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrValues};

use super::*;
use crate::policy::pcr_reference_name;

#[tokio::test]
async fn a_register_counts_that_only_the_image_predicts_and_no_policy_names() {
    let mut world = World::new().await;
    let backend = live_of(&world);
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
    let backend = live_of(&world);
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

#[tokio::test]
async fn whoever_embeds_a_broker_has_the_firmware_of_each_machine_checked() {
    let world = World::new().await;
    let backend = live_of(&world);
    let boot = sample::image(1).expected.pcrs[0].value;
    for (firmware, refused) in [("one", None), ("another", Some(Code::PlatformChanged))] {
        let mut values = [Sha256Digest::ZERO; PCR_COUNT];
        (values[0], values[4]) = (Sha256Digest::of(firmware), boot);
        let values = PcrValues::new(values);
        let evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), values);
        let admission = backend.admit(sample::attempt_id(1), &Ok(evidence)).await.unwrap();
        assert_eq!(admission.refused, refused, "{firmware}");
    }
}
