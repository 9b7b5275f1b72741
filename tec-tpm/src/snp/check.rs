//! The checks. Each adds what it finds, and none stops the others.

use std::collections::BTreeSet;

use p384::ecdsa::Signature;
use p384::ecdsa::signature::hazmat::PrehashVerifier as _;
use tec_core::time::Timestamp;

use super::finding::shortened;
use super::{
    Finding, KeyCertificate, Policy, Product, Report, Roots, SigningKey, TcbField, TcbPart,
};

/// ECDSA on P-384 with SHA-384 (SEV-SNP Firmware ABI Specification, "Signature Algorithm").
pub(crate) const ECDSA_P384_SHA384: u32 = 1;

/// Who issued a certificate, as far as its name and signature say.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) product: Product,
    pub(super) kind: SigningKey,
}

/// Findings of one verification, in the order of the checks.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    fn add_if(&mut self, is_wrong: bool, finding: Finding) {
        if is_wrong {
            self.0.push(finding);
        }
    }

    /// The chain from a certificate to a trusted root.
    pub(super) fn chain(
        &mut self,
        certificate: &KeyCertificate,
        roots: &Roots,
        now: Timestamp,
    ) -> Option<Origin> {
        let Some(issuer) = roots.issuer(certificate.parsed()) else {
            self.0.push(Finding::UnknownIssuer(shortened(&certificate.issuer())));
            return None;
        };
        self.0.extend(issuer.findings(certificate.parsed(), now));
        self.add_if(
            certificate.product() != Some(issuer.product),
            Finding::ProductName {
                issuer: issuer.product,
                name: shortened(certificate.product_name()),
            },
        );
        Some(Origin { product: issuer.product, kind: issuer.kind })
    }

    /// Whether the certificate is that of the key that signed the report.
    pub(super) fn fit(
        &mut self,
        report: &Report,
        certificate: &KeyCertificate,
        origin: Option<Origin>,
    ) {
        if let Some(origin) = origin {
            self.origin(report, certificate, origin);
        }
        for part in TcbPart::ALL {
            let (certified, reported) =
                (certificate.tcb().part(part), report.reported_tcb.part(part));
            self.add_if(
                certified != reported,
                Finding::CertificateTcb { part, certificate: certified, report: reported },
            );
        }
        self.signature(report, certificate);
    }

    fn origin(&mut self, report: &Report, certificate: &KeyCertificate, origin: Origin) {
        // Reports of version 2 do not say; firmware for Turin makes newer ones.
        let fits = match report.processor {
            Some(_) => report.product() == Some(origin.product),
            None => origin.product != Product::Turin,
        };
        self.add_if(!fits, Finding::Product(origin.product));
        let signing_key = report.key_info.signing_key();
        self.add_if(
            signing_key != origin.kind,
            Finding::SigningKey { report: signing_key, certificate: origin.kind },
        );
        // A VLEK is of no chip.
        let of_this_chip = origin.kind != SigningKey::Vcek
            || certificate
                .hardware_id()
                .is_some_and(|id| is_chip(id, &report.chip_id, origin.product));
        self.add_if(!of_this_chip, Finding::HardwareId);
    }

    fn signature(&mut self, report: &Report, certificate: &KeyCertificate) {
        if report.key_info.masks_chip_key() {
            self.0.push(Finding::ChipKeyMasked);
        }
        if report.signature_algorithm != ECDSA_P384_SHA384 {
            self.0.push(Finding::SignatureAlgorithm(report.signature_algorithm));
        }
        let (r, s) = report.scalars();
        let verified = Signature::from_scalars(r, s).is_ok_and(|signature| {
            certificate.key().verify_prehash(report.digest(), &signature).is_ok()
        });
        self.add_if(!verified, Finding::Signature);
    }

    /// Whether the report is consistent.
    pub(super) fn consistency(&mut self, report: &Report) {
        let reserved = report.reserved().iter();
        self.0.extend(reserved.map(|offset| Finding::Reserved { offset: *offset }));
        // SNP_CONFIG takes no reported TCB above the committed one, and SNP_COMMIT raises the
        // committed to the current one (SEV-SNP Firmware ABI Specification, both commands).
        for (lower, upper) in [
            (TcbField::Reported, TcbField::Committed),
            (TcbField::Committed, TcbField::Current),
            (TcbField::Launch, TcbField::Current),
        ] {
            self.order(report, lower, upper);
        }
        self.add_if(report.committed_firmware > report.current_firmware, Finding::FirmwareOrder);
    }

    fn order(&mut self, report: &Report, lower: TcbField, upper: TcbField) {
        let (low, high) = (report.tcb(lower), report.tcb(upper));
        self.0.extend(low.parts_above(high).map(|part| Finding::TcbOrder {
            part,
            lower,
            lower_value: low.part(part),
            upper,
            upper_value: high.part(part),
        }));
    }

    /// Whether the report is one that the operator accepts.
    pub(super) fn policy(&mut self, report: &Report, policy: &Policy, product: Option<Product>) {
        self.add_if(report.vmpl != 0, Finding::Vmpl(report.vmpl));
        self.0.extend(
            report.policy.names_common(policy.forbidden).map(Finding::GuestPolicyForbidden),
        );
        self.0
            .extend(policy.required.names_missing_in(report.policy).map(Finding::GuestPolicyLacks));
        if let Some(minimum) = product.and_then(|product| policy.minimum_tcb.get(&product)) {
            for field in [TcbField::Reported, TcbField::Committed, TcbField::Launch] {
                let tcb = report.tcb(field);
                self.0.extend(minimum.parts_above(tcb).map(|part| Finding::TcbMinimum {
                    field,
                    part,
                    found: tcb.part(part),
                    minimum: minimum.part(part),
                }));
            }
        }
        self.add_if(
            !is_listed(policy.measurements.as_ref(), &report.measurement),
            Finding::Measurement,
        );
        self.add_if(!is_listed(policy.id_keys.as_ref(), &report.id_key_digest), Finding::IdKey);
        let author = &report.author_key_digest;
        self.add_if(!is_listed(policy.author_keys.as_ref(), author), Finding::AuthorKey);
        self.add_if(!is_listed(policy.host_data.as_ref(), &report.host_data), Finding::HostData);
    }
}

/// Whether a required list contains this.
fn is_listed<T: Ord>(list: Option<&BTreeSet<T>>, found: &T) -> bool {
    list.is_none_or(|list| list.contains(found))
}

/// Whether `id` of a certificate is the chip ID of a report.
fn is_chip(id: &[u8], chip_id: &[u8; 64], product: Product) -> bool {
    let length = product.hardware_id_length();
    let mut padded = [0; 64];
    for (to, from) in padded.iter_mut().zip(id) {
        *to = *from;
    }
    id.len() == length && padded == *chip_id
}
