//! Evidence of type `az-snp-vtpm` on the wire, in the three forms that attesters have used.
//!
//! ```json
//! { "version": 2,
//!   "tpm_quote": { "signature": "<hexadecimal of the RSA signature>",
//!                  "message": "<hexadecimal of TPMS_ATTEST>", "pcrs": ["<hexadecimal>", "…"] },
//!   "hcl_report": "<base64url, with padding>", "vcek": "<base64url of DER, with padding>" }
//! ```
//! Version 1 is the same, but the hardware report is not created for a particular session. Version
//! 0 has no such member: `quote` and `report` are lists of numbers, and `vcek` is PEM.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use pem_rfc7468::LineEnding;
use serde::Deserialize;
use serde_json::Value;
use tec_core::digest::Sha256Digest;

use crate::hcl::MAX_HCL_REPORT;
use crate::quote::{ALG_RSASSA, ALG_SHA256, MAX_MESSAGE};
use crate::wire::push_sized;

/// Largest RSA signature; the key has at most 4096 bits.
const MAX_SIGNATURE: usize = 512;
/// Largest certificate in DER; they take 1.4 KiB.
const MAX_VCEK: usize = 16 * 1024;
/// Maximum number of PCR values that are read; the verifier requires exactly 24 and reports
/// otherwise.
const MAX_VALUES: usize = 64;
/// What ends a certificate in PEM (RFC 7468, section 5.1).
const PEM_END: &str = "-----END CERTIFICATE-----";

/// Evidence does not have the form that its type prescribes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AzSnpEvidenceError {
    /// Members are missing or have the wrong JSON type.
    #[error("the evidence is not az-snp-vtpm evidence in JSON")]
    Json(#[source] serde_json::Error),
    /// A version that is not known.
    #[error("the version of the evidence is not supported")]
    Version,
    /// Members of both forms: readers differ in which of them they use.
    #[error("the evidence has members of two versions")]
    Mixed,
    /// A member does not decode, or is too large.
    #[error("{member} does not decode to at most {limit} bytes or values")]
    Member {
        /// The member.
        member: &'static str,
        /// Maximum number of bytes, or values.
        limit: usize,
    },
}

impl AzSnpEvidenceError {
    /// The member that is malformed.
    pub fn member(&self) -> String {
        match self {
            Self::Json(_) | Self::Mixed => "evidence",
            Self::Version => "version",
            Self::Member { member, .. } => member,
        }
        .to_owned()
    }
}

/// Which form evidence has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AzSnpEvidenceVersion {
    /// Lists of numbers.
    V0,
    /// Strings.
    V1,
    /// As [`V1`](Self::V1), with a hardware report that is created for the session.
    V2,
}

/// Evidence, decoded and bounded, but not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzSnpEvidence {
    /// Which form it has.
    pub version: AzSnpEvidenceVersion,
    /// RSA signature alone, without the header of a TPMT_SIGNATURE.
    pub signature: Vec<u8>,
    /// TPMS_ATTEST.
    pub message: Vec<u8>,
    /// PCR values that were sent along.
    pub values: Vec<Sha256Digest>,
    /// Report of the paravisor, which contains the hardware report.
    pub hcl_report: Vec<u8>,
    /// Certificate of the key that signed the hardware report, in DER.
    pub vcek: Vec<u8>,
}

#[derive(Deserialize)]
struct WireOld {
    quote: WireOldQuote,
    report: Vec<u8>,
    vcek: String,
}

#[derive(Deserialize)]
struct WireOldQuote {
    signature: Vec<u8>,
    message: Vec<u8>,
    pcrs: Vec<[u8; 32]>,
}

#[derive(Deserialize)]
struct Wire {
    tpm_quote: WireQuote,
    hcl_report: String,
    vcek: String,
}

#[derive(Deserialize)]
struct WireQuote {
    signature: String,
    message: String,
    pcrs: Vec<String>,
}

impl AzSnpEvidence {
    /// Decodes the JSON form; the member `version` says which. Unknown members are ignored, as in
    /// other implementations.
    pub fn from_value(value: &Value) -> Result<Self, AzSnpEvidenceError> {
        let has = |members: [&str; 2]| members.iter().any(|name| value.get(name).is_some());
        if has(["quote", "report"]) && has(["tpm_quote", "hcl_report"]) {
            return Err(AzSnpEvidenceError::Mixed);
        }
        let evidence = match value.get("version").map(Value::as_u64) {
            None => Self::from_old(value)?,
            Some(Some(1)) => Self::from_texts(value, AzSnpEvidenceVersion::V1)?,
            Some(Some(2)) => Self::from_texts(value, AzSnpEvidenceVersion::V2)?,
            Some(_) => return Err(AzSnpEvidenceError::Version),
        };
        evidence.bounded()
    }

