//! Why a report of the paravisor is refused.

use super::MAX_HCL_REPORT;
use crate::public::PublicError;
use crate::wire::WireError;

/// The bytes are not a report of the paravisor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HclError {
    /// The input is larger than any report.
    #[error("the HCL report has {0} bytes, more than the limit of {MAX_HCL_REPORT}")]
    TooLarge(usize),
    /// The report ends too early.
    #[error("the HCL report is truncated")]
    Wire(#[source] WireError),
    /// The report does not begin with the expected bytes.
    #[error("the HCL report does not begin with HCLA")]
    Magic,
    /// The header or the runtime data has an unknown version.
    #[error("version {0} of the HCL report is not supported")]
    Version(u32),
    /// The hardware is neither SNP nor TDX.
    #[error("the report type {0} is not supported")]
    ReportType(u32),
    /// The hash is not a SHA-2 hash.
    #[error("the hash type {0} is not supported")]
    HashType(u32),
    /// Three sizes contradict each other.
    #[error("the sizes {total} (all), {data} (runtime data) and {variable} (JSON) do not match")]
    Sizes {
        /// Size of the whole report.
        total: usize,
        /// Size of the runtime data with its header.
        data: usize,
        /// Size of the JSON.
        variable: usize,
    },
    /// The runtime data is not the expected JSON.
    #[error("the runtime data is malformed")]
    Json(#[source] serde_json::Error),
    /// There is not exactly one attestation key.
    #[error("{0} keys are named HCLAkPub; exactly one is required")]
    KeyCount(usize),
    /// The modulus or exponent of the attestation key is missing or not a number.
    #[error("the attestation key's member {member} is missing or invalid")]
    KeyMember {
        /// Name of the member: `kty`, `n` or `e`.
        member: &'static str,
    },
    /// The attestation key cannot be used.
    #[error("the attestation key is not acceptable")]
    Key(#[source] PublicError),
    /// The user data is not at most 64 bytes in hexadecimal.
    #[error("the user data is not at most 64 bytes in hexadecimal")]
    UserData,
}
