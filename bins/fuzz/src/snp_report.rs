//! SNP reports: whatever a chip signs, only a sound report passes.

use tec_tpm::snp::{
    Finding, GuestPolicy, Policy, Product, REPORT_SIZE, Report, ReportError, UntrustedReport,
    VerifiedReport,
};
use tec_tpm::testing::SoftSnp;

use crate::bytes::{cut, put};
use crate::sample::snp_chip;
use crate::{Seed, outcome};

/// Signed bytes of a report.
const SIGNED: usize = 0x2a0;
const REPORT_DATA: [u8; 64] = [0x5a; 64];

/// An input is tried twice. Unchanged, it verifies only if it is what the chip signed. When its signed part
/// is signed by a chip that signs everything, no finding concerns the signature, and it verifies only if the
/// relevant fields, read here independently, are as required.
pub(crate) fn snp_report(data: &[u8]) {
    let read = Report::parse(data);
    assert_eq!(matches!(read, Err(ReportError::Length(_))), data.len() != REPORT_SIZE);
    if verify(data).is_ok() {
        let own = snp_chip().unsigned(&REPORT_DATA);
        assert_eq!(data.get(..SIGNED), Some(&own[..]));
    }
    let mut body = [0; SIGNED];
    for (to, from) in body.iter_mut().zip(data) {
        *to = *from;
    }
    match verify(&snp_chip().sign(&body)) {
        Ok(verified) => check(&body, &verified),
        Err(findings) => {
            assert!(!findings.is_empty());
            assert!(!findings.contains(&Finding::Signature));
        }
    }
}

fn verify(report: &[u8]) -> Result<VerifiedReport, Vec<Finding>> {
    UntrustedReport::new(report, &snp_chip().certificate())
        .verify(SoftSnp::roots(), &Policy::new(), SoftSnp::now())
        .map_err(|refused| refused.findings().to_vec())
}

/// `N` bytes at an offset.
fn at<const N: usize>(body: &[u8; SIGNED], offset: usize) -> [u8; N] {
    let field = body.get(offset..).and_then(<[u8]>::first_chunk);
    *field.expect("a field of the report")
}

fn check(body: &[u8; SIGNED], verified: &VerifiedReport) {
    let report = verified.report();
    assert_eq!(verified.product(), Product::Milan);
    assert!((2..=5).contains(&report.version));
    assert_eq!(at(body, 0x30), 0_u32.to_le_bytes());
    assert_eq!(at(body, 0x48), [0; 8]);
    assert_eq!(report.report_data, at(body, 0x50));
    assert_eq!(report.measurement, at(body, 0x90));
    let chip: [u8; 64] = at(&snp_chip().unsigned(&REPORT_DATA), 0x1a0);
    assert_eq!(at(body, 0x1a0), chip);
    assert_eq!(at(body, 0x208), [0; SIGNED - 0x208]);
    let policy = GuestPolicy::from_bits(u64::from_le_bytes(at(body, 0x08)));
    assert_eq!(report.policy, policy);
    assert!(!policy.contains(GuestPolicy::DEBUG));
    assert!(!policy.contains(GuestPolicy::MIGRATE_MA));
    // Milan: each byte of the reported, committed and current version is at most the corresponding byte of
    // the next.
    let [reported, committed, current]: [[u8; 8]; 3] =
        [at(body, 0x180), at(body, 0x1e0), at(body, 0x38)];
    assert_eq!(reported, [4, 1, 0, 0, 0, 0, 24, 219]);
    assert!(reported.iter().zip(&committed).all(|(low, high)| low <= high));
    assert!(committed.iter().zip(&current).all(|(low, high)| low <= high));
}

pub(crate) fn seeds() -> Vec<Seed> {
    let read = |data: &[u8]| outcome(Report::parse(data));
    let sound = snp_chip().report(&REPORT_DATA);
    let body = sound.get(..SIGNED).unwrap_or_default().to_vec();
    let with = |offset, bytes: &[u8]| put(body.clone(), offset, bytes);
    vec![
        Seed::new("sound", sound.clone()),
        Seed::new("version_2", put(with(0, &[2]), 0x188, &[0; 3])),
        Seed::new("version_5", put(with(0, &[5]), 0x1f8, &[7; 16])),
        Seed::new("debug", with(0x0a, &[0x0b])),
        Seed::new("turin", with(0x188, &[0x1a, 2])),
        Seed::new("cut_off", cut(sound.clone(), REPORT_SIZE - 1)).refused(read),
        Seed::new("one_byte_more", [&sound[..], &[0]].concat()).refused(read),
        Seed::new("version_6", put(sound, 0, &[6])).refused(read),
    ]
}
