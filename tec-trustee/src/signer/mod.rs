//! The key that signs attestation tokens, and certificates for a KBS to trust (EAR, draft-ietf-rats-ear;
//! Trustee, KBS configuration).
//!
//! ```text
//! SignerCa ─ issue ─► IssuedSigner: signer.key, signer.crt ─► attestation_token_broker.signer
//!     └ certificate ─► trusted_certs_paths: the only tokens that count are those of its signers
//! ```
//! A KBS without such files signs with a key that nobody can verify, and so is configured to accept the key
//! that a token carries itself: then anyone can sign. Here the CA stays, and signers are renewed below it
//! without any change to what is trusted.
//!
//! ```
//! use tec_core::time::Timestamp;
//! use tec_trustee::signer::SignerCa;
//! # use rand_core::SeedableRng as _;
//! # let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
//! let now = Timestamp::from_unix_seconds(1_800_000_000);
//! let ca = SignerCa::generate(&mut rng, now)?;
//! let signer = ca.issue(&mut rng, now)?;
//! assert!(ca.renew(&signer, &mut rng, now)?.is_none());
//! let later = now.plus_seconds(70 * 86_400);
//! assert!(ca.renew(&signer, &mut rng, later)?.is_some());
//! # Ok::<(), tec_trustee::signer::SignerError>(())
//! ```

mod certificate;
#[cfg(test)]
mod tests;

use p256::SecretKey;
use p256::ecdsa::SigningKey;
use p256::elliptic_curve::Generate as _;
use p256::pkcs8::{EncodePrivateKey as _, LineEnding};
use rand_core::CryptoRng;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use x509_cert::Certificate;
use x509_cert::der::DecodePem as _;

use self::certificate::Role;

/// Lifetime of a signer's certificate, in days.
const SIGNER_DAYS: i64 = 90;
/// A signer with less remaining lifetime than this is renewed, in days.
const RENEW_DAYS: i64 = 30;
/// Lifetime of the CA, in days: trusted certificates are seldom reviewed.
const CA_DAYS: i64 = 3650;
/// Certificates are backdated by this much, for a KBS whose clock is behind.
const SKEW_SECONDS: i64 = 3600;
const DAY: i64 = 86_400;
/// Largest PEM file of a key or certificate.
const MAX_PEM: usize = 16 * 1024;

