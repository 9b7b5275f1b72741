use super::*;
use crate::attest::{PinnedPcrs, Tee};
use crate::boot::WholeImages;
use crate::explain::explain_pcrs;
use crate::image::{ExpectedPcr, ExpectedPcrs};
use crate::pcr::{PCR_COUNT, PcrValues};
use crate::testing::sample;

const CALL: &str = "Calling EFI Application from Boot Option";
const RETURN: &str = "Returning from EFI Application from Boot Option";
const SEPARATOR: &str = "\0\0\0\0";
const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
const PCR11: PcrIndex = PcrIndex::KERNEL_BOOT;
const CHAIN: [&str; 3] = ["shim", "loader", "kernel"];

fn pcr(index: PcrIndex, texts: &[&str]) -> ExpectedPcr {
    let event = |text: &&str| ImageEvent::new("E", index, Sha256Digest::of(text), *text);
    ExpectedPcr::from_events(index, texts.iter().map(event))
}

/// States three programs in PCR 4, and two sections in PCR 11.
fn image() -> ApprovedImage {
    let mut image = sample::image(1);
    let programs = [&[CALL, SEPARATOR][..], &CHAIN].concat();
    image.expected = ExpectedPcrs::new(vec![pcr(PCR4, &programs), pcr(PCR11, &["linux", "osrel"])]);
    image
}

/// A boot with these events. Their text is what the log claims, too.
fn boot(events: &[(PcrIndex, &[&str])], has_log: bool) -> VerifiedEvidence {
    let mut values = PcrValues::new([Sha256Digest::ZERO; PCR_COUNT]);
    let mut logged = Vec::new();
    for (pcr, texts) in events {
        for text in *texts {
            let digest = Sha256Digest::of(text);
            let value = values.value(*pcr).extended(&digest);
            values = values.with(*pcr, value);
            let number = u32::try_from(logged.len()).unwrap();
            let detail = Some((*text).to_owned());
            logged.push(LoggedEvent::new(number, *pcr, digest, "EV_EFI_ACTION", detail));
        }
    }
    let mut evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), values);
    if has_log {
        let replayed = PcrIndex::all().collect();
        evidence.log = LogEvidence::Parsed { events: logged, replayed, cut: None };
    }
    evidence
}

/// The programs of the firmware of an approved boot; `None` if it is refused.
fn judged(evidence: &VerifiedEvidence, images: &[ApprovedImage]) -> Option<usize> {
    let now = sample::time(1);
    let explained = explain_pcrs(evidence, images, Pins::Predicted, now, &WholeImages).ok()?;
    let stated = image();
    for stated in stated.expected.pcrs {
        assert_eq!(*explained.judged.value(stated.id), stated.value, "what a release checks again");
    }
    Some(explained.programs.len())
}

fn with_log(pcr4: &[&str], pcr11: &[&str]) -> Option<usize> {
    judged(&boot(&[(PCR4, pcr4), (PCR11, pcr11)], true), &[image()])
}

/// The forms of public logs of real machines, see the page about platforms.
#[test]
fn each_form_of_a_firmware_is_the_same_boot() {
    for (before, programs) in [
        (&[CALL, SEPARATOR][..], 0),
        (&[SEPARATOR], 0),
        (&[CALL, SEPARATOR, RETURN, CALL], 0),
        (&["Booting to Boot0001 Option", SEPARATOR], 0),
        (&["BOOT ATTEMPTS OMITTED", SEPARATOR], 0),
        (&["setup screen", CALL, SEPARATOR], 1),
        (&["agent", "setup screen", CALL, SEPARATOR], 2),
        (&[CALL, SEPARATOR, "agent"], 1),
        (&["agent"; MAX_PROGRAMS], MAX_PROGRAMS),
    ] {
        let pcr4 = [before, &CHAIN].concat();
        assert_eq!(with_log(&pcr4, &["linux", "osrel"]), Some(programs), "{before:?}");
    }
}

