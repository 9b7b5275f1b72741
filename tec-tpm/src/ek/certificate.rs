//! Reading one X.509 certificate strictly enough for a trust decision.

use tec_core::ak::{KeyKind, ParsePublicKeyError, PublicKey};
use tec_core::time::Timestamp;
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode as _, Encode as _, Reader as _, SliceReader};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAltName};

/// Largest certificate that is examined; endorsement key certificates take 1 to 2 KiB.
const MAX_CERTIFICATE: usize = 16 * 1024;
/// tcg-kp-EKCertificate (TCG EK Credential Profile for TPM Family 2.0, version 2.6, section 3.2,
/// "Extended Key Usage").
const EK_CERTIFICATE_PURPOSE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.23.133.8.1");

/// tcg-at-tpmManufacturer (same profile, section 3.1, "TPM Manufacturer").
const TPM_MANUFACTURER: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.23.133.2.1");

// Extensions that may be critical, since they are understood or say nothing about trust (RFC 5280,
// section 4.2.1).
const UNDERSTOOD: [ObjectIdentifier; 5] = [
    ObjectIdentifier::new_unwrap("2.5.29.15"), // keyUsage
    ObjectIdentifier::new_unwrap("2.5.29.17"), // subjectAltName
    ObjectIdentifier::new_unwrap("2.5.29.19"), // basicConstraints
    ObjectIdentifier::new_unwrap("2.5.29.32"), // certificatePolicies
    ObjectIdentifier::new_unwrap("2.5.29.37"), // extKeyUsage
];

/// A certificate was refused on its own, before its chain was examined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The input is larger than any certificate.
    #[error("the certificate has {0} bytes, which is too large")]
    TooLarge(usize),
    /// The input is not an X.509 certificate in DER.
    #[error("the certificate is malformed")]
    Malformed(#[source] x509_cert::der::Error),
    /// The certificate is not version 3.
    #[error("the certificate is not of version 3")]
    Version,
    /// A critical extension is not supported here.
    #[error("the critical extension {0} is not supported")]
    CriticalExtension(String),
    /// An endorsement key certificate may sign other certificates.
    #[error("an endorsement key certificate must not be a CA certificate")]
    IsCa,
    /// The key usage is missing or does not match the type of the key: RSA keys encipher keys, ECC keys agree
    /// on them.
    #[error("the key usage is missing, or not that of an endorsement key")]
    KeyUsage,
    /// The extended key usage does not include endorsement, or it is missing and no TPM is named.
    #[error("neither the extended key usage nor the subject alternative name is that of a TPM")]
    Purpose,
    /// The certified key cannot be used.
    #[error("the certified key is not acceptable")]
    Key(#[source] ParsePublicKeyError),
}

/// A certificate and the parts of it that are needed to check it.
#[derive(Clone, Debug)]
pub struct Parsed {
    certificate: Certificate,
    signed: Vec<u8>,
}

impl Parsed {
    pub(crate) fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        Self::from_der_up_to(der, MAX_CERTIFICATE)
    }

    /// Parses a DER certificate of at most `limit` bytes.
    ///
    /// # Errors
    /// [`CertificateError`] if it is larger, malformed, not version 3, or has an unknown critical extension.
    pub fn from_der_up_to(der: &[u8], limit: usize) -> Result<Self, CertificateError> {
        if der.len() > limit {
            return Err(CertificateError::TooLarge(der.len()));
        }
        let certificate = Certificate::from_der(der).map_err(CertificateError::Malformed)?;
        // The signature is over the bytes as they came, not over another encoding of them.
        let signed = signed_part(der).map_err(CertificateError::Malformed)?;
        let parsed = Self { certificate, signed: signed.to_vec() };
        if parsed.certificate.tbs_certificate().version() != Version::V3 {
            return Err(CertificateError::Version);
        }
        parsed.check_critical()?;
        Ok(parsed)
    }

    fn check_critical(&self) -> Result<(), CertificateError> {
        let extensions = self.certificate.tbs_certificate().extensions();
        let unknown = extensions
            .into_iter()
            .flatten()
            .find(|extension| extension.critical && !UNDERSTOOD.contains(&extension.extn_id));
        match unknown {
            Some(extension) => {
                Err(CertificateError::CriticalExtension(extension.extn_id.to_string()))
            }
            None => Ok(()),
        }
    }

    /// Its fields.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The bytes that its signature covers.
    pub fn signed(&self) -> &[u8] {
        &self.signed
    }

    /// SubjectPublicKeyInfo of the certified key.
    ///
    /// # Errors
    /// Errors of the encoder.
    pub fn public_key_der(&self) -> Result<Vec<u8>, x509_cert::der::Error> {
        self.certificate.tbs_certificate().subject_public_key_info().to_der()
    }

    /// Whether it names this issuer.
    pub(crate) fn names_issuer(&self, issuer: &Self) -> bool {
        let name = issuer.certificate.tbs_certificate().subject();
        self.certificate.tbs_certificate().issuer() == name
    }

    pub(crate) fn subject(&self) -> String {
        self.certificate.tbs_certificate().subject().to_string()
    }

    pub(crate) fn issuer(&self) -> String {
        self.certificate.tbs_certificate().issuer().to_string()
    }

    /// First and last second of validity.
    pub fn validity(&self) -> (Timestamp, Timestamp) {
        let seconds = |time: x509_cert::time::Time| {
            let seconds = time.to_unix_duration().as_secs();
            Timestamp::from_unix_seconds(i64::try_from(seconds).unwrap_or(i64::MAX))
        };
        let validity = self.certificate.tbs_certificate().validity();
        (seconds(validity.not_before), seconds(validity.not_after))
    }

    /// Whether it may sign certificates, and how many CAs may follow.
    pub(crate) fn ca(&self) -> Result<Option<CaLimits>, CertificateError> {
        let tbs = self.certificate.tbs_certificate();
        let constraints =
            tbs.get_extension::<BasicConstraints>().map_err(CertificateError::Malformed)?;
        let usage = tbs.get_extension::<KeyUsage>().map_err(CertificateError::Malformed)?;
        Ok(match constraints {
            Some((_, constraints)) if constraints.ca => Some(CaLimits {
                path_length: constraints.path_len_constraint,
                signs_certificates: usage.is_none_or(|(_, usage)| usage.key_cert_sign()),
            }),
            _ => None,
        })
    }
}

