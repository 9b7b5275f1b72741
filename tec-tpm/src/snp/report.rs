//! The attestation report as the firmware writes it.

mod fields;

use sha2::{Digest as _, Sha384};

use self::fields::Fields;
use super::{GuestPolicy, KeyInfo, PlatformInfo, Product, Tcb};
use crate::wire::WireError;

/// Size of a report (SEV-SNP Firmware ABI Specification, "ATTESTATION_REPORT").
pub const REPORT_SIZE: usize = 0x4a0;
/// Number of signed bytes at the beginning of a report.
pub(crate) const SIGNED_SIZE: usize = 0x2a0;
/// Versions of the layout that are known. Version 1 was never in the field.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=5;
/// Scalar of P-384 (FIPS 186-5).
pub(crate) const SCALAR: usize = 48;

/// The bytes are not a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The size is not that of a report.
    #[error("a report has {REPORT_SIZE} bytes; this one has {0}")]
    Length(usize),
    /// A version whose layout is not known.
    #[error("version {0} of the report is not supported")]
    Version(u32),
    /// A field is incomplete. The size is checked first, so this does not happen.
    #[error("the report is truncated")]
    Wire(#[source] WireError),
}

/// Version of the SNP firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct FirmwareVersion {
    /// Major number of its interface.
    pub major: u8,
    /// Minor number of its interface.
    pub minor: u8,
    /// Build.
    pub build: u8,
}

/// Family, model and stepping of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Processor {
    /// Family, base and extended part together.
    pub family: u8,
    /// Model, base and extended part together.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
}

/// The fields of a report. Reading proves nothing: see [`VerifiedReport`](super::VerifiedReport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Version of the layout, 2 to 5.
    pub version: u32,
    /// Security version number of the guest, from its ID block.
    pub guest_svn: u32,
    /// What the guest's owner allowed.
    pub policy: GuestPolicy,
    /// From the ID block.
    pub family_id: [u8; 16],
    /// From the ID block.
    pub image_id: [u8; 16],
    /// Privilege level at which the report was requested; 0 is the highest.
    pub vmpl: u32,
    /// 1 is ECDSA on P-384 with SHA-384.
    pub signature_algorithm: u32,
    /// What is enabled on the platform.
    pub platform: PlatformInfo,
    /// How the report is signed.
    pub key_info: KeyInfo,
    /// What the guest wants bound to the report.
    pub report_data: [u8; 64],
    /// Digest of the guest at launch.
    pub measurement: [u8; 48],
    /// What the host provided at launch.
    pub host_data: [u8; 32],
    /// SHA-384 of the key that signed the ID block; zeros without one.
    pub id_key_digest: [u8; 48],
    /// SHA-384 of the key that certified the ID key; zeros without one.
    pub author_key_digest: [u8; 48],
    /// ID of this guest's report.
    pub report_id: [u8; 32],
    /// ID of the report of its migration agent.
    pub report_id_ma: [u8; 32],
    /// The processor, from version 3 on.
    pub processor: Option<Processor>,
    /// ID of the chip; zeros if it is hidden.
    pub chip_id: [u8; 64],
    /// TCB that runs now.
    pub current_tcb: Tcb,
    /// TCB that the signing key is derived from.
    pub reported_tcb: Tcb,
    /// TCB below which the platform cannot be rolled back.
    pub committed_tcb: Tcb,
    /// TCB that ran when the guest was launched.
    pub launch_tcb: Tcb,
    /// Firmware that runs.
    pub current_firmware: FirmwareVersion,
    /// Firmware below which the platform cannot be rolled back.
    pub committed_firmware: FirmwareVersion,
    /// Mitigations at launch, from version 5 on.
    pub launch_mitigations: Option<u64>,
    /// Mitigations now, from version 5 on.
    pub current_mitigations: Option<u64>,
    reserved: Vec<usize>,
    signature: Signature,
    digest: [u8; 48],
}

/// Two scalars, least significant byte first, as the firmware writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signature {
    r: [u8; SCALAR],
    s: [u8; SCALAR],
}

impl Report {
    /// Reads a report of version 2 to 5.
    ///
    /// # Errors
    /// The size or the version is not that of a report. Everything else is left to the checks.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReportError> {
        if bytes.len() != REPORT_SIZE {
            return Err(ReportError::Length(bytes.len()));
        }
        let mut fields = Fields::new(bytes);
        let version = fields.version().map_err(ReportError::Wire)?;
        if !VERSIONS.contains(&version) {
            return Err(ReportError::Version(version));
        }
        let mut report = fields.read(version).map_err(ReportError::Wire)?;
        // Over the bytes as they came, not over another encoding of what was read.
        let signed = bytes.get(..SIGNED_SIZE).unwrap_or_default();
        report.digest = Sha384::digest(signed).into();
        Ok(report)
    }

    /// The product that the report names, from version 3 on.
    pub fn product(&self) -> Option<Product> {
        let processor = self.processor?;
        Product::of_processor(processor.family, processor.model)
    }

    /// Offsets at which a reserved field is not as required, one for each field.
    pub fn reserved(&self) -> &[usize] {
        &self.reserved
    }

    /// Digest of the signed bytes.
    pub(super) fn digest(&self) -> &[u8; 48] {
        &self.digest
    }

    /// The scalars r and s, most significant byte first.
    pub(super) fn scalars(&self) -> ([u8; SCALAR], [u8; SCALAR]) {
        let (mut r, mut s) = (self.signature.r, self.signature.s);
        r.reverse();
        s.reverse();
        (r, s)
    }
}
