//! What is wrong with a report, one by one.

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
    /// A reserved field of the report is not as it must be.
    #[error("the reserved field at offset {offset:#x} is in use")]
    Reserved {
        /// First such byte of the field.
        offset: usize,
    },
    /// No CA of this name is trusted.
    #[error("the issuer {issuer:?} of the key's certificate is not trusted")]
    UnknownIssuer {
        /// Its name.
        issuer: String,
    },
    /// The CA of this name did not sign the certificate.
    #[error("the key's certificate is not signed by its issuer")]
    CertificateSignature,
    /// A certificate of the chain is not valid yet.
    #[error("the certificate of {subject:?} is valid from {from} only")]
    NotYetValid {
        /// Whose.
        subject: String,
        /// First second of validity.
        from: Timestamp,
    },
    /// A certificate of the chain has expired.
    #[error("the certificate of {subject:?} was valid until {until}")]
    Expired {
        /// Whose.
        subject: String,
        /// Last second of validity.
        until: Timestamp,
    },
    /// The certificate names a product other than its issuer's.
    #[error("the certificate of a key of {issuer} names the product {name:?}")]
    ProductName {
        /// Product of the issuer.
        issuer: Product,
        /// What the certificate says.
        name: String,
    },
    /// The processor that made the report is not of the certificate's product.
    #[error("the report does not come from a processor of the product {certificate}")]
    Product {
        /// Product of the certificate's issuer.
        certificate: Product,
    },
    /// The report names a type of key other than the certificate's.
    #[error("the report is signed by the key {report}, the certificate is for a {certificate}")]
    SigningKey {
        /// What the report says.
        report: SigningKey,
        /// What the issuer certifies.
        certificate: SigningKey,
    },
    /// The firmware is configured to sign nothing.
    #[error("the chip's key is masked, so the report is not signed")]
    ChipKeyMasked,
    /// A signature algorithm other than ECDSA on P-384 with SHA-384.
    #[error("the signature algorithm {found} is not known")]
    SignatureAlgorithm {
        /// Which.
        found: u32,
    },
    /// The key did not sign this report.
    #[error("the report is not signed by the certified key")]
    Signature,
    /// The report is from a chip other than the certificate's.
    #[error("the report and the certificate are from different chips")]
    HardwareId,
    /// The certificate is for a TCB other than the reported one.
    #[error("the certificate is for {part} {certificate}, the report says {report}")]
    CertificateTcb {
        /// Which part.
        part: TcbPart,
        /// What the certificate says.
        certificate: u8,
        /// What the report says.
        report: u8,
    },
    /// Two TCBs of the report contradict each other.
    #[error("{part} of the {lower} TCB is {lower_value}, above the {upper} TCB with {upper_value}")]
    TcbOrder {
        /// Which part.
        part: TcbPart,
        /// The one that should not be greater.
        lower: TcbField,
        /// Its number.
        lower_value: u8,
        /// The one that should not be smaller.
        upper: TcbField,
        /// Its number.
        upper_value: u8,
    },
    /// The running firmware is older than the committed one, below which it cannot be rolled back.
    #[error("the firmware is older than the committed one")]
    FirmwareOrder,
    /// A TCB is older than the policy demands.
    #[error("{part} of the {field} TCB is {found}; at least {minimum} is required")]
    TcbMinimum {
        /// Which TCB.
        field: TcbField,
        /// Which part.
        part: TcbPart,
        /// Its number.
        found: u8,
        /// The least that is accepted.
        minimum: u8,
    },
    /// The report was not requested at the highest privilege level.
    #[error("the report was requested at privilege level {found}, not 0")]
    Vmpl {
        /// Level.
        found: u32,
    },
    /// The guest's policy allows what must not be allowed.
    #[error("the guest's policy has {what}, which is forbidden")]
    GuestPolicyForbidden {
        /// What.
        what: &'static str,
    },
    /// The guest's policy lacks what is required.
    #[error("the guest's policy lacks {what}, which is required")]
    GuestPolicyLacks {
        /// What.
        what: &'static str,
    },
    /// The digest at launch is not on the list.
    #[error("the measurement is not accepted")]
    Measurement,
    /// The ID key is not on the list.
    #[error("the ID key is not accepted")]
    IdKey,
    /// The author key is not on the list.
    #[error("the author key is not accepted")]
    AuthorKey,
    /// The host data are not on the list.
    #[error("the host data is not accepted")]
    HostData,
}

/// A report was refused, with all that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    findings: Vec<Finding>,
}

impl Refused {
    pub(super) fn new(findings: Vec<Finding>) -> Self {
        Self { findings }
    }

    /// What is wrong; never empty.
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