/// What a CA certificate allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaLimits {
    pub(crate) path_length: Option<u8>,
    pub(crate) signs_certificates: bool,
}

fn signed_part(der: &[u8]) -> Result<&[u8], x509_cert::der::Error> {
    let mut outer = SliceReader::new(der)?;
    outer.sequence(|inner: &mut SliceReader<'_>| {
        let signed = inner.tlv_bytes()?;
        while !inner.is_finished() {
            inner.tlv_bytes()?;
        }
        Ok(signed)
    })
}

/// A certificate of an endorsement key, well formed in itself. Who signed it has not been checked.
#[derive(Clone, Debug)]
pub struct EkCertificate {
    parsed: Parsed,
    public: PublicKey,
}

impl EkCertificate {
    /// Parses the DER form.
    ///
    /// # Errors
    /// [`CertificateError`] when it is not a certificate that an endorsement key may have (TCG EK
    /// Credential Profile for TPM Family 2.0, "EK Certificate").
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let parsed = Parsed::from_der(der)?;
        if parsed.ca()?.is_some() {
            return Err(CertificateError::IsCa);
        }
        check_purpose(&parsed)?;
        let spki = parsed.public_key_der().map_err(CertificateError::Malformed)?;
        let public = PublicKey::from_der(&spki).map_err(CertificateError::Key)?;
        check_usage(&parsed, public.kind())?;
        Ok(Self { parsed, public })
    }

    /// Parses what a TPM keeps in its NV index: the DER form, with padding after it if the index is larger.
    pub fn from_nv(bytes: &[u8]) -> Result<Self, CertificateError> {
        Self::from_der(without_padding(bytes))
    }

    /// The certified key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Name of the issuer, for display.
    pub fn issuer(&self) -> String {
        self.parsed.issuer()
    }

    pub(super) fn parsed(&self) -> &Parsed {
        &self.parsed
    }
}

/// Removes a run of 0x00 or 0xff after the first DER element.
pub(crate) fn without_padding(bytes: &[u8]) -> &[u8] {
    let length =
        SliceReader::new(bytes).and_then(|mut reader| reader.tlv_bytes().map(<[u8]>::len)).ok();
    match length.and_then(|length| bytes.split_at_checked(length)) {
        Some((der, rest)) if rest.iter().all(|b| *b == 0) || rest.iter().all(|b| *b == 0xff) => der,
        _ => bytes,
    }
}

/// Section 3.2 of the profile demands a key usage: RSA keys encipher keys, ECC keys agree on them. One
/// that signs certificates is neither.
fn check_usage(parsed: &Parsed, kind: KeyKind) -> Result<(), CertificateError> {
    let tbs = parsed.certificate().tbs_certificate();
    let usage = tbs.get_extension::<KeyUsage>().map_err(CertificateError::Malformed)?;
    let fits = usage.is_some_and(|(_, usage)| {
        let does = match kind {
            KeyKind::Rsa { .. } => usage.key_encipherment(),
            _ => usage.key_agreement(),
        };
        does && !usage.key_cert_sign()
    });
    if fits { Ok(()) } else { Err(CertificateError::KeyUsage) }
}

/// Section 3.2 of the profile does not demand an extended key usage, and some manufacturers leave it out; if
/// there is one, it names endorsement keys. It does demand a subject alternative name with the TPM's
/// manufacturer, without which a certificate without a purpose may be anyone's.
fn check_purpose(parsed: &Parsed) -> Result<(), CertificateError> {
    let tbs = parsed.certificate().tbs_certificate();
    let purposes = tbs.get_extension::<ExtendedKeyUsage>().map_err(CertificateError::Malformed)?;
    let is_for_tpm = match purposes {
        Some((_, purposes)) => purposes.0.contains(&EK_CERTIFICATE_PURPOSE),
        None => names_tpm(parsed)?,
    };
    if is_for_tpm { Ok(()) } else { Err(CertificateError::Purpose) }
}

fn names_tpm(parsed: &Parsed) -> Result<bool, CertificateError> {
    let names = parsed
        .certificate()
        .tbs_certificate()
        .get_extension::<SubjectAltName>()
        .map_err(CertificateError::Malformed)?;
    let names = names.map(|(_, names)| names.0).unwrap_or_default();
    Ok(names.iter().any(|name| match name {
        GeneralName::DirectoryName(name) => {
            name.iter().any(|attribute| attribute.oid == TPM_MANUFACTURER)
        }
        _ => false,
    }))
}
