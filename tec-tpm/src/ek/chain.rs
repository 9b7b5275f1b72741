//! From an endorsement key certificate to a trusted root.

use rsa::pkcs8::DecodePublicKey as _;
use tec_core::ak::PublicKey;
use tec_core::time::Timestamp;
use x509_cert::der::oid::ObjectIdentifier;

use super::certificate::{CertificateError, EkCertificate, Parsed};
use crate::compute;
use crate::compute::rsa_scheme;
use crate::event_log::Bank;

// Signature algorithms (RFC 4055, section 5, and RFC 5758, section 3.2). SHA-1 is none of them.
const SHA256_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.11");
const SHA384_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.12");
const SHA512_RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.13");
const ECDSA_SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
const ECDSA_SHA384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3");

/// Maximum number of CA certificates between an endorsement key and its root; real chains have up
/// to three.
const MAX_INTERMEDIATES: usize = 5;
/// Maximum number of signature checks per verification, however many CAs have the same name.
const MAX_CHECKS: usize = 64;

/// A chain does not lead to a trusted root.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// A certificate of the chain is not valid yet.
    #[error("the certificate of {subject:?} is not valid before {from}")]
    NotYetValid {
        /// Subject of the certificate.
        subject: String,
        /// First second of validity.
        from: Timestamp,
    },
    /// A certificate of the chain has expired.
    #[error("the certificate of {subject:?} expired at {until}")]
    Expired {
        /// Subject of the certificate.
        subject: String,
        /// Last second of validity.
        until: Timestamp,
    },
    /// No CA of this name is in the trust store.
    #[error("the issuer {0:?} is not known")]
    UnknownIssuer(String),
    /// The signature algorithm is not accepted.
    #[error("the signature algorithm {0} is not accepted")]
    Algorithm(String),
    /// The issuer's key has a type that is not accepted, or is malformed.
    #[error("the key of the issuer {0:?} is not usable")]
    IssuerKey(String),
    /// The issuer did not sign the certificate.
    #[error("the certificate of {0:?} is not signed by its issuer")]
    Signature(String),
    /// The issuer is not a CA.
    #[error("the issuer {0:?} is not a CA")]
    NotCa(String),
    /// More CAs follow than one of them allows, or than are examined.
    #[error("the chain is longer than {0:?} allows")]
    PathLength(String),
    /// A CA certificate cannot be read.
    #[error("a CA certificate cannot be read")]
    Certificate(#[source] CertificateError),
}

/// Trusted roots and intermediate CAs.
#[derive(Clone, Debug, Default)]
pub struct TrustStore {
    roots: Vec<Parsed>,
    intermediates: Vec<Parsed>,
}

impl TrustStore {
    /// A store that trusts no CA.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a trusted root in DER.
    pub fn add_root(&mut self, der: &[u8]) -> Result<(), CertificateError> {
        self.roots.push(Parsed::from_der(der)?);
        Ok(())
    }

    /// Adds a CA in DER that is trusted only through a root.
    pub fn add_intermediate(&mut self, der: &[u8]) -> Result<(), CertificateError> {
        self.intermediates.push(Parsed::from_der(der)?);
        Ok(())
    }
}

/// Proof that a trusted root vouches for an endorsement key.
#[derive(Clone, Debug)]
pub struct VerifiedEk {
    public: PublicKey,
    root: String,
}

impl VerifiedEk {
    /// The key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Subject of the root, for display.
    pub fn root(&self) -> &str {
        &self.root
    }
}

/// Checks an endorsement key certificate against trusted roots: every certificate of the chain,
/// including the root, must be valid now and signed by the next, and each issuer must be a CA that
/// allows the length of the chain.
///
/// # Errors
/// [`ChainError`]: if several chains were tried, the error of the one that got furthest.
///
/// # Security
/// Revocation is not checked: that needs a network. Names are compared byte by byte.
pub fn verify_ek_certificate(
    certificate: &EkCertificate,
    store: &TrustStore,
    now: Timestamp,
) -> Result<VerifiedEk, ChainError> {
    let mut search = Search { store, now, checks_left: MAX_CHECKS };
    let leaf = certificate.parsed();
    check_validity(leaf, now)?;
    match search.climb(leaf, 0) {
        Ok(root) => Ok(VerifiedEk { public: certificate.public().clone(), root }),
        Err(finding) => Err(finding.error),
    }
}

/// Why a chain ended, and its number of certificates at that point.
struct Finding {
    depth: usize,
    error: ChainError,
}

struct Search<'a> {
    store: &'a TrustStore,
    now: Timestamp,
    checks_left: usize,
}

