//! Verification without a real operating system: a quote, its event log and reference values go in as bytes,
//! a verdict comes out. No clock, no randomness, no files, no network: whatever runs WebAssembly can check
//! whether a machine booted what it should.
//!
//! ```text
//! rustup target add wasm32-wasip1
//! cargo build --target wasm32-wasip1
//! wasmtime target/wasm32-wasip1/debug/verify.wasm < request.json
//! ```

use serde::{Deserialize, Serialize};
use tec_core::ak::Fingerprint;
use tec_core::image::ExpectedPcr;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};
use tec_tpm::event_log::{EventLog, EventView};
use tec_tpm::evidence::{EvidenceError, TpmEvidence};
use tec_tpm::output::{OutputError, read_label};
use tec_tpm::quote::QuoteError;

/// What is to be verified.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Request {
    /// Quote, register values, key, and the event log if there is one, as an attester sends them.
    pub evidence: serde_json::Value,
    /// The nonce that the quote must contain, in hexadecimal; the verifier chose it at random.
    pub nonce: String,
    /// Expected values, as in the image label `org.coreos.pcrs`.
    pub reference: serde_json::Value,
}

/// The result. The caller must know the key: a quote does not reveal whose key it is.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Verdict {
    /// The key that signed the quote.
    pub key: Fingerprint,
    /// The registers of the reference, in order.
    pub registers: Vec<RegisterVerdict>,
}

/// The result for one register.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct RegisterVerdict {
    /// The register.
    pub pcr: PcrIndex,
    /// Whether its quoted value is the expected one.
    pub expected: bool,
    /// The first event that differs from the expected one, if the log explains the quoted value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs: Option<EventView>,
}

/// No verdict is possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request does not have the form of [`Request`].
    #[error("not a request")]
    Request(#[source] serde_json::Error),
    /// The nonce is not hexadecimal.
    #[error("the nonce is not hexadecimal")]
    Nonce(#[source] hex::FromHexError),
    /// The evidence cannot be parsed.
    #[error("the evidence cannot be read")]
    Evidence(#[source] EvidenceError),
    /// The quote does not verify.
    #[error("the quote is invalid")]
    Quote(#[source] QuoteError),
    /// The reference values cannot be parsed.
    #[error("the reference values cannot be read")]
    Reference(#[source] OutputError),
}

impl Verdict {
    /// Whether there is at least one register, and all registers have their expected values.
    pub fn is_good(&self) -> bool {
        let mut registers = self.registers.iter();
        !self.registers.is_empty() && registers.all(|register| register.expected)
    }
}

/// Verifies a [`Request`] in JSON.
///
/// # Errors
/// [`Refusal`]; a machine that booted something else is not an error, but a [`Verdict`].
pub fn verify(request: &[u8]) -> Result<Verdict, Refusal> {
    let request: Request = serde_json::from_slice(request).map_err(Refusal::Request)?;
    let nonce = hex::decode(&request.nonce).map_err(Refusal::Nonce)?;
    let evidence = TpmEvidence::from_value(&request.evidence).map_err(Refusal::Evidence)?;
    let reference = read_label(&request.reference.to_string()).map_err(Refusal::Reference)?;

    let verified = evidence.quote().verify(&evidence.ak, &nonce);
    let quoted = verified.map_err(Refusal::Quote)?;
    let log = evidence.event_log.as_deref().map(EventLog::parse);
    let log = log.and_then(Result::ok);
    let registers = reference.pcrs.iter().map(|expected| RegisterVerdict {
        pcr: expected.id,
        expected: *quoted.pcrs().value(expected.id) == expected.value,
        differs: log.clone().and_then(|log| difference(log, quoted.pcrs(), expected)),
    });
    Ok(Verdict { key: evidence.ak.fingerprint(), registers: registers.collect() })
}

/// The first event of a log, proven for this register, that differs from the expected one.
fn difference(log: EventLog<'_>, quoted: &PcrValues, expected: &ExpectedPcr) -> Option<EventView> {
    let register = PcrSet::default().with(expected.id);
    let proven = log.verify(quoted, register).ok()?;
    let mut wanted = expected.events.iter().map(|event| *event.hash.as_bytes());
    let mut events = proven.events();
    let other = events.find(|event| event.digests.sha256.copied() != wanted.next())?;
    Some(EventView::new(other))
}
