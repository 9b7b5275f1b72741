//! Verification of a quote against the bare verification of its signature; and the judge of a boot against both
//! verification and replay.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anyhow::Context as _;
use rsa::pkcs1v15;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::signature::Verifier as _;
use serde_json::Value;
use sha2::Sha256;
use tec_benches::Suite;
use tec_core::ak::AkState;
use tec_core::attest::{Known, Tee, VerifiedEvidence, VerifyError, appraise};
use tec_core::boot::Pins;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::machine::MachineState;
use tec_core::pcr::PcrIndex;
use tec_core::port::{EvidenceRequest, Verifier as _};
use tec_core::testing::sample;
use tec_tpm::combine::MixedStates;
use tec_tpm::event_log::{EventKind, EventLog, EventLogBuilder};
use tec_tpm::evidence::TpmEvidence;
use tec_tpm::policy::evidence_with_policy;
use tec_tpm::testing::SoftTpm;
use tec_tpm::verifier::TpmVerifier;

const REPORT_DATA: [u8; 48] = [0x5a; 48];
/// The part of the report data that fits into a quote.
const NONCE: [u8; 32] = [0x5a; 32];
/// Scheme, hash and size in front of the signature itself (TPM 2.0 Library Part 2,
/// "TPMT_SIGNATURE").
const SIGNATURE_HEADER: usize = 6;

fn main() -> anyhow::Result<()> {
    let tpm = SoftTpm::rsa(1);
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
    let evidence = tpm.quote(&NONCE);
    let json = evidence.to_value();
    let bare = Bare::new(&evidence)?;
    check(&tpm, &evidence, &json, &bare)?;

    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    suite.compare(
        "quote",
        "verify a quote by an RSA-2048 key in DER / verify its signature by a parsed key",
        || evidence.quote().verify(&evidence.ak, &NONCE),
        || bare.verify(),
    )?;
    suite.compare(
        "quote_from_der",
        "verify a quote by an RSA-2048 key in DER / read the key and verify its signature",
        || evidence.quote().verify(&evidence.ak, &NONCE),
        || Bare::new(&evidence).map(|bare| bare.verify()),
    )?;
    suite.compare(
        "evidence",
        "TpmVerifier over the JSON form / verify the signature by a parsed key",
        || verify(&json),
        || bare.verify(),
    )?;
    judge(&mut suite)?;
    suite.finish();
    Ok(())
}

/// Number of events in the log of the judged boot, beside those of the image.
const EVENTS: usize = 180;

/// A boot of an approved image on firmware that measures otherwise than predicted, whose initramfs has systemd: the
/// longest way to an answer.
fn judge(suite: &mut Suite) -> anyhow::Result<()> {
    let (tpm, image, log) = (SoftTpm::rsa(2), image(), log());
    let replay = || EventLog::parse(&log).map(|log| log.replay_sha256());
    for event in EventLog::parse(&log)?.events() {
        if let (Some(pcr), Some(digest)) = (event.extends(), event.digests.sha256) {
            tpm.extend(pcr, &Sha256Digest::new(*digest));
        }
    }
    tpm.extend(PcrIndex::KERNEL_BOOT, &Sha256Digest::of("enter-initrd"));
    let evidence = tpm.quote(&NONCE);
    let mut verified = VerifiedEvidence::new(
        Tee::Tpm,
        tpm.public_key(),
        evidence.quote().verify(&evidence.ak, &NONCE)?.pcrs().clone(),
    );
    (verified.log, verified.variables) = evidence_with_policy(&log, &verified.pcrs);
    let states = MixedStates::default();
    let (mut ak, mut machine) = (sample::ak(1, 1), sample::machine(1));
    (ak.public, ak.state, machine.state) = (tpm.public_key(), AkState::Bound, MachineState::Active);
    let images = [image];
    let verified = Ok(verified);
    let judge = || {
        let mut known = Known::new(Some(&ak), Some(&machine), &images);
        known.has_baseline = true;
        let (id, at) = (sample::attempt_id(1), sample::time(10));
        appraise(id, at, &verified, known, Pins::Predicted, &states)
    };
    anyhow::ensure!(
        judge().attested.is_some(),
        "the boot was refused: {:?}",
        judge().attempt.ladder
    );
    suite.compare(
        "judge",
        "judge a boot of 200 events / verify its quote by an RSA-2048 key and replay its log",
        judge,
        || (evidence.quote().verify(&evidence.ak, &NONCE).is_ok(), replay().is_ok()),
    )
}

