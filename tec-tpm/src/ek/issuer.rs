//! The challenge issuer of a registration service, built from the parts of this crate.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand_core::CryptoRng;
use tec_core::ak::{Credential, EkOffer, Fingerprint, PublicKey, TpmObjectError, TpmObjects};
use tec_core::port::{Clock, chain};
use tec_core::secret::SecretArray;

use super::{
    CertificateError, ChainError, CredentialError, EkCertificate, TrustStore, make_credential,
    verify_ek_certificate,
};
use crate::ak::{AkError, AttestationKey};

/// A challenge was not issued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssuerError {
    /// The attestation key is not acceptable.
    #[error("the attestation key is not acceptable")]
    Ak(#[source] AkError),
    /// The endorsement key is not one of those that are allowed, and no root is trusted.
    #[error("the endorsement key {0} is not on the list of accepted keys")]
    NotListed(Fingerprint),
    /// A required certificate was not received.
    #[error("the node sent no certificate for its endorsement key")]
    NoCertificate,
    /// The certificate is not acceptable.
    #[error("the endorsement key certificate is not acceptable")]
    Certificate(#[source] CertificateError),
    /// The certificate is for another key.
    #[error("the certificate is for a key other than the one offered")]
    OtherKey,
    /// No trusted root vouches for the endorsement key.
    #[error("no trusted root vouches for the endorsement key")]
    Chain(#[source] ChainError),
    /// The challenge could not be created.
    #[error("the challenge cannot be created")]
    Credential(#[source] CredentialError),
}

/// Issues challenges to endorsement keys.
///
/// By default ([`new`](Self::new)) any endorsement key is challenged; then the `AkMatcher` decides which ones
/// are accepted. With roots, only keys that a root vouches for; with a list, only those on it; with both, a
/// key needs one of the two.
#[derive(Clone, Debug, Default)]
pub struct CredentialIssuer {
    roots: Option<(TrustStore, Arc<dyn Clock>)>,
    listed: Option<BTreeSet<Fingerprint>>,
}

impl CredentialIssuer {
    /// Challenges any endorsement key; a certificate that is sent along must be for that key.
    pub fn new() -> Self {
        Self::default()
    }

    /// Challenges endorsement keys whose certificate leads to a root of `store`.
    #[must_use]
    pub fn with_roots(store: TrustStore, clock: Arc<dyn Clock>) -> Self {
        Self { roots: Some((store, clock)), listed: None }
    }

    /// Also challenges these endorsement keys, without checking their certificates; without roots, only
    /// these.
    pub fn with_listed(self, eks: impl IntoIterator<Item = Fingerprint>) -> Self {
        Self { listed: Some(eks.into_iter().collect()), ..self }
    }

    fn check_ek(&self, offer: &EkOffer) -> Result<(), IssuerError> {
        let ek = offer.public.fingerprint();
        match (&self.listed, &self.roots) {
            (Some(listed), _) if listed.contains(&ek) => return Ok(()),
            (Some(_), None) => return Err(IssuerError::NotListed(ek)),
            _ => {}
        }
        let Some(der) = &offer.certificate else {
            return if self.roots.is_some() { Err(IssuerError::NoCertificate) } else { Ok(()) };
        };
        let certificate = EkCertificate::from_nv(der).map_err(IssuerError::Certificate)?;
        if *certificate.public() != offer.public {
            return Err(IssuerError::OtherKey);
        }
        if let Some((store, clock)) = &self.roots {
            verify_ek_certificate(&certificate, store, clock.now()).map_err(IssuerError::Chain)?;
        }
        Ok(())
    }

    /// Checks both keys and creates a challenge.
    pub fn issue(
        &self,
        offer: &EkOffer,
        tpm2b_public: &[u8],
        secret: &SecretArray<32>,
        rng: &mut dyn CryptoRng,
    ) -> Result<Credential, IssuerError> {
        let ak = AttestationKey::from_tpm2b(tpm2b_public).map_err(IssuerError::Ak)?;
        self.check_ek(offer)?;
        make_credential(&offer.public, &ak.name(), secret, rng).map_err(IssuerError::Credential)
    }
}

impl TpmObjects for CredentialIssuer {
    fn attestation_key(&self, tpm2b_public: &[u8]) -> Result<PublicKey, TpmObjectError> {
        AttestationKey::from_tpm2b(tpm2b_public)
            .map(|ak| ak.public().clone())
            .map_err(|error| TpmObjectError::new(chain(&error)))
    }

    fn challenge(
        &self,
        ek: &EkOffer,
        tpm2b_public: &[u8],
        secret: &SecretArray<32>,
        rng: &mut dyn CryptoRng,
    ) -> Result<Credential, TpmObjectError> {
        self.issue(ek, tpm2b_public, secret, rng)
            .map_err(|error| TpmObjectError::new(chain(&error)))
    }
}
