//! Doubles for tests: a TPM, a processor with SNP and a confidential virtual machine in software,
//! custom quotes, and a runner for `swtpm`.
//!
//! Nothing here protects anything: keys come from a seed, and the TPM signs anything.

mod attest;
mod azure;
mod credential;
mod snp;
mod soft;
mod swtpm;

pub use self::attest::{AttestFields, SelectionFields};
pub use self::azure::SoftAzure;
pub use self::snp::{CertificateFields, SoftSnp};
pub use self::soft::SoftTpm;
pub use self::swtpm::{EkCa, Swtpm, SwtpmError};
