//! Everything that can be wrong with a report.

use std::fmt;

use tec_core::time::Timestamp;

use super::{KeyCertificateError, Product, ReportError, SigningKey, TcbField, TcbPart};

/// Maximum number of characters of a name from a certificate that a finding repeats: anyone can
/// choose a name, and findings are stored.
const MAX_NAME: usize = 128;

/// A name, cut to what a finding repeats.
pub(super) fn shortened(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

/// One thing that is wrong with a report, its certificate, or how they match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// The report cannot be read.
    #[error(transparent)]
    Report(ReportError),
    /// The certificate cannot be read.
    #[error(transparent)]
    Certificate(KeyCertificateError),
    /// A reserved field of the report is not as required.
    #[error("the reserved field at offset {offset:#x} is in use")]
    Reserved {
        /// Offset of the first such byte of the field.
        offset: usize,
    },
    /// No CA of this name is trusted.
    #[error("the issuer {0:?} of the key's certificate is not trusted")]
    UnknownIssuer(String),
    /// The CA of this name did not sign the certificate.
    #[error("the key's certificate is not signed by its issuer")]
    CertificateSignature,
    /// A certificate of the chain is not valid yet.
    #[error("the certificate of {subject:?} is not valid before {from}")]
    NotYetValid {
        /// Subject of the certificate.
        subject: String,
        /// First second of validity.
        from: Timestamp,
    },
    /// A certificate of the chain has expired.
    #[error("the certificate of {subject:?} expired at {until}")]
    Expired {
        /// Subject of the certificate.
        subject: String,
        /// Last second of validity.
        until: Timestamp,
    },
    /// The certificate names a product other than its issuer's.
    #[error("the certificate of a key of {issuer} names the product {name:?}")]
    ProductName {
        /// Product of the issuer.
        issuer: Product,
        /// Product in the certificate.
        name: String,
    },
    /// The processor that made the report is not of the certificate's product.
    #[error("the report does not come from a processor of the product {0}")]
    Product(Product),
    /// The report names a type of key other than the certificate's.
    #[error("the report is signed by the key {report}, but the certificate is for a {certificate}")]
    SigningKey {
        /// Type of key in the report.
        report: SigningKey,
        /// Type of key that the issuer certifies.
        certificate: SigningKey,
    },
    /// The firmware is configured to sign nothing.
    #[error("the chip's key is masked, so the report is not signed")]
    ChipKeyMasked,
    /// The signature algorithm is not ECDSA on P-384 with SHA-384.
    #[error("the signature algorithm {0} is not known")]
    SignatureAlgorithm(u32),
    /// The key did not sign this report.
    #[error("the report is not signed by the certified key")]
    Signature,
    /// The report is from a chip other than the certificate's.
    #[error("the report and the certificate are from different chips")]
    HardwareId,
    /// The certificate is for a TCB other than the reported one.
    #[error("the certificate is for {part} {certificate}, but the report states {report}")]
    CertificateTcb {
        /// The part of the TCB.
        part: TcbPart,
        /// Version in the certificate.
        certificate: u8,
        /// Version in the report.
        report: u8,
    },
    /// Two TCBs of the report contradict each other.
    #[error(
        "{part} is {lower_value} in the {lower} TCB, higher than {upper_value} in the {upper} TCB"
    )]
    TcbOrder {
        /// The part of the TCB.
        part: TcbPart,
        /// The TCB that should not be greater.
        lower: TcbField,
        /// Version of the part.
        lower_value: u8,
        /// The TCB that should not be smaller.
        upper: TcbField,
        /// Version of the part.
        upper_value: u8,
    },
    /// The running firmware is older than the committed one, below which it cannot be rolled back.
    #[error("the firmware is older than the committed firmware")]
    FirmwareOrder,
    /// A TCB is older than the policy requires.
    #[error("{part} of the {field} TCB is {found}; at least {minimum} is required")]
    TcbMinimum {
        /// The TCB.
        field: TcbField,
        /// The part of the TCB.
        part: TcbPart,
        /// Version of the part.
        found: u8,
        /// Minimum version that is accepted.
        minimum: u8,
    },
    /// The report was not requested at the highest privilege level.
    #[error("the report was requested at privilege level {0}, not 0")]
    Vmpl(u32),
    /// The guest's policy allows what must not be allowed.
    #[error("the guest's policy has {0}, which is forbidden")]
    GuestPolicyForbidden(&'static str),
    /// The guest's policy lacks what is required.
    #[error("the guest's policy lacks {0}, which is required")]
    GuestPolicyLacks(&'static str),
    /// The digest at launch is not on the list.
    #[error("the measurement is not accepted")]
    Measurement,
    /// The ID key is not on the list.
    #[error("the ID key is not accepted")]
    IdKey,
    /// The author key is not on the list.
    #[error("the author key is not accepted")]
    AuthorKey,
    /// The host data is not on the list.
    #[error("the host data is not accepted")]
    HostData,
}

/// A report was refused, with everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    findings: Vec<Finding>,
}

impl Refused {
    pub(super) fn new(findings: Vec<Finding>) -> Self {
        Self { findings }
    }

    /// The findings; never empty.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, finding) in self.findings.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            write!(f, "{separator}{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}
