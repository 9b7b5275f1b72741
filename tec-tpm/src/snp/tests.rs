//! A made-up AMD: a sound report passes, and each defect has its own finding.

use super::*;
use crate::testing::{CertificateFields, SoftSnp};

const REPORT_DATA: [u8; 64] = [0x5a; 64];

fn verify(report: &[u8], certificate: &[u8], policy: &Policy) -> Result<VerifiedReport, Refused> {
    UntrustedReport::new(report, certificate).verify(SoftSnp::roots(), policy, SoftSnp::now())
}

fn findings(report: &[u8], certificate: &[u8], policy: &Policy) -> Vec<Finding> {
    match verify(report, certificate, policy) {
        Ok(_) => Vec::new(),
        Err(refused) => refused.findings().to_vec(),
    }
}

/// Findings of a report whose signed part was changed before it was signed.
fn with_body(chip: &SoftSnp, change: impl Fn(&mut [u8; SIGNED_SIZE])) -> Vec<Finding> {
    let mut body = chip.unsigned(&REPORT_DATA);
    change(&mut body);
    findings(&chip.sign(&body), &chip.certificate(), &Policy::new())
}

/// Findings of a certificate whose fields were changed before it was signed.
fn with_certificate(chip: &SoftSnp, change: impl Fn(&mut CertificateFields)) -> Vec<Finding> {
    let mut fields = chip.certificate_fields();
    change(&mut fields);
    let certificate = chip.certify(&fields);
    findings(&chip.report(&REPORT_DATA), &certificate, &Policy::new())
}

fn milan() -> SoftSnp {
    SoftSnp::vcek(Product::Milan, 1)
}

#[test]
fn sound_reports_of_all_products_and_both_keys_pass() {
    for product in Product::ALL {
        for chip in [SoftSnp::vcek(product, 1), SoftSnp::vlek(product, 1)] {
            let (report, certificate) = (chip.report(&REPORT_DATA), chip.certificate());
            let verified = verify(&report, &certificate, &Policy::new()).unwrap();
            assert_eq!(verified.product(), product);
            assert_eq!(verified.report().report_data, REPORT_DATA);
            assert_eq!(verified.report().product(), Some(product));
            assert_eq!(verified.report().reported_tcb.microcode, 219);
            assert_eq!(verified.report().current_firmware.minor, 55);
        }
    }
}

#[test]
fn versions_2_to_5_are_read_and_others_are_not() {
    let chip = milan();
    for version in [2, 3, 4, 5] {
        let found = with_body(&chip, |body| {
            body[0] = version;
            if version == 2 {
                body[0x188..0x18b].fill(0);
            }
            if version == 5 {
                body[0x1f8..0x208].fill(7);
            }
        });
        assert_eq!(found, []);
    }
    for version in [0, 1, 6, 255] {
        let found = with_body(&chip, |body| body[0] = version);
        let version = u32::from(version);
        let refused = Finding::Report(ReportError::Version(version));
        assert_eq!(found, [refused]);
    }
    let mut body = chip.unsigned(&REPORT_DATA);
    body[0] = 5;
    body[0x1f8] = 1;
    body[0x200] = 2;
    let report = Report::parse(&chip.sign(&body)).unwrap();
    assert_eq!(report.launch_mitigations, Some(1));
    assert_eq!(report.current_mitigations, Some(2));
}