/// A signer cannot be created or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignerError {
    /// The key is not a P-256 private key in PEM.
    #[error("the key of the {0} is not a P-256 private key in PEM")]
    Key(&'static str),
    /// The certificate is not valid PEM.
    #[error("the certificate of the {role} is malformed")]
    Certificate {
        /// The CA or the signer.
        role: &'static str,
        /// The cause.
        #[source]
        source: x509_cert::der::Error,
    },
    /// The key and the certificate are not a pair.
    #[error("the certificate of the {0} is for another key")]
    Pair(&'static str),
    /// The certificate does not belong to a CA.
    #[error("the certificate of the CA does not allow it to issue certificates")]
    NotCa,
    /// The CA expires before its signer would.
    #[error("the CA expires at {0} (Unix seconds), before a new signer would: create a new CA")]
    CaEnds(i64),
    /// A certificate cannot be built or encoded.
    #[error("cannot build the certificate of the {role}")]
    Build {
        /// The CA or the signer.
        role: &'static str,
        /// The cause.
        #[source]
        source: x509_cert::builder::Error,
    },
}

/// A CA for signers of attestation tokens. Its key is zeroized on drop.
///
/// # Security
/// Anyone who holds its key can sign tokens that the KBS accepts, and so obtain every resource.
#[derive(derive_more::Debug)]
#[debug("SignerCa([redacted], {})", certificate.tbs_certificate().subject())]
pub struct SignerCa {
    key: SigningKey,
    certificate: Certificate,
}

/// A signer's key and certificate.
#[derive(Debug)]
pub struct IssuedSigner {
    key: SecretBytes,
    certificate: Certificate,
}

impl SignerCa {
    /// A new CA, valid for ten years. The same `rng` and `now` give the same bytes.
    pub fn generate(rng: &mut dyn CryptoRng, now: Timestamp) -> Result<Self, SignerError> {
        let key = SigningKey::from(SecretKey::generate_from_rng(rng));
        let period = (now.plus_seconds(-SKEW_SECONDS), now.plus_seconds(CA_DAYS * DAY));
        let certificate = certificate::build(Role::Ca, &key, (&key, None), period, rng)?;
        Ok(Self { key, certificate })
    }

    /// Reads a CA from PEM: private key (PKCS #8 or SEC 1) and certificate.
    pub fn from_pem(key: &SecretBytes, certificate: &str) -> Result<Self, SignerError> {
        let key = read_key(key, Role::Ca)?;
        let certificate = read_certificate(certificate, Role::Ca)?;
        if !certificate::is_of(&certificate, &key) {
            return Err(SignerError::Pair(Role::Ca.as_str()));
        }
        if !certificate::is_ca(&certificate) {
            return Err(SignerError::NotCa);
        }
        Ok(Self { key, certificate })
    }

    /// The private key in PEM, for a file of mode 0600 that the KBS never sees.
    ///
    /// # Errors
    /// `Key`, when it cannot be encoded.
    pub fn key_pem(&self) -> Result<SecretBytes, SignerError> {
        write_key(&self.key, Role::Ca)
    }

    /// The certificate in PEM, for `trusted_certs_paths`.
    ///
    /// # Errors
    /// `Certificate`, when it cannot be encoded.
    pub fn certificate_pem(&self) -> Result<String, SignerError> {
        write_certificate(&self.certificate, Role::Ca)
    }

    /// When the CA expires.
    pub fn ends_at(&self) -> Timestamp {
        certificate::period(&self.certificate).1
    }

    /// Issues a signer for 90 days.
    pub fn issue(
        &self,
        rng: &mut dyn CryptoRng,
        now: Timestamp,
    ) -> Result<IssuedSigner, SignerError> {
        let (begin, end) = (now.plus_seconds(-SKEW_SECONDS), now.plus_seconds(SIGNER_DAYS * DAY));
        if self.ends_at() < end {
            return Err(SignerError::CaEnds(self.ends_at().unix_seconds()));
        }
        let key = SigningKey::from(SecretKey::generate_from_rng(rng));
        let issuer = (&self.key, Some(&self.certificate));
        let certificate = certificate::build(Role::Signer, &key, issuer, (begin, end), rng)?;
        Ok(IssuedSigner { key: write_key(&key, Role::Signer)?, certificate })
    }

    /// Issues a new signer if `current` was not issued by this CA or has less than 30 days left; `None` if it
    /// is good.
    pub fn renew(
        &self,
        current: &IssuedSigner,
        rng: &mut dyn CryptoRng,
        now: Timestamp,
    ) -> Result<Option<IssuedSigner>, SignerError> {
        let is_good = has_life(&current.certificate, now);
        if is_good && certificate::is_issued_by(&current.certificate, &self.certificate, &self.key)
        {
            return Ok(None);
        }
        self.issue(rng, now).map(Some)
    }
}

impl IssuedSigner {
    /// Reads a signer from PEM: private key (PKCS #8 or SEC 1) and certificate.
    pub fn from_pem(key: &SecretBytes, certificate: &str) -> Result<Self, SignerError> {
        let parsed = read_key(key, Role::Signer)?;
        let certificate = read_certificate(certificate, Role::Signer)?;
        if !certificate::is_of(&certificate, &parsed) {
            return Err(SignerError::Pair(Role::Signer.as_str()));
        }
        Ok(Self { key: write_key(&parsed, Role::Signer)?, certificate })
    }

    /// The private key in PEM (PKCS #8), for `signer.key_path`.
    pub fn key_pem(&self) -> &SecretBytes {
        &self.key
    }

    /// The certificate in PEM, for `signer.cert_path`.
    ///
    /// # Errors
    /// `Certificate`, when it cannot be encoded.
    pub fn certificate_pem(&self) -> Result<String, SignerError> {
        write_certificate(&self.certificate, Role::Signer)
    }

    /// When it expires.
    pub fn ends_at(&self) -> Timestamp {
        certificate::period(&self.certificate).1
    }

    /// The certificate in DER, as it goes into `x5c`.
    ///
    /// # Errors
    /// `Certificate`, when it cannot be encoded.
    pub fn certificate_der(&self) -> Result<Vec<u8>, SignerError> {
        use x509_cert::der::Encode as _;
        self.certificate.to_der().map_err(unreadable(Role::Signer))
    }
}

/// Whether the certificate of a signer has less than 30 days left, so that a new signer is due.
///
/// # Errors
/// `Certificate`, when it does not parse.
pub fn is_due(certificate: &str, now: Timestamp) -> Result<bool, SignerError> {
    let certificate = read_certificate(certificate, Role::Signer)?;
    Ok(!has_life(&certificate, now))
}

fn has_life(certificate: &Certificate, now: Timestamp) -> bool {
    let (begin, end) = certificate::period(certificate);
    begin <= now && now < end.plus_seconds(-RENEW_DAYS * DAY)
}

fn unreadable(role: Role) -> impl FnOnce(x509_cert::der::Error) -> SignerError {
    move |source| SignerError::Certificate { role: role.as_str(), source }
}

fn read_key(pem: &SecretBytes, role: Role) -> Result<SigningKey, SignerError> {
    Some(pem.expose("parse a key of the token signer"))
        .filter(|pem| pem.len() <= MAX_PEM)
        .and_then(|pem| std::str::from_utf8(pem).ok())
        .and_then(|pem| SecretKey::from_pem(pem.trim()).ok())
        .map(SigningKey::from)
        .ok_or(SignerError::Key(role.as_str()))
}

fn write_key(key: &SigningKey, role: Role) -> Result<SecretBytes, SignerError> {
    SecretKey::from(key)
        .to_pkcs8_pem(LineEnding::LF)
        .map(|pem| SecretBytes::new(pem.as_bytes().to_vec()))
        .map_err(|_| SignerError::Key(role.as_str()))
}

fn read_certificate(pem: &str, role: Role) -> Result<Certificate, SignerError> {
    let pem = pem.get(..MAX_PEM.min(pem.len())).unwrap_or_default();
    Certificate::from_pem(pem.trim()).map_err(unreadable(role))
}

fn write_certificate(certificate: &Certificate, role: Role) -> Result<String, SignerError> {
    use x509_cert::der::EncodePem as _;
    certificate.to_pem(LineEnding::LF).map_err(unreadable(role))
}
