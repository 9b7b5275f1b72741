//! Quote verification: TPM evidence goes in, register values come out, and no step needs a TPM, libtss2 or
//! OpenSSL.
//!
//! ```text
//! cargo run -p tec-examples --bin verify_quote                            # evidence made here
//! cargo run -p tec-examples --bin verify_quote -- evidence.json <96 hex digits of report data>
//! ```
#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::port::{EvidenceRequest, Verifier as _};
use tec_tpm::testing::SoftTpm;
use tec_tpm::verifier::TpmVerifier;

/// That is all. The caller must know whose key it is, and whether the values are good.
async fn verify(evidence: &Value, report_data: &[u8; 48]) -> Result<VerifiedEvidence, VerifyError> {
    let request = EvidenceRequest::new(Tee::Tpm, evidence, report_data);
    TpmVerifier::new().verify(request).await
}

/// Evidence and report data from the command line, or from a software TPM that booted something.
fn input() -> anyhow::Result<(Value, [u8; 48])> {
    let mut arguments = std::env::args_os().skip(1);
    if let Some(path) = arguments.next().map(PathBuf::from) {
        let digits =
            arguments.next().context("the report data is missing (pass it after the file)")?;
        let mut report_data = [0; 48];
        hex::decode_to_slice(digits.to_string_lossy().as_bytes(), &mut report_data)
            .map_err(|error| anyhow!("invalid report data: {error}"))?;
        return Ok((serde_json::from_slice(&std::fs::read(path)?)?, report_data));
    }
    let report_data = [0x5a; 48];
    let tpm = SoftTpm::p256(7);
    tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
    // A quote binds the first 32 bytes of the report data.
    Ok((tpm.quote(&[0x5a; 32]).to_value(), report_data))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let (evidence, report_data) = input()?;
    let verified = verify(&evidence, &report_data).await?;
    println!("signed by key {}", verified.ak.fingerprint());
    for (index, value) in verified.pcrs.iter().filter(|(_, value)| **value != Sha256Digest::ZERO) {
        println!("PCR {:2} = {value}", u8::from(index));
    }

    // The same evidence does not match another session.
    let refused = verify(&evidence, &[0; 48]).await;
    ensure!(matches!(refused, Err(VerifyError::Quote { .. })));
    println!("replayed into another session: refused");
    Ok(())
}
