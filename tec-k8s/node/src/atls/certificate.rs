//! Certificates: creating them, with a document for one handshake or without, and parsing them.

use rustls::SignatureScheme;
use rustls::crypto::CryptoProvider;
use rustls::sign::SigningKey;
use tec_core::digest::Sha256Digest;
use tec_core::time::Timestamp;
use tec_tpm::ek::{CertificateError, Parsed};
use x509_cert::der::oid::ObjectIdentifier;

use super::challenge::key_hash;
use super::signatures::ByProvider;
use super::{MAX_DOCUMENT, Variant, der};

/// ecdsa-with-SHA256 (RFC 5758, section 3.2).
const ECDSA_SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
/// Common name (RFC 5280, appendix A.1).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// Allowed clock difference in seconds: two hours before and after, the same as for peers.
const VALIDITY: i64 = 2 * 60 * 60;
/// Maximum size of a certificate without its document.
const OVERHEAD: usize = 1024;
/// First year that UTCTime cannot express (RFC 5280, section 4.1.2.5).
const UTC_TIME_END: &str = "2050";

/// The peer's certificate was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerCertificateError {
    /// It is larger than any certificate with a document can be.
    #[error("the certificate has {0} bytes, which is too large")]
    TooLarge(usize),
    /// Not an acceptable X.509 certificate.
    #[error("the certificate is not acceptable")]
    Malformed(#[source] CertificateError),
    /// It is not signed by its own key, or the key is not on P-256.
    #[error("the certificate is not signed by its own P-256 key")]
    Signature,
    /// It is not currently valid.
    #[error("the certificate is valid from {from} to {until}, but the time is {now}")]
    Expired {
        /// First second.
        from: Timestamp,
        /// Last second.
        until: Timestamp,
        /// Our clock.
        now: Timestamp,
    },
    /// No extension has a document of a variant that is accepted.
    #[error("no extension contains a document of an accepted variant; found {0:?}")]
    NoDocument(Vec<String>),
}

/// The validity of a certificate that lives as long as its endpoint: its end is unknown (RFC 5280, section
/// 4.1.2.5) and never checked. From 1970 to 9999-12-31T23:59:59Z.
pub(super) fn without_end() -> [Timestamp; 2] {
    [0, 253_402_300_799].map(Timestamp::from_unix_seconds)
}

/// The validity of a certificate for one handshake.
pub(super) fn around(now: Timestamp) -> [Timestamp; 2] {
    [now.plus_seconds(-VALIDITY), now.plus_seconds(VALIDITY)]
}

/// Creates a certificate for `spki`, signed by its own key. Without a document it attests nothing.
pub(super) fn make(
    key: &dyn SigningKey,
    spki: &[u8],
    serial: [u8; 16],
    validity: [Timestamp; 2],
    document: Option<(Variant, &[u8])>,
) -> Result<Vec<u8>, rustls::Error> {
    let algorithm = der::tlv(der::SEQUENCE, &[&der::object_identifier(ECDSA_SHA256)]);
    let tbs = to_be_signed(&algorithm, spki, serial, validity, document);
    let signer = key
        .choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256])
        .ok_or_else(|| rustls::Error::General("the key cannot sign with P-256".to_owned()))?;
    let signature = signer.sign(&tbs)?;
    // No unused bits in the last byte.
    let signature = der::tlv(der::BIT_STRING, &[&[0], &signature]);
    Ok(der::tlv(der::SEQUENCE, &[&tbs, &algorithm, &signature]))
}

/// TBSCertificate (RFC 5280, section 4.1).
fn to_be_signed(
    algorithm: &[u8],
    spki: &[u8],
    mut serial: [u8; 16],
    [from, until]: [Timestamp; 2],
    document: Option<(Variant, &[u8])>,
) -> Vec<u8> {
    // Positive, and without a leading zero byte, whatever the random value.
    serial[0] = serial[0] & 0x7f | 0x40;
    let version = der::tlv(der::VERSION, &[&der::tlv(der::INTEGER, &[&[2]])]);
    let name = common_name("TEC");
    let validity = der::tlv(der::SEQUENCE, &[&time(from), &time(until)]);
    let serial = der::tlv(der::INTEGER, &[&serial]);
    let extensions = document.map(extensions).unwrap_or_default();
    der::tlv(
        der::SEQUENCE,
        &[&version, &serial, algorithm, &name, &validity, &name, spki, &extensions],
    )
}

