//! Embedded signatures: no CA vouches for what was not signed.

use tec_tpm::compute::testing;
use tec_tpm::compute::testing::{der, parsers};

use crate::bytes::{cut, put};
use crate::signer::{INDIRECT, content_info, firmware, vendor};
use crate::{Seed, outcome};

/// The digest of the image to check.
const IMAGE: [u8; 32] = [0x1a; 32];
/// The digest of another image, which is signed.
const OTHER_IMAGE: [u8; 32] = [0x1b; 32];

/// A CA vouches exactly for the digests that were signed under it, whatever else a signature contains.
pub(crate) fn pkcs7(data: &[u8]) {
    let Ok(signature) = parsers::signature(data) else {
        for signer in [firmware(), vendor()] {
            assert!(parsers::is_trusted_by(data, &signer.ca, &IMAGE).is_err());
        }
        return;
    };
    for certificate in &signature.certificates {
        assert!(data.as_ptr_range().contains(&certificate.as_ptr()));
        let read = parsers::certificate(certificate).expect("it was read before");
        assert_eq!(read.raw, *certificate);
    }
    let Ok(claimed) = <[u8; 32]>::try_from(signature.image_digest) else {
        return;
    };
    let other = claimed.map(|byte| !byte);
    for signer in [firmware(), vendor()] {
        let trusts = |image| parsers::is_trusted_by(data, &signer.ca, image);
        assert!(trusts(&other) != Ok(true));
        let is_signed = [IMAGE, OTHER_IMAGE].contains(&claimed);
        assert!(is_signed || trusts(&claimed) != Ok(true), "nobody signed this");
    }
}

fn read(data: &[u8]) -> Result<(), String> {
    match parsers::is_trusted_by(data, &firmware().ca, &IMAGE) {
        Ok(trusted) if !trusted => Err("not trusted".to_owned()),
        result => outcome(result),
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let seeds = vec![
        Seed::new("firmware", firmware().sign(&IMAGE)),
        Seed::new("vendor", vendor().sign(&IMAGE)),
        Seed::new("padded", [firmware().sign(&IMAGE), vec![0; 5]].concat()),
    ];
    [seeds, hostile()].concat()
}

/// id-data in DER (RFC 2315, 14).
const DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01";

/// Version, algorithms and content of a signature whose rest is missing.
fn without_a_signer(kind: &[u8], hash: &[u8]) -> Vec<u8> {
    let algorithm = der(0x30, &[hash]);
    let image = der(0x30, &[&algorithm, &der(0x04, &[&IMAGE])]);
    let content = der(0x30, &[&der(0x30, &[]), &image]);
    content_info(&[
        b"\x02\x01\x01",
        &der(0x31, &[&algorithm]),
        &der(0x30, &[kind, &der(0xa0, &[&content])]),
    ])
}

fn hostile() -> Vec<Seed> {
    let good = || firmware().sign(&IMAGE);
    let lying = |name, content: Vec<u8>| Seed::new(name, content).refused(read);
    let ca = firmware().ca.as_slice();
    let unknown_hash = der(0x06, &[&[0x2a, 0x03]]);
    let replaced = |from: &[u8], to: &[u8]| {
        let content = good();
        let at = content.windows(from.len()).position(|w| w == from);
        put(content, at.expect("it stands there"), to)
    };
    vec![
        lying("nothing", Vec::new()),
        lying("cut_off", cut(good(), 300)),
        lying("length_of_four_gigabytes", [&b"\x30\x84\xff\xff\xff\xff"[..], &good()].concat()),
        lying("length_of_nine_bytes", [&[0x30, 0x89][..], &[0; 9]].concat()),
        lying("indefinite_length", put(good(), 1, &[0x80])),
        lying("another_content_type", without_a_signer(DATA, testing::SHA256)),
        lying("no_signer", without_a_signer(INDIRECT, testing::SHA256)),
        lying(
            "certificate_that_is_none",
            firmware().sign_with(&[&der(0x30, &[b"\x02\x01\x01"])], &IMAGE),
        ),
        lying("seventeen_certificates", firmware().sign_with(&[ca; 17], &IMAGE)),
        lying("unknown_hash", replaced(b"\x02\x01\x05\x00\x04\x20", b"\x02\x09")),
        lying("without_certificates", firmware().sign_with(&[], &IMAGE)),
        lying("of_another_image", firmware().sign(&OTHER_IMAGE)),
        lying("of_another_signer", vendor().sign(&IMAGE)),
        lying("unknown_hash_without_a_signer", without_a_signer(INDIRECT, &unknown_hash)),
    ]
}
