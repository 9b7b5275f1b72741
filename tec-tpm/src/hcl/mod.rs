//! The report of Azure's paravisor, the host compatibility layer (HCL): a hardware report, and the
//! runtime data that it binds, with the attestation key of the virtual machine's vTPM among them.
//!
//! ```text
//!      0  header: "HCLA", version, size, …
//!   0x20  hardware report (SNP or TDX), 1184 bytes
//!  0x4c0  size, version, report type, hash type, size of the JSON
//!  0x4d4  JSON: keys, configuration, user data; zeros up to the size of the NV index
//! ```
//! All numbers are little-endian. A guest reads the report from NV index 0x01400001.
//!
//! *What it is not*: proof. The digest of the JSON must be in the report data of a genuine hardware
//! report ([`HclReport::is_bound_by`]), which [`snp`](crate::snp) verifies.

mod error;
mod runtime;

pub use self::error::HclError;
pub use self::runtime::RuntimeData;

use subtle::ConstantTimeEq as _;

use crate::event_log::Bank;
use crate::snp::REPORT_SIZE;
use crate::wire::WireReader;

/// Largest report that is examined; the NV index has 2600 bytes.
pub const MAX_HCL_REPORT: usize = 8 * 1024;
/// First bytes of a report.
pub(crate) const MAGIC: [u8; 4] = *b"HCLA";
/// Bytes before the hardware report.
pub(crate) const HEADER: usize = 0x20;
/// Bytes between hardware report and JSON.
pub(crate) const RUNTIME_HEADER: usize = 0x14;

/// The hardware that created the report inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HardwareKind {
    /// AMD SEV-SNP; number 2.
    Snp,
    /// Intel TDX; number 4.
    Tdx,
}

/// A report, split into its parts. Nothing in it is proven.
#[derive(Clone, Copy, Debug)]
pub struct HclReport<'a> {
    kind: HardwareKind,
    hash: Bank,
    hardware: &'a [u8; REPORT_SIZE],
    variable: &'a [u8],
}

impl<'a> HclReport<'a> {
    /// Reads the header and the frame of the runtime data. What follows the JSON is ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, HclError> {
        if bytes.len() > MAX_HCL_REPORT {
            return Err(HclError::TooLarge(bytes.len()));
        }
        let mut reader = WireReader::new(bytes);
        if reader.array().map_err(HclError::Wire)? != MAGIC {
            return Err(HclError::Magic);
        }
        let total = read_header(&mut reader)?;
        let hardware = reader.array_ref().map_err(HclError::Wire)?;
        let (size, variable, kind, hash) = read_frame(&mut reader)?;
        let expected = RUNTIME_HEADER + variable.len();
        if size != expected || total != HEADER + REPORT_SIZE + size {
            return Err(HclError::Sizes { total, data: size, variable: variable.len() });
        }
        Ok(Self { kind, hash, hardware, variable })
    }

    /// The hardware that created the report inside.
    pub fn kind(&self) -> HardwareKind {
        self.kind
    }

    /// Which hash binds the runtime data.
    pub fn hash(&self) -> Bank {
        self.hash
    }

    /// The hardware report.
    pub fn hardware_report(&self) -> &'a [u8; REPORT_SIZE] {
        self.hardware
    }

    /// The JSON, byte for byte.
    pub fn variable_data(&self) -> &'a [u8] {
        self.variable
    }

    /// The JSON, parsed.
    pub fn runtime_data(&self) -> Result<RuntimeData, HclError> {
        RuntimeData::parse(self.variable)
    }

    /// Whether this report data is the digest of the JSON followed by zeros.
    pub fn is_bound_by(&self, report_data: &[u8; 64]) -> bool {
        let mut expected = [0; 64];
        let digest = self.hash.hash(self.variable);
        for (to, from) in expected.iter_mut().zip(digest) {
            *to = from;
        }
        expected.ct_eq(report_data).into()
    }
}

/// What follows the magic: gives the size of the whole report.
fn read_header(reader: &mut WireReader<'_>) -> Result<usize, HclError> {
    let version = reader.le_u32().map_err(HclError::Wire)?;
    // 1 on Milan, 2 on Genoa and with TDX.
    if !(1..=2).contains(&version) {
        return Err(HclError::Version(version));
    }
    let total = reader.le_u32().map_err(HclError::Wire)?;
    // Request type, status, reserved: they say nothing about what is inside.
    reader.array::<20>().map_err(HclError::Wire)?;
    Ok(size(total))
}

/// Size of the runtime data, the JSON, and how to read both.
fn read_frame<'a>(
    reader: &mut WireReader<'a>,
) -> Result<(usize, &'a [u8], HardwareKind, Bank), HclError> {
    let mut next = || reader.le_u32().map_err(HclError::Wire);
    let (data, version) = (next()?, next()?);
    if version != 1 {
        return Err(HclError::Version(version));
    }
    let kind = match next()? {
        2 => HardwareKind::Snp,
        4 => HardwareKind::Tdx,
        found => return Err(HclError::ReportType(found)),
    };
    let hash = match next()? {
        1 => Bank::Sha256,
        2 => Bank::Sha384,
        3 => Bank::Sha512,
        found => return Err(HclError::HashType(found)),
    };
    let length = size(next()?);
    let variable = reader.take(length).map_err(HclError::Wire)?;
    Ok((size(data), variable, kind, hash))
}

/// A size that does not fit is larger than any buffer.
fn size(field: u32) -> usize {
    usize::try_from(field).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
