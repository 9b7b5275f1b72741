//! Certificates as read by firmware, compared with a strict reader of certificates.

use std::sync::OnceLock;

use tec_tpm::compute::testing::parsers::CertificateParts;
use tec_tpm::compute::testing::{der, parsers};
use x509_cert::Certificate;
use x509_cert::der::{Decode as _, Encode as _};

use crate::bytes::{cut, put};
use crate::ek_certificate::{authority, ca, certify};
use crate::sample::rsa_tpm;
use crate::{Seed, outcome};

/// Whatever a strict reader accepts is read with the same parts; what follows a certificate is ignored; and
/// only what a CA signed verifies with its key.
pub(crate) fn x509(data: &[u8]) {
    let strict = Certificate::from_der(data).ok();
    let Ok(parts) = parsers::certificate(data) else {
        assert!(!strict.is_some_and(|strict| is_whole(&strict, data)));
        return;
    };
    assert_eq!(data.get(..parts.raw.len()), Some(parts.raw));
    let longer = [parts.raw, b"\0rest"].concat();
    assert_eq!(parsers::certificate(&longer).as_ref(), Ok(&parts));
    for part in [parts.tbs, parts.serial, parts.issuer, parts.subject] {
        assert!(parts.raw.as_ptr_range().contains(&part.as_ptr()));
    }
    if let Some(strict) = strict.filter(|strict| is_whole(strict, data)) {
        check_parts(&strict, &parts);
    }
    let signed = |issuer: &[u8]| parsers::is_signed_by(data, issuer) == Ok(true);
    if signed(root()) {
        let known = [root(), leaf()].map(|known| parsers::certificate(known).map(|c| c.tbs));
        assert!(known.contains(&Ok(parts.tbs)), "nobody signed this");
    }
    let _ = parsers::is_signed_by(data, data);
}

/// Whether it has the unique DER encoding, with a signature of whole bytes.
fn is_whole(strict: &Certificate, data: &[u8]) -> bool {
    let bytes = strict.signature().unused_bits() == 0;
    bytes && strict.to_der().is_ok_and(|again| again == data)
}

fn check_parts(strict: &Certificate, parts: &CertificateParts<'_>) {
    let strict = strict.tbs_certificate();
    let encoded = |result: x509_cert::der::Result<Vec<u8>>| result.expect("it was decoded");
    assert_eq!(encoded(strict.to_der()), parts.tbs);
    assert_eq!(encoded(strict.serial_number().to_der()), parts.serial);
    assert_eq!(encoded(strict.issuer().to_der()), parts.issuer);
    assert_eq!(encoded(strict.subject().to_der()), parts.subject);
}

fn root() -> &'static [u8] {
    static ROOT: OnceLock<Vec<u8>> = OnceLock::new();
    ROOT.get_or_init(|| {
        let (key, public) = authority(51);
        certify(("CN=Root", &key), "CN=Root", &public, ca())
    })
}

fn leaf() -> &'static [u8] {
    static LEAF: OnceLock<Vec<u8>> = OnceLock::new();
    LEAF.get_or_init(|| {
        let (key, _) = authority(51);
        certify(("CN=Root", &key), "CN=Leaf", &authority(52).1, Vec::new())
    })
}

/// Checks whether it is self-signed.
fn read(data: &[u8]) -> Result<(), String> {
    outcome(parsers::is_signed_by(data, data))
}

// Object identifiers in DER: sha256WithRSAEncryption and md5WithRSAEncryption (RFC 8017, appendix
// C), rsaEncryption, id-ecPublicKey, secp521r1 (RFC 5480, 2.1.1.1), ecdsa-with-SHA256.
const SHA256_RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b";
const MD5_RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04";
const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
const EC: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01";
const P521: &[u8] = b"\x06\x05\x2b\x81\x04\x00\x23";
const SHA256_ECDSA: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
/// shim's key usage for modules, as an extension: extKeyUsage of 1.3.6.1.4.1.2312.16.1.2.
const MODULES: &[u8] =
    b"\x30\x15\x06\x03\x55\x1d\x25\x04\x0e\x30\x0c\x06\x0a\x2b\x06\x01\x04\x01\x92\x08\x10\x01\x02";

/// An unsigned certificate for any key.
fn unsigned(algorithm: &[u8], key: &[u8], extensions: &[u8]) -> Vec<u8> {
    let algorithm = der(0x30, &[algorithm]);
    let time = der(0x17, &[b"260101000000Z"]);
    let tbs = der(
        0x30,
        &[
            b"\xa0\x03\x02\x01\x02\x02\x01\x07",
            &algorithm,
            &der(0x30, &[]),
            &der(0x30, &[&time, &time]),
            &der(0x30, &[]),
            key,
            &der(0xa3, &[&der(0x30, &[extensions])]),
        ],
    );
    der(0x30, &[&tbs, &algorithm, &der(0x03, &[&[0; 65]])])
}

fn key(algorithm: &[u8], bits: &[u8]) -> Vec<u8> {
    der(0x30, &[&der(0x30, &[algorithm]), &der(0x03, &[&[0], bits])])
}

pub(crate) fn seeds() -> Vec<Seed> {
    let rsa = rsa_tpm().public_key();
    let seeds = vec![
        Seed::new("root", root()),
        Seed::new("leaf", leaf()),
        Seed::new("followed", [leaf(), b"\0\0\0"].concat()),
        Seed::new("rsa", unsigned(SHA256_RSA, rsa.as_der(), MODULES)),
    ];
    [seeds, hostile()].concat()
}

fn hostile() -> Vec<Seed> {
    let lying = |name, content: Vec<u8>| Seed::new(name, content).refused(read);
    let good = || leaf().to_vec();
    let with_key = |name, algorithm, key: &[u8]| lying(name, unsigned(algorithm, key, &[]));
    let tiny = der(0x30, &[b"\x02\x01\x03\x02\x01\x03"]);
    let unused = {
        let at = good()
            .windows(2)
            .rposition(|w| w == b"\x30\x45" || w == b"\x30\x46" || w == b"\x30\x44");
        put(good(), at.expect("a signature") - 1, &[7])
    };
    vec![
        lying("nothing", Vec::new()),
        lying("cut_off", cut(good(), 200)),
        lying("a_set", put(good(), 0, &[0x31])),
        lying("indefinite_length", put(good(), 1, &[0x80])),
        lying("length_of_four_gigabytes", [&b"\x30\x84\xff\xff\xff\xff"[..], &good()].concat()),
        lying("long_tag", [&[0x3f, 0x81, 0x10][..], &good()].concat()),
        lying("signature_of_one_bit", unused),
        with_key("md5", MD5_RSA, &key(RSA, &tiny)),
        with_key("rsa_key_of_two_bits", SHA256_RSA, &key(RSA, &tiny)),
        with_key("curve_that_is_not_known", SHA256_ECDSA, &key(&[EC, P521].concat(), &[4; 133])),
        with_key("key_that_is_none", SHA256_RSA, b"\x30\x00"),
    ]
}
