//! Doubles for tests: a TPM and a processor with SNP in software,
//! quotes made to measure, and a runner for `swtpm`.
//!
//! Nothing here protects anything: keys come from a seed, and the TPM signs what it is told to.

mod attest;
mod snp;
mod soft;
mod swtpm;

pub use self::attest::AttestFields;
pub use self::attest::SelectionFields;
pub use self::snp::CertificateFields;
pub use self::snp::SoftSnp;
pub use self::soft::SoftTpm;
pub use self::swtpm::EkCa;
pub use self::swtpm::Swtpm;
pub use self::swtpm::SwtpmError;
