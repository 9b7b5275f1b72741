//! Evidence of type `tpm` on the wire: the JSON that attesters and verifiers of
//! confidential-containers exchange, plus members for event logs, which others ignore.
//!
//! ```json
//! { "tpm_quote": { "signature": "<base64 of TPMT_SIGNATURE>", "message": "<base64 of TPMS_ATTEST>",
//!                  "pcrs": ["<64 hexadecimal digits>", "… 24 of them"] },
//!   "ak_public": "<base64 of SubjectPublicKeyInfo in DER>",
//!   "event_log": "<base64 of the binary log, optional>",
//!   "systemd_log": "<base64 of systemd's log of what it measured, optional>" }
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tec_core::ak::{ParsePublicKeyError, PublicKey};
use tec_core::digest::{ParseDigestError, Sha256Digest};

use crate::quote::{MAX_MESSAGE, MAX_SIGNATURE, UntrustedQuote};

/// Maximum size of an event log in bytes: ten times what firmware writes today.
pub const MAX_EVENT_LOG: usize = 512 * 1024;
/// Maximum size of systemd's log in bytes: thirty times that of a whole boot.
pub const MAX_SYSTEMD_LOG: usize = 256 * 1024;
/// Maximum number of PCR values that are read; the verifier requires exactly 24 and reports
/// otherwise.
const MAX_VALUES: usize = 64;
const SYSTEMD_LOG: &str = "systemd_log";

/// Evidence does not have the form that its type prescribes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvidenceError {
    /// Members are missing or have the wrong JSON type.
    #[error("the evidence is not TPM evidence in JSON")]
    Json(#[source] serde_json::Error),
    /// A member is not base64, or too large.
    #[error("{member} is not standard base64 of at most {limit} bytes")]
    Base64 {
        /// The member.
        member: &'static str,
        /// Maximum number of bytes.
        limit: usize,
    },
    /// A PCR value is not a digest.
    #[error("tpm_quote.pcrs[{position}] is not a digest")]
    Value {
        /// Position in the list, from 0.
        position: usize,
        /// The cause.
        #[source]
        source: ParseDigestError,
    },
    /// Far too many PCR values.
    #[error("tpm_quote.pcrs has {0} values")]
    TooManyValues(usize),
    /// The key is not acceptable.
    #[error("ak_public is not an acceptable key")]
    Key(#[source] ParsePublicKeyError),
}

impl EvidenceError {
    /// The member that is malformed.
    pub fn member(&self) -> String {
        match self {
            Self::Json(_) => "evidence".to_owned(),
            Self::Base64 { member, .. } => (*member).to_owned(),
            Self::Value { position, .. } => format!("tpm_quote.pcrs[{position}]"),
            Self::TooManyValues(_) => "tpm_quote.pcrs".to_owned(),
            Self::Key(_) => "ak_public".to_owned(),
        }
    }
}

/// Borrows its strings from the JSON value: they are decoded once and never copied.
#[derive(Deserialize)]
struct Wire<'v> {
    #[serde(borrow)]
    tpm_quote: WireQuote<'v>,
    ak_public: &'v str,
    #[serde(default)]
    event_log: Option<&'v str>,
}

#[derive(Deserialize)]
struct WireQuote<'v> {
    signature: &'v str,
    message: &'v str,
    #[serde(borrow)]
    pcrs: Vec<&'v str>,
}

/// TPM evidence, decoded and bounded; nothing in it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TpmEvidence {
    /// TPMT_SIGNATURE.
    pub signature: Vec<u8>,
    /// TPMS_ATTEST.
    pub message: Vec<u8>,
    /// PCR values sent with the quote.
    pub values: Vec<Sha256Digest>,
    /// The key that claims to have signed.
    pub ak: PublicKey,
    /// Binary event log.
    pub event_log: Option<Vec<u8>>,
    /// systemd's log of what it measured.
    pub systemd_log: Option<Vec<u8>>,
}

impl TpmEvidence {
    /// Assembles evidence without an event log.
    pub fn new(
        message: Vec<u8>,
        signature: Vec<u8>,
        values: Vec<Sha256Digest>,
        ak: PublicKey,
    ) -> Self {
        Self { signature, message, values, ak, event_log: None, systemd_log: None }
    }

    /// Adds an event log. A log larger than [`MAX_EVENT_LOG`] is omitted: evidence is complete without a log,
    /// but would be refused with one that large.
    pub fn with_event_log(mut self, log: Vec<u8>) -> Self {
        self.event_log = (log.len() <= MAX_EVENT_LOG).then_some(log);
        self
    }

    /// Adds systemd's log of what it measured. One larger than [`MAX_SYSTEMD_LOG`] is omitted.
    pub fn with_systemd_log(mut self, log: Vec<u8>) -> Self {
        self.systemd_log = (log.len() <= MAX_SYSTEMD_LOG).then_some(log);
        self
    }