#[test]
fn what_an_image_measures_must_be_whole_in_order_and_alone() {
    for pcr4 in [
        &["shim", "loader", "other"][..],
        &["shim", "kernel", "loader"],
        &["shim", "loader"],
        &["loader", "kernel"],
        &["shim", "agent", "loader", "kernel"],
        &["shim", "loader", "kernel", "agent"],
        &["shim", "loader", "kernel", "kernel"],
        // It returned, and the firmware started something else.
        &["shim", RETURN, CALL, "loader", "kernel"],
        &["shim", "loader", SEPARATOR, "kernel"],
        &["agent"],
        &[&["agent"; MAX_PROGRAMS + 1][..], &CHAIN].concat(),
        &["booting to boot0001 option"],
    ] {
        let pcr4 = [&[CALL, SEPARATOR], pcr4].concat();
        assert_eq!(with_log(&pcr4, &["linux", "osrel"]), None, "{pcr4:?}");
    }
}

/// A log may claim any text for an event: only the digest of a known one is a constant.
#[test]
fn a_program_is_no_constant_whatever_the_log_says() {
    let mut evidence = boot(&[(PCR4, &[CALL, "implant", "shim", "loader", "kernel"])], true);
    if let LogEvidence::Parsed { events, .. } = &mut evidence.log {
        events[1].detail = Some("Booting to Boot0001 Option".to_owned());
    }
    let settled = settled(
        &evidence,
        &[image()],
        &LiveImages::at(&[image()], sample::time(1)),
        Pins::Exactly(PinnedPcrs::only(PCR4)),
        &WholeImages,
    );
    assert_eq!(settled[0].programs.len(), 1);
}

/// Whatever a verifier says that a log replays to.
#[test]
fn a_log_that_does_not_fold_to_the_quoted_value_explains_nothing() {
    let pcr11 = (PCR11, &["linux", "osrel"][..]);
    let mut evidence = boot(&[(PCR4, &[SEPARATOR, "shim", "loader", "kernel"]), pcr11], true);
    assert_eq!(judged(&evidence, &[image()]), Some(0));
    evidence.pcrs = boot(&[(PCR4, &[SEPARATOR, "shim", "loader", "other"]), pcr11], true).pcrs;
    assert_eq!(judged(&evidence, &[image()]), None);
}

#[test]
fn a_program_of_a_revoked_image_is_none_of_the_firmware() {
    let mut revoked = image();
    revoked.name = "old".parse().unwrap();
    revoked.expected = ExpectedPcrs::new(vec![pcr(PCR4, &[CALL, SEPARATOR, "old loader"])]);
    revoked.revoked_at = Some(sample::time(0));
    let evidence = boot(
        &[(PCR4, &["old loader", "shim", "loader", "kernel"]), (PCR11, &["linux", "osrel"])],
        true,
    );
    assert_eq!(judged(&evidence, &[image()]), Some(1));
    assert_eq!(judged(&evidence, &[image(), revoked]), None);
}

#[test]
fn words_of_systemd_are_explained_with_a_log_and_without() {
    let pcr4 = [&[CALL, SEPARATOR][..], &CHAIN].concat();
    let separated = [&pcr4[..], &["os-separator"]].concat();
    for has_log in [true, false] {
        for (pcr4, words, is_accepted) in [
            (&pcr4, &["enter-initrd"][..], true),
            (&separated, &["enter-initrd"], true),
            (&separated, &[], true),
            (&pcr4, &["enter-initrd", "leave-initrd", "sysinit", "ready"], true),
            (&pcr4, &["leave-initrd", "sysinit"], true),
            (&pcr4, &["ready"], false),
            (&pcr4, &["enter-initrd", "implant"], false),
            (&pcr4, &["implant", "enter-initrd"], false),
        ] {
            let pcr11 = [&["linux", "osrel"], words].concat();
            let evidence = boot(&[(PCR4, pcr4), (PCR11, &pcr11)], has_log);
            let accepted = judged(&evidence, &[image()]).is_some();
            assert_eq!(accepted, is_accepted, "{words:?}, log: {has_log}");
        }
    }
}

#[test]
fn without_a_log_the_form_of_the_firmware_must_be_the_stated_one() {
    let evidence = boot(
        &[(PCR4, &[SEPARATOR, "shim", "loader", "kernel"]), (PCR11, &["linux", "osrel"])],
        false,
    );
    assert_eq!(judged(&evidence, &[image()]), None);
}
