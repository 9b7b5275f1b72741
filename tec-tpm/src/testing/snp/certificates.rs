//! Certificates of a made-up AMD, written in DER.

use std::sync::OnceLock;

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use rsa::pkcs8::{DecodePrivateKey as _, EncodePublicKey as _};
use rsa::signature::{RandomizedSigner as _, SignatureEncoding as _};
use rsa::{RsaPrivateKey, pss};
use sha2::Sha384;
use x509_cert::der::oid::ObjectIdentifier;

use crate::compute::testing::der;
use crate::snp::{Product, ProductCertificates, Roots, SALT};

/// RSASSA-PSS with SHA-384 and 48 bytes of salt (RFC 4055, section 3.1), as AMD writes it: the
/// trailer field, which is also the default.
const PSS_SHA384: [u8; 67] = [
    0x30, 0x41, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a, 0x30, 0x34, 0xa0,
    0x0f, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, 0x05, 0x00,
    0xa1, 0x1c, 0x30, 0x1a, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x08, 0x30,
    0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, 0x05, 0x00, 0xa2, 0x03,
    0x02, 0x01, 0x30,
];

/// INTEGER (X.690, section 8.3): a number from 128 on needs a zero before it.
pub(super) fn integer(value: u8) -> Vec<u8> {
    if value < 0x80 { der(0x02, &[&[value]]) } else { der(0x02, &[&[0, value]]) }
}

#[expect(clippy::expect_used, reason = "identifiers are written out in tests")]
fn object_identifier(oid: &str) -> Vec<u8> {
    let oid = ObjectIdentifier::new(oid).expect("an object identifier");
    der(0x06, &[oid.as_bytes()])
}

pub(super) fn extension(oid: &str, content: &[u8]) -> Vec<u8> {
    der(0x30, &[&object_identifier(oid), &der(0x04, &[content])])
}

fn critical_extension(oid: &str, content: &[u8]) -> Vec<u8> {
    // BOOLEAN true
    let critical = [0x01, 0x01, 0xff];
    let content = der(0x04, &[content]);
    der(0x30, &[&object_identifier(oid), &critical, &content])
}

/// RDNSequence of a common name.
pub(super) fn distinguished_name(name: &str) -> Vec<u8> {
    let text = der(0x0c, &[name.as_bytes()]);
    let attribute = der(0x30, &[&object_identifier("2.5.4.3"), &text]);
    der(0x30, &[&der(0x31, &[&attribute])])
}

pub(super) fn sign_certificate(
    key: &RsaPrivateKey,
    issuer: &[u8],
    subject: &[u8],
    validity: &[String; 2],
    public: &[u8],
    extensions: &[Vec<u8>],
) -> Vec<u8> {
    let [from, until] = validity;
    let validity = der(0x30, &[&der(0x17, &[from.as_bytes()]), &der(0x17, &[until.as_bytes()])]);
    let extensions: Vec<&[u8]> = extensions.iter().map(Vec::as_slice).collect();
    let signed = der(
        0x30,
        &[
            // Version 3; serial number 0, as AMD's keys have it.
            &[0xa0, 0x03, 0x02, 0x01, 0x02],
            &[0x02, 0x01, 0x00],
            &PSS_SHA384,
            issuer,
            &validity,
            subject,
            public,
            &der(0xa3, &[&der(0x30, &extensions)]),
        ],
    );
    let key = pss::SigningKey::<Sha384>::new_with_salt_len(key.clone(), SALT);
    // The salt need not be secret, and with the same one a certificate is the same every time.
    let signature = key.sign_with_rng(&mut ChaCha20Rng::seed_from_u64(0), &signed);
    let bits = der(0x03, &[&[0], &signature.to_bytes()]);
    der(0x30, &[&signed, &PSS_SHA384, &bits])
}

fn root_key() -> &'static RsaPrivateKey {
    static KEY: OnceLock<RsaPrivateKey> = OnceLock::new();
    KEY.get_or_init(|| private_key(include_bytes!("root.pk8")))
}

pub(super) fn intermediate_key() -> &'static RsaPrivateKey {
    static KEY: OnceLock<RsaPrivateKey> = OnceLock::new();
    KEY.get_or_init(|| private_key(include_bytes!("intermediate.pk8")))
}

#[expect(clippy::expect_used, reason = "the keys are constants")]
fn private_key(der: &[u8]) -> RsaPrivateKey {
    RsaPrivateKey::from_pkcs8_der(der).expect("a key in DER")
}

#[expect(clippy::expect_used, reason = "the certificates made here are right")]
pub(super) fn made_up_roots() -> Roots {
    let mut roots = Roots::new();
    for product in Product::ALL {
        let ark = format!("ARK-{product}");
        let [ask, asvk] = [format!("SEV-{product}"), format!("SEV-VLEK-{product}")];
        let certificates = ProductCertificates {
            ark: &ca(&ark, &ark, root_key()),
            ask: &ca(&ark, &ask, intermediate_key()),
            asvk: &ca(&ark, &asvk, intermediate_key()),
        };
        roots.add(product, certificates).expect("own certificates");
    }
    roots
}

/// Certificate of a CA, signed by the root.
#[expect(clippy::expect_used, reason = "an RSA key can be encoded")]
fn ca(issuer: &str, subject: &str, key: &RsaPrivateKey) -> Vec<u8> {
    let public = key.to_public_key().to_public_key_der();
    // basicConstraints: CA; keyUsage: keyCertSign (RFC 5280, sections 4.2.1.9 and 4.2.1.3).
    let constraints = critical_extension("2.5.29.19", &[0x30, 0x03, 0x01, 0x01, 0xff]);
    let usage = critical_extension("2.5.29.15", &[0x03, 0x02, 0x02, 0x04]);
    sign_certificate(
        root_key(),
        &distinguished_name(issuer),
        &distinguished_name(subject),
        &["250101000000Z".to_owned(), "450101000000Z".to_owned()],
        public.expect("encode a key").as_bytes(),
        &[constraints, usage],
    )
}
