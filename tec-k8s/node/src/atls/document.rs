//! The document of a vTPM: go-tpm-tools types as JSON, as written by Go's encoding/json, which peers of the
//! older implementation exchange.
//!
//! ```json
//! { "Attestation": { "ak_pub": "<base64 of TPMT_PUBLIC>", "quotes": [
//!       { "quote": "<base64 of TPMS_ATTEST>", "raw_sig": "<base64 of TPMT_SIGNATURE>",
//!         "pcrs": { "hash": 11, "pcrs": { "0": "<base64>", "…": "… 24 of them" } } } ] },
//!   "InstanceInfo": "<base64>", "UserData": "<base64>" }
//! ```

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::ak::AttestationKey;
use tec_tpm::evidence::TpmEvidence;
use tec_tpm::public::PublicArea;
use tec_tpm::quote::UntrustedQuote;

use super::ValidateError;

/// TPM_ALG_SHA256 (TCG Algorithm Registry); the enumeration of go-tpm-tools has the same number.
const SHA256: u32 = 11;

#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(rename = "Attestation")]
    attestation: WireAttestation,
    #[serde(rename = "InstanceInfo", default)]
    instance_info: Option<String>,
    #[serde(rename = "UserData")]
    user_data: String,
}

#[derive(Serialize, Deserialize)]
struct WireAttestation {
    ak_pub: String,
    quotes: Vec<WireQuote>,
}

#[derive(Serialize, Deserialize)]
struct WireQuote {
    quote: String,
    raw_sig: String,
    pcrs: WirePcrs,
}

#[derive(Serialize, Deserialize)]
struct WirePcrs {
    hash: u32,
    pcrs: BTreeMap<String, String>,
}

pub(super) fn write(
    ak_area: &[u8],
    quote: &TpmEvidence,
    instance_info: &[u8],
    user_data: &[u8],
) -> Vec<u8> {
    let encode = |bytes: &[u8]| STANDARD.encode(bytes);
    let values = PcrIndex::all()
        .zip(&quote.values)
        .map(|(index, value)| (index.to_string(), encode(value.as_bytes())));
    let wire = Wire {
        attestation: WireAttestation {
            ak_pub: encode(ak_area),
            quotes: vec![WireQuote {
                quote: encode(&quote.message),
                raw_sig: encode(&quote.signature),
                pcrs: WirePcrs { hash: SHA256, pcrs: values.collect() },
            }],
        },
        instance_info: (!instance_info.is_empty()).then(|| encode(instance_info)),
        user_data: encode(user_data),
    };
    // Strings and numbers under string keys: serialization cannot fail.
    serde_json::to_vec(&wire).unwrap_or_default()
}

/// A decoded document; nothing in it is verified.
pub(super) struct Document {
    pub(super) ak: AttestationKey,
    message: Vec<u8>,
    signature: Vec<u8>,
    values: Vec<Sha256Digest>,
    pub(super) instance_info: Vec<u8>,
    pub(super) user_data: [u8; 32],
}

impl Document {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ValidateError> {
        let wire: Wire = serde_json::from_slice(bytes)
            .map_err(|source| ValidateError::malformed("document", source))?;
        let area = decode("ak_pub", &wire.attestation.ak_pub)?;
        let ak = PublicArea::from_tpmt(&area)
            .map_err(|source| ValidateError::malformed("ak_pub", source))
            .and_then(|area| {
                AttestationKey::from_area(&area)
                    .map_err(|source| ValidateError::malformed("ak_pub", source))
            })?;
        let quote = only_sha256(wire.attestation.quotes)?;
        Ok(Self {
            ak,
            message: decode("quote", &quote.quote)?,
            signature: decode("raw_sig", &quote.raw_sig)?,
            values: values(&quote.pcrs.pcrs)?,
            instance_info: match &wire.instance_info {
                Some(text) => decode("InstanceInfo", text)?,
                None => Vec::new(),
            },
            user_data: decode("UserData", &wire.user_data)?
                .try_into()
                .map_err(|_| ValidateError::Malformed { at: "UserData", source: None })?,
        })
    }

    pub(super) fn quote(&self) -> UntrustedQuote<'_> {
        UntrustedQuote::new(&self.message, &self.signature, &self.values)
    }
}

/// Peers quote every bank. Only the bank whose values are compared counts. It must occur exactly once:
/// otherwise, values from an unverified quote could be used.
fn only_sha256(quotes: Vec<WireQuote>) -> Result<WireQuote, ValidateError> {
    let mut found = quotes.into_iter().filter(|one| one.pcrs.hash == SHA256);
    match (found.next(), found.next()) {
        (Some(quote), None) => Ok(quote),
        _ => Err(ValidateError::Malformed { at: "quotes", source: None }),
    }
}

fn values(pcrs: &BTreeMap<String, String>) -> Result<Vec<Sha256Digest>, ValidateError> {
    PcrIndex::all()
        .map_while(|index| pcrs.get(&index.to_string()))
        .map(|text| {
            let value = decode("pcrs", text)?;
            let value = value
                .try_into()
                .map_err(|_| ValidateError::Malformed { at: "pcrs", source: None })?;
            Ok(Sha256Digest::new(value))
        })
        .collect()
}

fn decode(at: &'static str, text: &str) -> Result<Vec<u8>, ValidateError> {
    STANDARD.decode(text).map_err(|source| ValidateError::malformed(at, source))
}