fn programs() -> impl Iterator<Item = (PcrIndex, String)> {
    let programs =
        ["shim", "manager", "kernel"].map(|name| (PcrIndex::BOOT_MANAGER, name.to_owned()));
    let sections = (0..16).map(|number| (PcrIndex::KERNEL_BOOT, format!("section {number}")));
    programs.into_iter().chain(sections)
}

/// States the programs after the constants that predictions have.
fn image() -> ApprovedImage {
    let constants = ["Calling EFI Application from Boot Option", "\0\0\0\0"];
    let constants = constants.map(|text| (PcrIndex::BOOT_MANAGER, text.to_owned()));
    let all: Vec<_> = constants.into_iter().chain(programs()).collect();
    let stated = [PcrIndex::BOOT_MANAGER, PcrIndex::KERNEL_BOOT].map(|pcr| {
        let events = all.iter().filter(|(of, _)| *of == pcr);
        let event = |(_, text): &(PcrIndex, String)| {
            ImageEvent::new("E", pcr, Sha256Digest::of(text), text)
        };
        ExpectedPcr::from_events(pcr, events.map(event))
    });
    let mut image = sample::image(1);
    image.expected = ExpectedPcrs::new(stated.to_vec());
    image
}

fn log() -> Vec<u8> {
    let mut log = EventLogBuilder::new();
    for number in 0..EVENTS {
        let pcr = PcrIndex::all().nth(number % 4).unwrap_or(PcrIndex::SECURE_BOOT);
        log.measure(pcr, EventKind::PLATFORM_CONFIG_FLAGS, format!("event {number}").as_bytes());
    }
    log.image(Sha256Digest::of("setup screen"), "").separator(PcrIndex::BOOT_MANAGER);
    for (pcr, text) in programs() {
        log.measure_digest(pcr, EventKind::IPL, Sha256Digest::of(&text), text.as_bytes());
    }
    log.build()
}

/// The signature and nothing else.
struct Bare<'a> {
    key: pkcs1v15::VerifyingKey<Sha256>,
    message: &'a [u8],
    signature: pkcs1v15::Signature,
}

impl<'a> Bare<'a> {
    fn new(evidence: &'a TpmEvidence) -> anyhow::Result<Self> {
        let key = rsa::RsaPublicKey::from_public_key_der(evidence.ak.as_der())?;
        let signature = evidence.signature.get(SIGNATURE_HEADER..);
        Ok(Self {
            key: pkcs1v15::VerifyingKey::new(key),
            message: &evidence.message,
            signature: signature.context("the signature is too short")?.try_into()?,
        })
    }

    fn verify(&self) -> bool {
        self.key.verify(self.message, &self.signature).is_ok()
    }
}

/// This verifier waits for nothing, so one poll is all.
fn verify(json: &Value) -> Option<Result<VerifiedEvidence, VerifyError>> {
    let verifier = TpmVerifier::new();
    let mut future = pin!(verifier.verify(EvidenceRequest::new(Tee::Tpm, json, &REPORT_DATA)));
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(verified) => Some(verified),
        Poll::Pending => None,
    }
}

fn check(
    tpm: &SoftTpm,
    evidence: &TpmEvidence,
    json: &Value,
    bare: &Bare<'_>,
) -> anyhow::Result<()> {
    let quote = evidence.quote().verify(&tpm.public_key(), &NONCE)?;
    anyhow::ensure!(quote.pcrs() == &tpm.pcrs(), "the PCR values differ from the quoted ones");
    let verified = verify(json).context("the verifier did not finish immediately")??;
    anyhow::ensure!(verified.pcrs == tpm.pcrs(), "the verifier found different PCR values");
    anyhow::ensure!(bare.verify(), "the bare signature does not verify");
    let other = evidence.quote().verify(&tpm.public_key(), &[0; 32]);
    anyhow::ensure!(other.is_err(), "a different nonce was accepted");
    Ok(())
}