    /// Decodes the JSON form. Unknown members are ignored, as in other implementations.
    pub fn from_value(value: &serde_json::Value) -> Result<Self, EvidenceError> {
        let wire = Wire::deserialize(value).map_err(EvidenceError::Json)?;
        let quote = wire.tpm_quote;
        if quote.pcrs.len() > MAX_VALUES {
            return Err(EvidenceError::TooManyValues(quote.pcrs.len()));
        }
        let parse = |(position, text): (usize, &&str)| {
            text.parse().map_err(|source| EvidenceError::Value { position, source })
        };
        Ok(Self {
            signature: decode("tpm_quote.signature", quote.signature, MAX_SIGNATURE)?,
            message: decode("tpm_quote.message", quote.message, MAX_MESSAGE)?,
            values: quote.pcrs.iter().enumerate().map(parse).collect::<Result<_, _>>()?,
            ak: PublicKey::from_base64(wire.ak_public).map_err(EvidenceError::Key)?,
            event_log: wire
                .event_log
                .map(|text| decode("event_log", text, MAX_EVENT_LOG))
                .transpose()?,
            // A bad one is as good as none.
            systemd_log: value
                .get(SYSTEMD_LOG)
                .and_then(serde_json::Value::as_str)
                .and_then(|text| decode(SYSTEMD_LOG, text, MAX_SYSTEMD_LOG).ok()),
        })
    }

    /// The JSON form.
    pub fn to_value(&self) -> serde_json::Value {
        let mut value = serde_json::json!({
            "tpm_quote": {
                "signature": STANDARD.encode(&self.signature),
                "message": STANDARD.encode(&self.message),
                "pcrs": self.values,
            },
            "ak_public": self.ak,
        });
        for (member, log) in [("event_log", &self.event_log), (SYSTEMD_LOG, &self.systemd_log)] {
            if let (Some(log), Some(object)) = (log, value.as_object_mut()) {
                object.insert(member.to_owned(), STANDARD.encode(log).into());
            }
        }
        value
    }

    /// The quote, ready to be verified.
    pub fn quote(&self) -> UntrustedQuote<'_> {
        UntrustedQuote::new(&self.message, &self.signature, &self.values)
    }
}

fn decode(member: &'static str, text: &str, limit: usize) -> Result<Vec<u8>, EvidenceError> {
    let refused = || EvidenceError::Base64 { member, limit };
    // Four characters for three bytes, plus padding.
    if text.len() > limit.div_ceil(3) * 4 {
        return Err(refused());
    }
    let bytes = STANDARD.decode(text).map_err(|_| refused())?;
    if bytes.len() > limit {
        return Err(refused());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::SoftTpm;

    fn evidence() -> serde_json::Value {
        SoftTpm::p256(1).quote(&[7; 32]).to_value()
    }

    #[test]
    fn the_json_form_round_trips_and_has_the_members_of_others() {
        let made = SoftTpm::p256(1).quote(&[7; 32]).with_event_log(vec![1, 2]);
        let value = made.to_value();
        assert_eq!(TpmEvidence::from_value(&value).unwrap(), made);
        assert_eq!(value["tpm_quote"]["pcrs"].as_array().unwrap().len(), 24);
        assert_eq!(value["event_log"], json!("AQI="));
        assert!(evidence().get("event_log").is_none() && evidence().get("systemd_log").is_none());
    }

    #[test]
    fn a_log_of_systemd_that_is_none_is_left_out_and_the_rest_is_evidence() {
        let made = SoftTpm::p256(1).quote(&[7; 32]);
        let with = made.clone().with_systemd_log(vec![1, 2]);
        let mut value = with.to_value();
        assert_eq!(TpmEvidence::from_value(&value).unwrap(), with);
        let large = vec![0; MAX_SYSTEMD_LOG + 1];
        assert_eq!(made.clone().with_systemd_log(large.clone()), made);
        for bad in [json!(7), json!("?"), json!(null), json!(STANDARD.encode(large))] {
            value["systemd_log"] = bad;
            assert_eq!(TpmEvidence::from_value(&value).unwrap(), made);
        }
    }

    #[test]
    fn unknown_members_are_ignored() {
        let mut value = evidence();
        value["vendor"] = json!({"x": 1});
        assert!(TpmEvidence::from_value(&value).is_ok());
    }

    #[test]
    fn each_malformed_member_is_named() {
        for (pointer, bad, member) in [
            ("/tpm_quote/signature", json!("?"), "tpm_quote.signature"),
            ("/tpm_quote/message", json!("A".repeat(2000)), "tpm_quote.message"),
            ("/tpm_quote/pcrs/3", json!("00"), "tpm_quote.pcrs[3]"),
            ("/tpm_quote/pcrs", json!(vec!["0".repeat(64); 65]), "tpm_quote.pcrs"),
            ("/tpm_quote/pcrs", json!(7), "evidence"),
            ("/ak_public", json!("AAAA"), "ak_public"),
        ] {
            let mut value = evidence();
            *value.pointer_mut(pointer).unwrap() = bad;
            let error = TpmEvidence::from_value(&value).unwrap_err();
            assert_eq!(error.member(), member);
        }
    }

    #[test]
    fn event_logs_are_bounded_on_both_sides() {
        let made = SoftTpm::p256(1).quote(&[7; 32]);
        let large = made.with_event_log(vec![0; MAX_EVENT_LOG + 1]);
        assert_eq!(large.event_log, None);
        let mut value = evidence();
        value["event_log"] = STANDARD.encode(vec![0; MAX_EVENT_LOG + 1]).into();
        let error = TpmEvidence::from_value(&value).unwrap_err();
        assert_eq!(error.member(), "event_log");
    }
}
