//! Certificates as firmware uses them: as keys with names. Firmware ignores validity and
//! constraints, and so does this code.

use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use rsa::pkcs1v15::Pkcs1v15Sign;
use rsa::pkcs8::DecodePublicKey as _;
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

use super::der;
use super::der::{Der, DerError};
use crate::event_log::Bank;

/// The parts of a certificate (RFC 5280, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Certificate<'d> {
    pub(super) raw: &'d [u8],
    pub(super) tbs: &'d [u8],
    pub(super) serial: &'d [u8],
    pub(super) issuer: &'d [u8],
    pub(super) subject: &'d [u8],
    key: &'d [u8],
    extensions: &'d [u8],
    algorithm: &'d [u8],
    signature: &'d [u8],
}

/// A signature uses an algorithm or a key that is not supported here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("signatures of this kind are not supported here: {what}")]
#[non_exhaustive]
pub struct UnsupportedSignature {
    /// Algorithm or key.
    pub what: String,
}

// Object identifiers without tag and length.
/// RFC 3279, 2.1: `id-sha1`.
const OID_SHA1: &[u8] = b"\x2b\x0e\x03\x02\x1a";
/// RFC 5754, 2: `id-sha256`, `id-sha384` and `id-sha512` differ in the last byte.
const OID_SHA2: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02";
/// RFC 8017, appendix C: `pkcs-1`; `rsaEncryption` is 1, with SHA-1 5, with SHA-2 11 to 13.
const OID_PKCS1: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01";
/// RFC 5758, 3.2: `ecdsa-with-SHA2`; SHA-256 is 2, the larger ones follow.
const OID_ECDSA_SHA2: &[u8] = b"\x2a\x86\x48\xce\x3d\x04\x03";
/// RFC 5480, 2.1.1: `id-ecPublicKey`.
const OID_EC_KEY: &[u8] = b"\x2a\x86\x48\xce\x3d\x02\x01";
/// RFC 5280, 4.2.1.12: `id-ce-extKeyUsage`.
const OID_KEY_USAGE: &[u8] = b"\x55\x1d\x25";
/// shim, verify.c: key usage of keys that sign kernel modules only.
const OID_MODULE_SIGNING: &[u8] = b"\x2b\x06\x01\x04\x01\x92\x08\x10\x01\x02";

/// The algorithm with this object identifier.
pub(super) fn hash_of(oid: &[u8]) -> Option<Bank> {
    if oid == OID_SHA1 {
        return Some(Bank::Sha1);
    }
    match oid.strip_prefix(OID_SHA2)? {
        [1] => Some(Bank::Sha256),
        [2] => Some(Bank::Sha384),
        [3] => Some(Bank::Sha512),
        _ => None,
    }
}

impl<'d> Certificate<'d> {
    /// Reads a certificate; bytes after it are ignored, as firmware does.
    pub(super) fn parse(data: &'d [u8]) -> Result<Self, DerError> {
        let certificate = Der::new(data, "certificate").element(der::SEQUENCE)?;
        let mut outer = Der::new(certificate.value, "certificate");
        let tbs = outer.element(der::SEQUENCE)?;
        let algorithm = outer.within(der::SEQUENCE)?.element(der::OID)?.value;
        let signature = bit_string(outer.element(der::BIT_STRING)?.value)?;

        let mut fields = Der::new(tbs.value, "certificate");
        fields.optional(der::CONTEXT_0)?; // version
        let serial = fields.element(der::INTEGER)?.raw;
        fields.element(der::SEQUENCE)?; // signature algorithm, again
        let issuer = fields.element(der::SEQUENCE)?.raw;
        fields.element(der::SEQUENCE)?; // validity
        let subject = fields.element(der::SEQUENCE)?.raw;
        let key = fields.element(der::SEQUENCE)?.raw;
        // Unique identifiers 1 and 2 have primitive tags; extensions are number 3.
        fields.optional(der::CONTEXT_0 + 1 - 0x20)?;
        fields.optional(der::CONTEXT_0 + 2 - 0x20)?;
        let extensions = fields.optional(der::CONTEXT_0 + 3)?;
        Ok(Self {
            raw: certificate.raw,
            tbs: tbs.raw,
            serial,
            issuer,
            subject,
            key,
            extensions: extensions.map_or(&[], |element| element.value),
            algorithm,
            signature,
        })
    }

