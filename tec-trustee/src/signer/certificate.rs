//! Certificates of a CA and of its signers (RFC 5280).

use std::time::Duration;

use p256::ecdsa::signature::Verifier as _;
use p256::ecdsa::{DerSignature, SigningKey};
use p256::pkcs8::EncodePublicKey as _;
use rand_core::CryptoRng;
use tec_core::time::Timestamp;
use x509_cert::Certificate;
use x509_cert::builder::profile::BuilderProfile;
use x509_cert::builder::{Builder as _, CertificateBuilder, Error, Result};
use x509_cert::certificate::TbsCertificate;
use x509_cert::der::Encode as _;
use x509_cert::der::asn1::GeneralizedTime;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, KeyUsage, KeyUsages, SubjectKeyIdentifier,
};
use x509_cert::ext::{Extension, ToExtension as _};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{SubjectPublicKeyInfo, SubjectPublicKeyInfoRef};
use x509_cert::time::{Time, Validity};

use super::SignerError;

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Ca,
    Signer,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ca => "CA",
            Self::Signer => "token signer",
        }
    }
}

struct Profile {
    role: Role,
    subject: Name,
    /// `None` if it is self-signed.
    issuer: Option<Name>,
}

impl BuilderProfile for Profile {
    fn get_issuer(&self, subject: &Name) -> Name {
        self.issuer.clone().unwrap_or_else(|| subject.clone())
    }

    fn get_subject(&self) -> Name {
        self.subject.clone()
    }

    /// RFC 5280, section 4.2.1: constraints and usages are critical, identifiers are not.
    fn build_extensions(
        &self,
        key: SubjectPublicKeyInfoRef<'_>,
        issuer_key: SubjectPublicKeyInfoRef<'_>,
        tbs: &TbsCertificate,
    ) -> Result<Vec<Extension>> {
        let is_ca = self.role == Role::Ca;
        let constraints = BasicConstraints {
            ca: is_ca,
            // Signers are directly below.
            path_len_constraint: is_ca.then_some(0),
        };
        let usage = if is_ca {
            KeyUsage(KeyUsages::KeyCertSign.into())
        } else {
            KeyUsage(KeyUsages::DigitalSignature.into())
        };
        let (name, none) = (tbs.subject(), &[]);
        Ok(vec![
            constraints.to_extension(name, none)?,
            usage.to_extension(name, none)?,
            SubjectKeyIdentifier::try_from(key)?.to_extension(name, none)?,
            AuthorityKeyIdentifier::try_from(issuer_key)?.to_extension(name, none)?,
        ])
    }
}

/// Builds a certificate for `key`. ECDSA is deterministic here (RFC 6979).
pub(super) fn build(
    role: Role,
    key: &SigningKey,
    (issuer_key, issuer): (&SigningKey, Option<&Certificate>),
    (begin, end): (Timestamp, Timestamp),
    rng: &mut dyn CryptoRng,
) -> std::result::Result<Certificate, SignerError> {
    try_build(role, key, (issuer_key, issuer), (begin, end), rng)
        .map_err(|source| SignerError::Build { role: role.as_str(), source })
}

fn try_build(
    role: Role,
    key: &SigningKey,
    (issuer_key, issuer): (&SigningKey, Option<&Certificate>),
    (begin, end): (Timestamp, Timestamp),
    rng: &mut dyn CryptoRng,
) -> Result<Certificate> {
    let mut serial = [0; 16];
    rng.fill_bytes(&mut serial);
    // The first byte keeps the number positive and its length the same (RFC 5280, section 4.1.2.2).
    serial[0] = 0x40 | (serial[0] & 0x3f);
    let profile = Profile {
        role,
        subject: name(role, &serial)?,
        issuer: issuer.map(|issuer| issuer.tbs_certificate().subject().clone()),
    };
    let validity = Validity::new(time(begin)?, time(end)?);
    let public = SubjectPublicKeyInfo::from_key(key.verifying_key())?;
    CertificateBuilder::new(profile, SerialNumber::new(&serial)?, validity, public)?
        .build::<_, DerSignature>(issuer_key)
}

/// Each has a unique name, so that two CAs are never confused.
fn name(role: Role, serial: &[u8; 16]) -> Result<Name> {
    let number = serial
        .iter()
        .take(8)
        .fold(0_u64, |number, byte| number.checked_shl(8).unwrap_or_default() | u64::from(*byte));
    let text = match role {
        Role::Ca => format!("CN=TEC attestation token CA {number:016x}"),
        Role::Signer => format!("CN=TEC attestation token signer {number:016x}"),
    };
    text.parse().map_err(Error::Asn1)
}

fn time(at: Timestamp) -> Result<Time> {
    let seconds = u64::try_from(at.unix_seconds()).unwrap_or_default();
    let time = GeneralizedTime::from_unix_duration(Duration::from_secs(seconds))?;
    Ok(Time::from(time))
}

/// Start and end of validity.
pub(super) fn period(certificate: &Certificate) -> (Timestamp, Timestamp) {
    let validity = certificate.tbs_certificate().validity();
    let at = |time: Time| {
        let seconds = i64::try_from(time.to_unix_duration().as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_unix_seconds(seconds)
    };
    (at(validity.not_before), at(validity.not_after))
}

/// Whether the certificate is for this key.
pub(super) fn is_of(certificate: &Certificate, key: &SigningKey) -> bool {
    let certified = certificate.tbs_certificate().subject_public_key_info();
    let own = key.verifying_key().to_public_key_der();
    matches!((certified.to_der(), own), (Ok(certified), Ok(own)) if certified == own.as_bytes())
}

/// Whether it may issue certificates.
pub(super) fn is_ca(certificate: &Certificate) -> bool {
    let constraints = certificate.tbs_certificate().get_extension::<BasicConstraints>();
    matches!(constraints, Ok(Some((_, constraints))) if constraints.ca)
}

/// Whether it names this issuer and is signed with this key.
pub(super) fn is_issued_by(
    certificate: &Certificate,
    issuer: &Certificate,
    issuer_key: &SigningKey,
) -> bool {
    let signed = certificate.tbs_certificate();
    let Ok(bytes) = signed.to_der() else {
        return false;
    };
    let Ok(signature) = DerSignature::from_bytes(certificate.signature().raw_bytes()) else {
        return false;
    };
    signed.issuer() == issuer.tbs_certificate().subject()
        && issuer_key.verifying_key().verify(&bytes, &signature).is_ok()
}