impl Search<'_> {
    /// Looks for a chain from `child`, which has `below` CAs under it, to a root.
    fn climb(&mut self, child: &Parsed, below: usize) -> Result<String, Finding> {
        let store = self.store;
        let at = |error| Finding { depth: below, error };
        let mut furthest = at(ChainError::UnknownIssuer(child.issuer()));
        for root in store.roots.iter().filter(|one| child.names_issuer(one)) {
            match self.step(child, root, below) {
                Ok(()) => return Ok(root.subject()),
                Err(error) => furthest = at(error),
            }
        }
        for ca in store.intermediates.iter().filter(|one| child.names_issuer(one)) {
            let found = match self.step(child, ca, below) {
                Ok(()) if below < MAX_INTERMEDIATES => self.climb(ca, below + 1),
                Ok(()) => Err(at(ChainError::PathLength(ca.subject()))),
                Err(error) => Err(at(error)),
            };
            match found {
                Ok(root) => return Ok(root),
                Err(finding) if finding.depth >= furthest.depth => furthest = finding,
                Err(_) => {}
            }
        }
        Err(furthest)
    }

    /// Whether `issuer` may have signed `child` and did.
    fn step(&mut self, child: &Parsed, issuer: &Parsed, below: usize) -> Result<(), ChainError> {
        let name = || issuer.subject();
        check_validity(issuer, self.now)?;
        let limits = issuer.ca().map_err(ChainError::Certificate)?;
        let Some(limits) = limits.filter(|limits| limits.signs_certificates) else {
            return Err(ChainError::NotCa(name()));
        };
        let too_long = limits.path_length.is_some_and(|length| usize::from(length) < below);
        self.checks_left = self.checks_left.saturating_sub(1);
        if too_long || self.checks_left == 0 {
            return Err(ChainError::PathLength(name()));
        }
        verify_signature(child, issuer)
    }
}

fn check_validity(certificate: &Parsed, now: Timestamp) -> Result<(), ChainError> {
    let (from, until) = certificate.validity();
    if now < from {
        return Err(ChainError::NotYetValid { subject: certificate.subject(), from });
    }
    if until < now {
        return Err(ChainError::Expired { subject: certificate.subject(), until });
    }
    Ok(())
}

fn verify_signature(child: &Parsed, issuer: &Parsed) -> Result<(), ChainError> {
    let certificate = child.certificate();
    let algorithm = certificate.signature_algorithm();
    let wrong = || ChainError::Signature(child.subject());
    // RFC 5280, section 4.1.1.2: both places name the same algorithm.
    if algorithm != certificate.tbs_certificate().signature() {
        return Err(wrong());
    }
    let signature = certificate.signature().as_bytes().ok_or_else(wrong)?;
    let verified = match algorithm.oid {
        SHA256_RSA => verify_rsa(child, issuer, signature, Bank::Sha256)?,
        SHA384_RSA => verify_rsa(child, issuer, signature, Bank::Sha384)?,
        SHA512_RSA => verify_rsa(child, issuer, signature, Bank::Sha512)?,
        ECDSA_SHA256 => verify_ecdsa(child, issuer, signature, Bank::Sha256)?,
        ECDSA_SHA384 => verify_ecdsa(child, issuer, signature, Bank::Sha384)?,
        oid => {
            return Err(ChainError::Algorithm(oid.to_string()));
        }
    };
    if verified { Ok(()) } else { Err(wrong()) }
}

fn key_der(issuer: &Parsed) -> Result<Vec<u8>, ChainError> {
    issuer.public_key_der().map_err(|_| unusable(issuer))
}

fn unusable(issuer: &Parsed) -> ChainError {
    ChainError::IssuerKey(issuer.subject())
}

fn verify_rsa(
    child: &Parsed,
    issuer: &Parsed,
    signature: &[u8],
    hash: Bank,
) -> Result<bool, ChainError> {
    // The smallest RSA key that is accepted anywhere here.
    const MIN_MODULUS: usize = 2048 / 8;
    let key =
        rsa::RsaPublicKey::from_public_key_der(&key_der(issuer)?).map_err(|_| unusable(issuer))?;
    if rsa::traits::PublicKeyParts::size(&key) < MIN_MODULUS {
        return Err(unusable(issuer));
    }
    Ok(key.verify(rsa_scheme(hash), &hash.hash(child.signed()), signature).is_ok())
}

/// ECDSA by a key on P-256 or P-384.
fn verify_ecdsa(
    child: &Parsed,
    issuer: &Parsed,
    signature: &[u8],
    hash: Bank,
) -> Result<bool, ChainError> {
    let digest = hash.hash(child.signed());
    compute::verify_ecdsa(&key_der(issuer)?, &digest, signature).ok_or_else(|| unusable(issuer))
}

#[cfg(test)]
mod tests;