    /// Whether `issuer` signed this certificate.
    pub(super) fn is_signed_by(&self, issuer: &Self) -> Result<bool, UnsupportedSignature> {
        if self.issuer != issuer.subject {
            return Ok(false);
        }
        let hash = match self.algorithm.strip_prefix(OID_PKCS1) {
            Some([5]) => Bank::Sha1,
            Some([11]) => Bank::Sha256,
            Some([12]) => Bank::Sha384,
            Some([13]) => Bank::Sha512,
            _ => match self.algorithm.strip_prefix(OID_ECDSA_SHA2) {
                Some([2]) => Bank::Sha256,
                Some([3]) => Bank::Sha384,
                Some([4]) => Bank::Sha512,
                _ => return Err(unsupported("algorithm", self.algorithm)),
            },
        };
        issuer.verifies(hash, &hash.hash(self.tbs), self.signature)
    }

    /// Whether the signature over a digest is by the key of this certificate.
    pub(super) fn verifies(
        &self,
        hash: Bank,
        digest: &[u8],
        signature: &[u8],
    ) -> Result<bool, UnsupportedSignature> {
        let algorithm = key_algorithm(self.key)
            .map_err(|_| unsupported("key", self.key.get(..16).unwrap_or_default()))?;
        if algorithm.strip_prefix(OID_PKCS1) == Some(&[1]) {
            let key = rsa::RsaPublicKey::from_public_key_der(self.key)
                .map_err(|_| unsupported("RSA key", &[]))?;
            return Ok(key.verify(rsa_scheme(hash), digest, signature).is_ok());
        }
        if algorithm == OID_EC_KEY {
            return verify_ecdsa(self.key, digest, signature)
                .ok_or_else(|| unsupported("elliptic curve", &[]));
        }
        Err(unsupported("key", algorithm))
    }

    /// Whether the certificate is only for kernel modules; shim does not accept boot files signed
    /// with it.
    pub(super) fn signs_modules_only(&self) -> bool {
        self.key_usages().is_ok_and(|usages| usages)
    }

    fn key_usages(&self) -> Result<bool, DerError> {
        if self.extensions.is_empty() {
            return Ok(false);
        }
        let mut extensions = Der::new(self.extensions, "certificate").within(der::SEQUENCE)?;
        while !extensions.is_empty() {
            let mut extension = extensions.within(der::SEQUENCE)?;
            if extension.element(der::OID)?.value != OID_KEY_USAGE {
                continue;
            }
            extension.optional(1)?; // critical, a BOOLEAN
            let mut usages = extension.within(der::OCTET_STRING)?.within(der::SEQUENCE)?;
            while !usages.is_empty() {
                if usages.element(der::OID)?.value == OID_MODULE_SIGNING {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn key_algorithm(key: &[u8]) -> Result<&[u8], DerError> {
    let mut fields = Der::new(key, "public key").within(der::SEQUENCE)?;
    Ok(fields.within(der::SEQUENCE)?.element(der::OID)?.value)
}

/// RSASSA-PKCS1-v1_5 over digests of this algorithm.
pub(crate) fn rsa_scheme(hash: Bank) -> Pkcs1v15Sign {
    match hash {
        Bank::Sha1 => Pkcs1v15Sign::new::<Sha1>(),
        Bank::Sha256 => Pkcs1v15Sign::new::<Sha256>(),
        Bank::Sha384 => Pkcs1v15Sign::new::<Sha384>(),
        Bank::Sha512 => Pkcs1v15Sign::new::<Sha512>(),
    }
}

/// Whether the signature over a digest is by this key, a SubjectPublicKeyInfo; none if the key is not on P-256
/// or P-384.
pub(crate) fn verify_ecdsa(key: &[u8], digest: &[u8], signature: &[u8]) -> Option<bool> {
    if let Ok(key) = p256::ecdsa::VerifyingKey::from_public_key_der(key) {
        let signature = p256::ecdsa::Signature::from_der(signature);
        return Some(signature.is_ok_and(|s| key.verify_prehash(digest, &s).is_ok()));
    }
    let key = p384::ecdsa::VerifyingKey::from_public_key_der(key).ok()?;
    let signature = p384::ecdsa::Signature::from_der(signature);
    Some(signature.is_ok_and(|s| key.verify_prehash(digest, &s).is_ok()))
}

/// X.690, 8.6.2: the first byte counts unused bits, of which signatures have none.
fn bit_string(value: &[u8]) -> Result<&[u8], DerError> {
    match value.split_first() {
        Some((0, bits)) => Ok(bits),
        _ => Err(DerError { structure: "certificate" }),
    }
}

fn unsupported(what: &str, oid: &[u8]) -> UnsupportedSignature {
    UnsupportedSignature { what: format!("{what} {}", hex::encode(oid)) }
}