    fn from_old(value: &Value) -> Result<Self, AzSnpEvidenceError> {
        let wire = WireOld::deserialize(value).map_err(AzSnpEvidenceError::Json)?;
        let vcek = first_certificate(&wire.vcek)
            .ok_or(AzSnpEvidenceError::Member { member: "vcek", limit: MAX_VCEK })?;
        Ok(Self {
            version: AzSnpEvidenceVersion::V0,
            signature: wire.quote.signature,
            message: wire.quote.message,
            values: wire.quote.pcrs.into_iter().map(Sha256Digest::new).collect(),
            hcl_report: wire.report,
            vcek,
        })
    }

    fn from_texts(
        value: &Value,
        version: AzSnpEvidenceVersion,
    ) -> Result<Self, AzSnpEvidenceError> {
        let wire = Wire::deserialize(value).map_err(AzSnpEvidenceError::Json)?;
        let wrong = |member, limit| AzSnpEvidenceError::Member { member, limit };
        let quote = wire.tpm_quote;
        let values: Result<_, _> = quote.pcrs.iter().map(|text| text.parse()).collect();
        Ok(Self {
            version,
            signature: hex::decode(quote.signature)
                .map_err(|_| wrong("tpm_quote.signature", MAX_SIGNATURE))?,
            message: hex::decode(quote.message)
                .map_err(|_| wrong("tpm_quote.message", MAX_MESSAGE))?,
            values: values.map_err(|_| wrong("tpm_quote.pcrs", MAX_VALUES))?,
            hcl_report: URL_SAFE
                .decode(wire.hcl_report)
                .map_err(|_| wrong("hcl_report", MAX_HCL_REPORT))?,
            vcek: URL_SAFE.decode(wire.vcek).map_err(|_| wrong("vcek", MAX_VCEK))?,
        })
    }

    fn bounded(self) -> Result<Self, AzSnpEvidenceError> {
        for (length, member, limit) in [
            (self.signature.len(), "tpm_quote.signature", MAX_SIGNATURE),
            (self.message.len(), "tpm_quote.message", MAX_MESSAGE),
            (self.values.len(), "tpm_quote.pcrs", MAX_VALUES),
            (self.hcl_report.len(), "hcl_report", MAX_HCL_REPORT),
            (self.vcek.len(), "vcek", MAX_VCEK),
        ] {
            if length > limit {
                return Err(AzSnpEvidenceError::Member { member, limit });
            }
        }
        Ok(self)
    }

    /// The JSON form.
    pub fn to_value(&self) -> Value {
        let version = match self.version {
            AzSnpEvidenceVersion::V0 => return self.to_old(),
            AzSnpEvidenceVersion::V1 => 1,
            AzSnpEvidenceVersion::V2 => 2,
        };
        serde_json::json!({
            "version": version,
            "tpm_quote": {
                "signature": hex::encode(&self.signature),
                "message": hex::encode(&self.message),
                "pcrs": self.values,
            },
            "hcl_report": URL_SAFE.encode(&self.hcl_report),
            "vcek": URL_SAFE.encode(&self.vcek),
        })
    }

    fn to_old(&self) -> Value {
        let pcrs: Vec<_> = self.values.iter().map(Sha256Digest::as_bytes).collect();
        // A label without line breaks is always written.
        let vcek = pem_rfc7468::encode_string("CERTIFICATE", LineEnding::LF, &self.vcek);
        serde_json::json!({
            "quote": {"signature": self.signature, "message": self.message, "pcrs": pcrs},
            "report": self.hcl_report,
            "vcek": vcek.unwrap_or_default(),
        })
    }

    /// The signature as a TPM gives it: RSASSA with SHA-256 (TPM 2.0 Library Part 2,
    /// "TPMT_SIGNATURE").
    pub(super) fn tpmt_signature(&self) -> Vec<u8> {
        let mut out = [ALG_RSASSA.to_be_bytes(), ALG_SHA256.to_be_bytes()].concat();
        push_sized(&mut out, &self.signature);
        out
    }
}

/// The first certificate of a PEM text; others may follow.
fn first_certificate(pem: &str) -> Option<Vec<u8>> {
    let end = pem.find(PEM_END)? + PEM_END.len();
    let (label, der) = pem_rfc7468::decode_vec(pem.get(..end)?.as_bytes()).ok()?;
    (label == "CERTIFICATE").then_some(der)
}
