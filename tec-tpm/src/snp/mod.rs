//! Attestation reports of AMD SEV-SNP: what a guest is, according to the processor's firmware.
//!
//! ```text
//!  report ──────── Report::parse ─────────┐
//!  certificate ─── KeyCertificate::from_der ─┤ UntrustedReport::verify ─┬► VerifiedReport
//!  Roots (ARK, ASK, ASVK by product) ─────┤   all checks, each to its    └► Refused: every Finding
//!  Policy, the time of day ───────────────┘   end, over the bytes as they came
//! ```
//!
//! *What it is not*: it fetches nothing. The key's certificate comes with the evidence, those above
//! it are compiled in, and revocation lists are not checked. The caller must check the report data
//! of a report: see [`hcl`](crate::hcl) for Azure.
//!
//! # Example
//! ```
//! # #[cfg(feature = "test-util")] {
//! use tec_tpm::snp::{Finding, GuestPolicy, Policy, Product, UntrustedReport};
//! use tec_tpm::testing::SoftSnp;
//!
//! let chip = SoftSnp::vcek(Product::Milan, 7); // in earnest, bytes from a node, and Roots::amd()
//! let (report, certificate) = (chip.report(&[0x5a; 64]), chip.certificate());
//! let untrusted = UntrustedReport::new(&report, &certificate);
//!
//! let verified = untrusted.verify(SoftSnp::roots(), &Policy::new(), SoftSnp::now())?;
//! assert_eq!(verified.report().report_data, [0x5a; 64]);
//!
//! let strict = Policy::new().forbidding(GuestPolicy::SMT).with_id_keys([]);
//! let refused = untrusted.verify(SoftSnp::roots(), &strict, SoftSnp::now()).unwrap_err();
//! assert_eq!(refused.findings().len(), 2);
//! assert!(refused.findings().contains(&Finding::IdKey));
//! # }
//! # Ok::<(), tec_tpm::snp::Refused>(())
//! ```

mod bits;
mod certificate;
mod check;
mod finding;
mod policy;
mod product;
mod report;
mod roots;
mod tcb;

pub use self::bits::{GuestPolicy, KeyInfo, PlatformInfo, SigningKey};
pub use self::certificate::{KeyCertificate, KeyCertificateError};
pub use self::finding::{Finding, Refused};
pub use self::policy::Policy;
pub use self::product::Product;
pub use self::report::{FirmwareVersion, Processor, REPORT_SIZE, Report, ReportError};
pub use self::roots::{ProductCertificates, RootError, Roots};
pub use self::tcb::{Tcb, TcbField, TcbPart};

#[cfg(any(test, feature = "test-util"))]
pub(crate) use self::check::ECDSA_P384_SHA384;
#[cfg(any(test, feature = "test-util"))]
pub(crate) use self::report::SCALAR;
#[cfg(any(test, feature = "test-util"))]
pub(crate) use self::report::SIGNED_SIZE;
#[cfg(any(test, feature = "test-util"))]
pub(crate) use self::roots::SALT;

use tec_core::time::Timestamp;

use self::check::Findings;

/// A report and the certificate of the key that supposedly signed it, as received.
#[derive(Clone, Copy, Debug)]
pub struct UntrustedReport<'a> {
    report: &'a [u8],
    certificate: &'a [u8],
}

/// Proof that genuine firmware made this report, and that it satisfies a [`Policy`].
#[derive(Clone, Debug)]
pub struct VerifiedReport {
    report: Report,
    product: Product,
}

impl VerifiedReport {
    /// The fields.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The product whose CA certified the key.
    pub fn product(&self) -> Product {
        self.product
    }
}

impl Report {
    /// One of its four TCBs.
    pub fn tcb(&self, field: TcbField) -> &Tcb {
        match field {
            TcbField::Current => &self.current_tcb,
            TcbField::Reported => &self.reported_tcb,
            TcbField::Committed => &self.committed_tcb,
            TcbField::Launch => &self.launch_tcb,
        }
    }
}

impl<'a> UntrustedReport<'a> {
    /// Takes a report, and a certificate in DER.
    pub fn new(report: &'a [u8], certificate: &'a [u8]) -> Self {
        Self { report, certificate }
    }

    /// Runs all checks and collects all findings.
    pub fn verify(
        self,
        roots: &Roots,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<VerifiedReport, Refused> {
        let mut findings = Findings::default();
        let report = Report::parse(self.report)
            .map_err(|error| findings.0.push(Finding::Report(error)))
            .ok();
        let certificate = KeyCertificate::from_der(self.certificate)
            .map_err(|error| findings.0.push(Finding::Certificate(error)))
            .ok();
        let origin =
            certificate.as_ref().and_then(|certificate| findings.chain(certificate, roots, now));
        if let (Some(report), Some(certificate)) = (&report, &certificate) {
            findings.fit(report, certificate, origin);
        }
        let product = origin.map(|origin| origin.product);
        if let Some(report) = &report {
            findings.consistency(report);
            findings.policy(report, policy, product.or_else(|| report.product()));
        }
        match (report, product) {
            (Some(report), Some(product)) if findings.0.is_empty() => {
                Ok(VerifiedReport { report, product })
            }
            // Without report or product there is a finding that says why.
            _ => Err(Refused::new(findings.0)),
        }
    }
}

#[cfg(test)]
mod tests;
