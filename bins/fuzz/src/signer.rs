//! Keys that sign boot files: a CA for firmware, one for shim's vendor, and a signer for each.

use std::sync::OnceLock;

use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::hazmat::PrehashSigner as _;
use sha2::{Digest as _, Sha256};
use tec_tpm::compute::testing::{der, parsers};
use tec_tpm::compute::{PeFile, testing};

use crate::bytes::{le32, u16_at, u32_at};
use crate::ek_certificate::{authority, ca, certify};

/// SPC_INDIRECT_DATA in DER (Authenticode PE, "SpcIndirectDataContent").
pub(crate) const INDIRECT: &[u8] = b"\x06\x0a\x2b\x06\x01\x04\x01\x82\x37\x02\x01\x04";

/// A CA, and a signer under it.
pub(crate) struct Signer {
    /// Certificate of the CA.
    pub(crate) ca: Vec<u8>,
    certificate: Vec<u8>,
    key: SigningKey,
}

/// The signer in `db`.
pub(crate) fn firmware() -> &'static Signer {
    static SIGNER: OnceLock<Signer> = OnceLock::new();
    SIGNER.get_or_init(|| Signer::new("CN=Firmware", "CN=Firmware signer", 41))
}

/// The signer built into shim.
pub(crate) fn vendor() -> &'static Signer {
    static SIGNER: OnceLock<Signer> = OnceLock::new();
    SIGNER.get_or_init(|| Signer::new("CN=Vendor", "CN=Vendor signer", 43))
}

impl Signer {
    fn new(name: &str, subject: &str, seed: u64) -> Self {
        let ((ca_key, ca_public), (key, public)) = (authority(seed), authority(seed + 1));
        Self {
            ca: certify((name, &ca_key), name, &ca_public, ca()),
            certificate: certify((name, &ca_key), subject, &public, Vec::new()),
            key,
        }
    }

    /// An Authenticode signature of an image with this digest, always the same.
    pub(crate) fn sign(&self, image: &[u8; 32]) -> Vec<u8> {
        self.sign_with(&[&self.certificate], image)
    }

    /// Like `sign`, with other certificates; the first is the signer's.
    pub(crate) fn sign_with(&self, certificates: &[&[u8]], image: &[u8; 32]) -> Vec<u8> {
        // Object identifiers in DER: messageDigest, ecdsa-with-SHA256.
        const MESSAGE_DIGEST: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x09\x04";
        const ECDSA: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
        let content = testing::indirect_data(image);
        let algorithm = der(0x30, &[testing::SHA256]);
        let digest = der(0x04, &[Sha256::digest(&content).as_slice()]);
        let attribute = der(0x30, &[MESSAGE_DIGEST, &der(0x31, &[&digest])]);
        let signed = Sha256::digest(der(0x31, &[&attribute]));
        let value: p256::ecdsa::Signature = self.key.sign_prehash(&signed).expect("a digest");
        let own = parsers::certificate(&self.certificate).expect("its certificate");
        let info = der(
            0x30,
            &[
                b"\x02\x01\x01",
                &der(0x30, &[own.issuer, own.serial]),
                &algorithm,
                &der(0xa0, &[&attribute]),
                &der(0x30, &[ECDSA]),
                &der(0x04, &[value.to_der().as_bytes()]),
            ],
        );
        content_info(&[
            b"\x02\x01\x01",
            &der(0x31, &[&algorithm]),
            &der(0x30, &[INDIRECT, &der(0xa0, &[&der(0x30, &[&content])])]),
            &der(0xa0, certificates),
            &der(0x31, &[&info]),
        ])
    }

    /// A PE file without a certificate table, with one signature added; unchanged if it cannot be hashed.
    pub(crate) fn signed(&self, mut file: Vec<u8>) -> Vec<u8> {
        file.resize(file.len().next_multiple_of(8), 0);
        let Ok(read) = PeFile::read(file.as_slice(), &[]) else {
            return file;
        };
        let Some(entry) = certificate_entry(&file).filter(|at| u32_at(&file, *at) == Some(0))
        else {
            return file;
        };
        let signature = self.sign(read.authenticode().as_bytes());
        let size = (signature.len() + 8).next_multiple_of(8);
        let offset = le32(file.len());
        file.splice(entry..entry + 8, [offset, le32(size)].concat());
        // WIN_CERTIFICATE: length, revision 2.0, type PKCS #7 (PE format).
        file.extend(le32(signature.len() + 8));
        file.extend([0, 2, 2, 0]);
        file.extend(signature);
        file.resize(file.len().next_multiple_of(8), 0);
        file
    }
}

/// The structure around signed data.
pub(crate) fn content_info(fields: &[&[u8]]) -> Vec<u8> {
    /// RFC 2315, 14: `signedData`.
    const SIGNED_DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
    der(0x30, &[SIGNED_DATA, &der(0xa0, &[&der(0x30, fields)])])
}

/// Location of the certificate table's directory entry in a hashable file.
pub(crate) fn certificate_entry(file: &[u8]) -> Option<usize> {
    let optional = u32_at(file, 0x3c)? + 24;
    let is_plus = u16_at(file, optional)? == 0x20b;
    Some(optional + if is_plus { 112 } else { 96 } + 4 * 8)
}