#[test]
fn reports_of_other_sizes_are_refused() {
    let whole = milan().report(&REPORT_DATA);
    for length in (0..whole.len()).step_by(37) {
        assert_eq!(Report::parse(&whole[..length]), Err(ReportError::Length(length)));
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(matches!(Report::parse(&longer), Err(ReportError::Length(1185))));
}

#[test]
fn every_changed_field_has_its_own_finding() {
    use TcbField::{Committed, Current, Launch, Reported};
    let order = |part, lower, lower_value, upper, upper_value| Finding::TcbOrder {
        part,
        lower,
        lower_value,
        upper,
        upper_value,
    };
    let forbidden = |what| Finding::GuestPolicyForbidden(what);
    let cases = [
        (0x00a, 0x07, forbidden("a migration agent")),
        (0x00a, 0x0b, forbidden("debugging")),
        (0x00a, 0x01, Finding::Reserved { offset: 0x00a }),
        (0x00f, 0x80, Finding::Reserved { offset: 0x00f }),
        (0x030, 1, Finding::Vmpl(1)),
        (0x034, 2, Finding::SignatureAlgorithm(2)),
        (0x03b, 1, Finding::Reserved { offset: 0x03b }),
        (0x048, 2, Finding::ChipKeyMasked),
        (0x049, 1, Finding::Reserved { offset: 0x049 }),
        (0x04c, 1, Finding::Reserved { offset: 0x04c }),
        (
            0x180,
            3,
            Finding::CertificateTcb { part: TcbPart::Bootloader, certificate: 4, report: 3 },
        ),
        (0x188, 0x1b, product(Product::Milan)),
        (0x189, 0x11, product(Product::Milan)),
        (0x18b, 1, Finding::Reserved { offset: 0x18b }),
        (0x1a0, 0, Finding::HardwareId),
        (0x1df, 0, Finding::HardwareId),
        (0x1e0, 5, order(TcbPart::Bootloader, Committed, 5, Current, 4)),
        (0x1e1, 0, order(TcbPart::Tee, Reported, 1, Committed, 0)),
        (0x1e6, 23, order(TcbPart::Snp, Reported, 24, Committed, 23)),
        (0x1eb, 1, Finding::Reserved { offset: 0x1eb }),
        (0x1ec, 30, Finding::FirmwareOrder),
        (0x1f7, 220, order(TcbPart::Microcode, Launch, 220, Current, 219)),
        (0x1f8, 1, Finding::Reserved { offset: 0x1f8 }),
        (0x29f, 1, Finding::Reserved { offset: 0x29f }),
    ];
    let chip = milan();
    for (offset, value, finding) in cases {
        let found = with_body(&chip, |body| body[offset] = value);
        assert_eq!(found, [finding], "offset {offset:#x}");
    }
}

fn product(certificate: Product) -> Finding {
    Finding::Product(certificate)
}

#[test]
fn all_findings_come_at_once() {
    let found = with_body(&milan(), |body| {
        body[0x00a] |= 8;
        body[0x030] = 3;
        body[0x048] = 4;
        body[0x1a0] ^= 1;
    });
    assert_eq!(
        found,
        [
            Finding::SigningKey { report: SigningKey::Vlek, certificate: SigningKey::Vcek },
            Finding::HardwareId,
            Finding::Vmpl(3),
            Finding::GuestPolicyForbidden("debugging"),
        ]
    );
    let refused = Refused::new(found);
    assert!(
        refused.to_string().contains("the certificate are from different chips; the report was")
    );
}

#[test]
fn the_old_and_the_new_layout_of_versions_are_told_apart() {
    let turin = SoftSnp::vcek(Product::Turin, 1);
    // Byte 0 is the firmware management controller, which the certificate has as 0.
    assert_eq!(
        with_body(&turin, |body| {
            for offset in [0x038, 0x180, 0x1e0, 0x1f0] {
                body[offset] = 1;
            }
        }),
        [Finding::CertificateTcb { part: TcbPart::Fmc, certificate: 0, report: 1 }]
    );
    assert_eq!(with_body(&turin, |body| body[0x184] = 1), [Finding::Reserved { offset: 0x184 }]);
    // Beyond its eight bytes an id of Turin has zeros.
    assert_eq!(with_body(&turin, |body| body[0x1a8] = 1), [Finding::HardwareId]);
    // A report that does not name its processor is not of Turin.
    let found = with_body(&turin, |body| {
        body[0] = 2;
        body[0x188..0x18b].fill(0);
    });
    assert!(found.contains(&product(Product::Turin)), "{found:?}");
}

#[test]
fn a_changed_byte_is_always_seen() {
    let chip = milan();
    let (report, certificate) = (chip.report(&REPORT_DATA), chip.certificate());
    for offset in (4..report.len()).step_by(11) {
        let mut changed = report.clone();
        changed[offset] ^= 0x10;
        let found = findings(&changed, &certificate, &Policy::new());
        let expected = match offset {
            // Padding of the two numbers, and what follows them.
            0x2d0..0x2e8 | 0x318..0x4a0 => Finding::Reserved { offset },
            _ => Finding::Signature,
        };
        assert!(found.contains(&expected), "{offset:#x}: {found:?}");
    }
    for certificate_of in [SoftSnp::vcek(Product::Milan, 2), SoftSnp::vlek(Product::Milan, 1)] {
        let found = findings(&report, &certificate_of.certificate(), &Policy::new());
        assert!(!found.is_empty());
    }
}

#[test]
fn every_extension_of_the_certificate_counts() {
    let tcb = |part, certificate, report| Finding::CertificateTcb { part, certificate, report };
    let wrong = |extension| Finding::Certificate(KeyCertificateError::Extension(extension));
    let name = |name: &str| Finding::ProductName { issuer: Product::Milan, name: name.to_owned() };
    let cases: [(&str, &[u8], Finding); 10] = [
        ("2", b"\x16\x05Genoa", name("Genoa")),
        ("2", b"\x16\x06Naples", name("Naples")),
        ("2", b"\x0c\x05Milan", wrong("productName")),
        ("3.1", b"\x02\x01\x05", tcb(TcbPart::Bootloader, 5, 4)),
        ("3.2", b"\x02\x01\x00", tcb(TcbPart::Tee, 0, 1)),
        ("3.3", b"\x02\x01\x19", tcb(TcbPart::Snp, 25, 24)),
        ("3.8", b"\x02\x01\x5b", tcb(TcbPart::Microcode, 91, 219)),
        // A number of two bytes, and one that is negative.
        ("3.8", b"\x02\x02\x01\x00", wrong("ucodeSPL")),
        ("3.8", b"\x02\x01\xdb", wrong("ucodeSPL")),
        ("4", &[1; 64], Finding::HardwareId),
    ];
    let chip = milan();
    for (tail, content, finding) in cases {
        let oid = format!("1.3.6.1.4.1.3704.1.{tail}");
        let found = with_certificate(&chip, |fields| {
            *fields.extension(&oid).unwrap() = content.to_vec();
        });
        assert_eq!(found, [finding], "{oid}");
    }
}

#[test]
fn extensions_must_be_there_once() {
    let chip = milan();
    for (tail, name) in [
        ("2", "productName"),
        ("3.1", "blSPL"),
        ("3.2", "teeSPL"),
        ("3.3", "snpSPL"),
        ("3.8", "ucodeSPL"),
    ] {
        let oid = format!("1.3.6.1.4.1.3704.1.{tail}");
        let wrong = Finding::Certificate(KeyCertificateError::Extension(name));
        let removed = with_certificate(&chip, |f| f.extensions.retain(|(one, _)| *one != oid));
        assert_eq!(removed, std::slice::from_ref(&wrong));
        let doubled = with_certificate(&chip, |fields| {
            let again = fields.extensions.iter().find(|(one, _)| *one == oid);
            fields.extensions.extend(again.cloned());
        });
        assert_eq!(doubled, [wrong]);
    }
    let no_id = with_certificate(&chip, |f| {
        f.extensions.retain(|(one, _)| !one.ends_with(".4"));
    });
    assert_eq!(no_id, [Finding::HardwareId]);
}

#[test]
fn chains_lead_to_a_trusted_root_or_nowhere() {
    let chip = milan();
    let found = with_certificate(&chip, |fields| fields.issuer = "SEV-Nobody".to_owned());
    assert!(matches!(found[..], [Finding::UnknownIssuer(_)]));

    let found = with_certificate(&chip, |fields| fields.issuer = "x".repeat(5000));
    assert!(matches!(&found[..], [Finding::UnknownIssuer(issuer)] if issuer.len() == 128));

    // Genoa's CA did sign this, but the processor is of Milan.
    let found = with_certificate(&chip, |fields| {
        fields.issuer = "SEV-Genoa".to_owned();
        *fields.extension("1.3.6.1.4.1.3704.1.2").unwrap() = b"\x16\x05Genoa".to_vec();
    });
    assert_eq!(found, [product(Product::Genoa)]);

    let mut certificate = chip.certificate();
    *certificate.last_mut().unwrap() ^= 1;
    let report = chip.report(&REPORT_DATA);
    let found = findings(&report, &certificate, &Policy::new());
    assert_eq!(found, [Finding::CertificateSignature]);

    for roots in [Roots::amd(), Roots::new()] {
        let refused = UntrustedReport::new(&report, &chip.certificate())
            .verify(&roots, &Policy::new(), SoftSnp::now())
            .unwrap_err();
        assert!(matches!(
            refused.findings(),
            [Finding::UnknownIssuer(issuer)] if issuer == "CN=SEV-Milan"
        ));
    }
}

#[test]
fn certificates_are_good_for_their_time_only() {
    let chip = milan();
    let (report, certificate) = (chip.report(&REPORT_DATA), chip.certificate());
    let at = |seconds| {
        let now = Timestamp::from_unix_seconds(seconds);
        let untrusted = UntrustedReport::new(&report, &certificate);
        untrusted.verify(SoftSnp::roots(), &Policy::new(), now)
    };
    // From 2025-01-01 to 2032-01-01, the last second included; then the key alone has expired.
    let (first, last) = (1_735_689_600, 1_956_528_000);
    assert!(at(first).is_ok());
    assert!(at(last).is_ok());
    let early = at(first - 1).unwrap_err();
    assert!(matches!(
        early.findings(),
        [Finding::NotYetValid { .. }, Finding::NotYetValid { .. }, Finding::NotYetValid { .. }]
    ));
    let late = at(last + 1).unwrap_err();
    assert!(
        matches!(late.findings(), [Finding::Expired { subject, .. }] if subject == "CN=SEV-VCEK")
    );
}

#[test]
fn keys_of_other_curves_are_refused() {
    let tpm = crate::testing::SoftTpm::p256(1).public_key();
    let found = with_certificate(&milan(), |fields| fields.key = tpm.as_der().to_vec());
    assert_eq!(found, [Finding::Certificate(KeyCertificateError::Key)]);
    let report = milan().report(&REPORT_DATA);
    assert!(matches!(
        findings(&report, b"no certificate", &Policy::new())[..],
        [Finding::Certificate(KeyCertificateError::Certificate(_))]
    ));
}

#[test]
fn a_policy_demands_what_it_says() {
    let chip = milan();
    let (report, certificate) = (chip.report(&REPORT_DATA), chip.certificate());
    let found = |policy: &Policy| findings(&report, &certificate, policy);
    let minimum = |snp| {
        let tcb = Tcb { snp, ..Tcb::default() };
        Policy::new().with_minimum_tcb(Product::Milan, tcb)
    };
    assert_eq!(found(&minimum(24)), []);
    let too_old = |field| Finding::TcbMinimum { field, part: TcbPart::Snp, found: 24, minimum: 25 };
    assert_eq!(
        found(&minimum(25)),
        [TcbField::Reported, TcbField::Committed, TcbField::Launch].map(too_old)
    );
    let of_another =
        Policy::new().with_minimum_tcb(Product::Genoa, Tcb { snp: 99, ..Tcb::default() });
    assert_eq!(found(&of_another), []);
    let of_all = Policy::new().with_minimum_tcb_of_all(Tcb { snp: 25, ..Tcb::default() });
    assert_eq!(found(&of_all), found(&minimum(25)));

    let both = Policy::new().with_measurements([[1; 48], [0x4d; 48]]).with_id_keys([[0x1d; 48]]);
    assert_eq!(found(&both), []);
    let neither = Policy::new().with_measurements([[1; 48]]).with_id_keys([]);
    assert_eq!(found(&neither), [Finding::Measurement, Finding::IdKey]);
    let owned = Policy::new().with_author_keys([[0xa0; 48]]).with_host_data([[0x0d; 32]]);
    assert_eq!(found(&owned), []);
    let of_others = Policy::new().with_author_keys([[0; 48]]).with_host_data([[0; 32]]);
    assert_eq!(found(&of_others), [Finding::AuthorKey, Finding::HostData]);

    let guest = Policy::new().forbidding(GuestPolicy::SMT).requiring(GuestPolicy::SINGLE_SOCKET);
    assert_eq!(
        found(&guest),
        [
            Finding::GuestPolicyForbidden("simultaneous multithreading"),
            Finding::GuestPolicyLacks("a single socket")
        ]
    );
}

#[test]
fn the_certificates_of_amd_are_those_that_were_looked_at() {
    use sha2::Digest as _;

    // It reads them, and checks who signed whom.
    Roots::amd();
    let list = include_str!("amd/README.md");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/snp/amd");
    let mut known = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.extension().is_some_and(|extension| extension == "der") {
            let digest = hex::encode(sha2::Sha256::digest(std::fs::read(&path).unwrap()));
            assert!(list.contains(&format!("| {name} | {digest} |")), "{name}");
            known += 1;
        }
    }
    assert_eq!(known, 9);
}

#[test]
fn wrong_certificates_become_no_roots() {
    let chip = milan();
    let mut roots = Roots::new();
    let leaf = chip.certificate();
    let certificates = ProductCertificates { ark: &leaf, ask: &leaf, asvk: &leaf };
    assert!(matches!(roots.add(Product::Milan, certificates), Err(RootError::NotCa("ARK"))));
    let swapped = ProductCertificates {
        ark: include_bytes!("amd/milan-ark.der"),
        ask: include_bytes!("amd/genoa-ask.der"),
        asvk: include_bytes!("amd/milan-asvk.der"),
    };
    assert!(matches!(roots.add(Product::Milan, swapped), Err(RootError::Signature("ASK"))));
    let not_self_signed =
        ProductCertificates { ark: include_bytes!("amd/milan-ask.der"), ..swapped };
    assert!(matches!(roots.add(Product::Milan, not_self_signed), Err(RootError::Signature("ARK"))));
}
