//! How a node names the attestation key that follows its present one; see
//! [`SuccessionOffer`].
//!
//! ```text
//! PUT attestation-key ─► after an attestation with the present key: the new key, certified for this session
//! ```
//! The new key is bound when it attests. Trustee has no such path.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tec_core::ak::{Fingerprint, SuccessionOffer};

/// Name of the path, below the base path.
pub const PLACE: &str = "attestation-key";
/// Largest body in bytes: three parts of at most 1024 bytes in base64.
pub const MAX_BODY: usize = 6144;

/// Body of `PUT attestation-key`, in standard base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::exhaustive_structs, reason = "what TPM2_Certify is about and returns")]
pub struct Named {
    /// TPM2B_PUBLIC of the new key.
    pub tpm_public: String,
    /// TPMS_ATTEST of TPM2_Certify.
    pub message: String,
    /// TPMT_SIGNATURE by the present key.
    pub signature: String,
}

impl From<&SuccessionOffer> for Named {
    fn from(offer: &SuccessionOffer) -> Self {
        Self {
            tpm_public: STANDARD.encode(&offer.tpm2b_public),
            message: STANDARD.encode(&offer.message),
            signature: STANDARD.encode(&offer.signature),
        }
    }
}

impl Named {
    /// The parts; `None` if one of them is not base64.
    pub fn to_offer(&self) -> Option<SuccessionOffer> {
        Some(SuccessionOffer {
            tpm2b_public: STANDARD.decode(&self.tpm_public).ok()?,
            message: STANDARD.decode(&self.message).ok()?,
            signature: STANDARD.decode(&self.signature).ok()?,
        })
    }
}

/// Reply to `PUT attestation-key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_structs, reason = "a key and nothing else")]
pub struct Recorded {
    /// The key that is bound when it attests.
    pub successor: Fingerprint,
}
