//! Why a report of the paravisor is refused.

use super::MAX_HCL_REPORT;
use crate::public::PublicError;
use crate::wire::WireError;

/// The bytes are not a report of the paravisor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HclError {
    /// More bytes than any report has.
    #[error("the HCL report has {length} bytes, more than the limit of {MAX_HCL_REPORT}")]
    TooLarge {
        /// What was given.
        length: usize,
    },
    /// It ends too early.
    #[error("the HCL report is truncated")]
    Wire(#[source] WireError),
    /// It does not begin as such reports do.
    #[error("the HCL report does not begin with HCLA")]
    Magic,
    /// Header or runtime data have an unknown version.
    #[error("version {found} of the HCL report is not supported")]
    Version {
        /// Which.
        found: u32,
    },
    /// The hardware is neither SNP nor TDX.
    #[error("the report type {found} is not supported")]
    ReportType {
        /// Which.
        found: u32,
    },
    /// The hash is not a SHA-2 hash.
    #[error("the hash type {found} is not supported")]
    HashType {
        /// Which.
        found: u32,
    },
    /// Three sizes that contradict each other.
    #[error("the sizes {total} (all), {data} (runtime data) and {variable} (JSON) do not match")]
    Sizes {
        /// Of the whole report.
        total: usize,
        /// Of the runtime data with their header.
        data: usize,
        /// Of the JSON.
        variable: usize,
    },
    /// The runtime data are not the expected JSON.
    #[error("the runtime data is malformed")]
    Json(#[source] serde_json::Error),
    /// There is not exactly one attestation key.
    #[error("{found} keys are named HCLAkPub; exactly one is required")]
    KeyCount {
        /// How many.
        found: usize,
    },
    /// Modulus or exponent of the attestation key are missing or not numbers.
    #[error("the attestation key's member {member} is missing or invalid")]
    KeyMember {
        /// Which: `kty`, `n` or `e`.
        member: &'static str,
    },
    /// The attestation key cannot be used.
    #[error("the attestation key is not acceptable")]
    Key(#[source] PublicError),
    /// The user data are not up to 64 bytes in hexadecimal.
    #[error("the user data is not at most 64 bytes in hexadecimal")]
    UserData,
}
