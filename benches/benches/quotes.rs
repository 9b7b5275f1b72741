//! Verification of a quote against the bare verification of its signature.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anyhow::Context as _;
use rsa::pkcs1v15;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::signature::Verifier as _;
use serde_json::Value;
use sha2::Sha256;
use tec_benches::Suite;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::port::{EvidenceRequest, Verifier as _};
use tec_tpm::evidence::TpmEvidence;
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
    suite.finish();
    Ok(())
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
