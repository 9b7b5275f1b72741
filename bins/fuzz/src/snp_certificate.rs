//! Certificates of the keys that sign SNP reports.

use std::sync::OnceLock;

use tec_tpm::snp::{Finding, KeyCertificate, Policy, Product, UntrustedReport};
use tec_tpm::testing::{CertificateFields, SoftSnp};

use crate::bytes::cut;
use crate::ek_certificate::signed;
use crate::sample::snp_chip;
use crate::{Seed, outcome};

/// DER has one form, so a certificate that parses is complete; and a chain to the root exists only for
/// exactly the bytes that its CAs signed.
pub(crate) fn snp_certificate(data: &[u8]) {
    let report = snp_chip().report(&[0x5a; 64]);
    let untrusted = UntrustedReport::new(&report, data);
    let verified = untrusted.verify(SoftSnp::roots(), &Policy::new(), SoftSnp::now());
    let findings = match &verified {
        Ok(_) => Vec::new(),
        Err(refused) => refused.findings().to_vec(),
    };
    let Ok(certificate) = KeyCertificate::from_der(data) else {
        assert!(matches!(findings[..], [Finding::Certificate(_)]));
        return;
    };
    assert!(KeyCertificate::from_der(&[data, &[0]].concat()).is_err());
    assert!(certificate.product_name().is_ascii());
    let is_of_chain = |finding: &Finding| {
        matches!(finding, Finding::CertificateSignature | Finding::UnknownIssuer(_))
    };
    if !findings.iter().any(is_of_chain) {
        let mut known = certified().iter();
        assert!(known.any(|one| signed(one) == signed(data)), "nobody signed this");
    }
    if verified.is_ok() {
        assert_eq!(signed(data), signed(&snp_chip().certificate()));
    }
}

/// A certificate of the chip's key with other fields.
fn certify(change: impl FnOnce(&mut CertificateFields)) -> Vec<u8> {
    let mut fields = snp_chip().certificate_fields();
    change(&mut fields);
    snp_chip().certify(&fields)
}

fn set(fields: &mut CertificateFields, tail: &str, content: &[u8]) {
    let oid = format!("1.3.6.1.4.1.3704.1.{tail}");
    if let Some(old) = fields.extension(&oid) {
        *old = content.to_vec();
    }
}

/// Everything that the fabricated AMD CAs ever signed here.
fn certified() -> &'static [Vec<u8>; 7] {
    static CERTIFIED: OnceLock<[Vec<u8>; 7]> = OnceLock::new();
    CERTIFIED.get_or_init(|| {
        [
            snp_chip().certificate(),
            SoftSnp::vlek(Product::Milan, 1).certificate(),
            SoftSnp::vcek(Product::Turin, 1).certificate(),
            certify(|fields| set(fields, "4", &[0; 64])),
            certify(|fields| set(fields, "3.8", b"\x02\x02\x01\x00")),
            certify(|fields| fields.extensions.truncate(4)),
            certify(|fields| {
                let again = fields.extensions.clone();
                fields.extensions.extend(again);
            }),
        ]
    })
}

pub(crate) fn seeds() -> Vec<Seed> {
    let read = |data: &[u8]| outcome(KeyCertificate::from_der(data));
    let [vcek, vlek, turin, other_chip, large, missing, twice] = certified().clone();
    let mut of_a_stranger = vcek.clone();
    if let Some(last) = of_a_stranger.last_mut() {
        *last ^= 1;
    }
    let half = vcek.len() / 2;
    vec![
        Seed::new("vcek", vcek.clone()),
        Seed::new("vlek", vlek),
        Seed::new("turin", turin),
        Seed::new("other_chip", other_chip),
        Seed::new("of_a_stranger", of_a_stranger),
        Seed::new("microcode_of_256", large).refused(read),
        Seed::new("no_snp_version", missing).refused(read),
        Seed::new("extensions_twice", twice).refused(read),
        Seed::new("cut_off", cut(vcek, half)).refused(read),
    ]
}