/// One non-critical extension with the raw document as content.
fn extensions((variant, document): (Variant, &[u8])) -> Vec<u8> {
    let extension = der::tlv(
        der::SEQUENCE,
        &[
            &der::object_identifier(variant.object_identifier()),
            &der::tlv(der::OCTET_STRING, &[document]),
        ],
    );
    der::tlv(der::EXTENSIONS, &[&der::tlv(der::SEQUENCE, &[&extension])])
}

fn common_name(name: &str) -> Vec<u8> {
    let value = der::tlv(der::PRINTABLE_STRING, &[name.as_bytes()]);
    let attribute = der::tlv(der::SEQUENCE, &[&der::object_identifier(COMMON_NAME), &value]);
    der::tlv(der::SEQUENCE, &[&der::tlv(der::SET, &[&attribute])])
}

/// UTCTime or GeneralizedTime (RFC 5280, section 4.1.2.5).
fn time(at: Timestamp) -> Vec<u8> {
    let digits: String = at.to_string().chars().filter(char::is_ascii_digit).collect();
    if digits.as_str() < UTC_TIME_END {
        let short = digits.get(2..).unwrap_or_default();
        der::tlv(der::UTC_TIME, &[short.as_bytes(), b"Z"])
    } else {
        der::tlv(der::GENERALIZED_TIME, &[digits.as_bytes(), b"Z"])
    }
}

/// A self-signed certificate that is currently valid. Its document is not examined.
#[derive(Debug)]
pub(super) struct PeerCertificate {
    parsed: Parsed,
    key_hash: Sha256Digest,
}

impl PeerCertificate {
    pub(super) fn check(
        der: &[u8],
        now: Timestamp,
        provider: &CryptoProvider,
    ) -> Result<Self, PeerCertificateError> {
        let limit = MAX_DOCUMENT + OVERHEAD;
        if der.len() > limit {
            return Err(PeerCertificateError::TooLarge(der.len()));
        }
        let parsed = Parsed::from_der_up_to(der, limit).map_err(PeerCertificateError::Malformed)?;
        check_signature(&parsed, provider)?;
        let (from, until) = parsed.validity();
        if now < from || until < now {
            return Err(PeerCertificateError::Expired { from, until, now });
        }
        let spki = parsed.public_key_der().map_err(|_| PeerCertificateError::Signature)?;
        Ok(Self { key_hash: key_hash(&spki), parsed })
    }

    pub(super) fn key_hash(&self) -> Sha256Digest {
        self.key_hash
    }

    /// The first extension with the identifier of one of `accepted`.
    pub(super) fn document(
        &self,
        accepted: &[Variant],
    ) -> Result<(Variant, &[u8]), PeerCertificateError> {
        let extensions = || {
            let all = self.parsed.certificate().tbs_certificate().extensions();
            all.into_iter().flatten()
        };
        let variant = |oid| {
            let is_it = |one: &&Variant| one.object_identifier() == oid;
            accepted.iter().find(is_it).copied()
        };
        extensions()
            .find_map(|one| Some((variant(one.extn_id)?, one.extn_value.as_bytes())))
            .ok_or_else(|| {
                PeerCertificateError::NoDocument(
                    extensions().map(|one| one.extn_id.to_string()).collect(),
                )
            })
    }
}

/// Only ECDSA on P-256 over SHA-256: a single form, which every peer produces.
fn check_signature(parsed: &Parsed, provider: &CryptoProvider) -> Result<(), PeerCertificateError> {
    let refused = || PeerCertificateError::Signature;
    let certificate = parsed.certificate();
    if certificate.signature_algorithm().oid != ECDSA_SHA256 {
        return Err(refused());
    }
    let bits = |bits: &x509_cert::der::asn1::BitString| bits.as_bytes().map(<[u8]>::to_vec);
    let key = &certificate.tbs_certificate().subject_public_key_info().subject_public_key;
    let key = bits(key).ok_or_else(refused)?;
    let signature = bits(certificate.signature()).ok_or_else(refused)?;
    ByProvider(provider)
        .signed(SignatureScheme::ECDSA_NISTP256_SHA256, &key, parsed.signed(), &signature)
        .then_some(())
        .ok_or_else(refused)
}
