//! The interface of a registration service to code that understands TPM structures.

use std::fmt;

use rand_core::CryptoRng;

use super::PublicKey;
use crate::secret::SecretArray;

/// The endorsement key that a node offers to vouch for its attestation key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EkOffer {
    /// The key.
    pub public: PublicKey,
    /// Its certificate in DER, if the TPM has one.
    pub certificate: Option<Vec<u8>>,
}

impl EkOffer {
    /// Creates an offer.
    pub fn new(public: PublicKey, certificate: Option<Vec<u8>>) -> Self {
        Self { public, certificate }
    }
}

/// A challenge that only the TPM with the endorsement key and this very attestation key can answer
/// (TPM 2.0 Library Part 1, "Credential Protection").
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credential {
    /// TPM2B_ID_OBJECT.
    pub id_object: Vec<u8>,
    /// TPM2B_ENCRYPTED_SECRET.
    pub encrypted_secret: Vec<u8>,
}

impl Credential {
    /// Creates a challenge from its parts.
    pub fn new(id_object: Vec<u8>, encrypted_secret: Vec<u8>) -> Self {
        Self { id_object, encrypted_secret }
    }
}

/// A TPM structure was refused.
#[derive(Debug, thiserror::Error)]
#[error("the TPM structure is not acceptable: {reason}")]
#[non_exhaustive]
pub struct TpmObjectError {
    /// What is wrong with it, for the log.
    pub reason: String,
}

impl TpmObjectError {
    /// Creates a refusal.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// Reads TPM structures for a registration service; pure.
///
/// *Implemented by* `tec_tpm`, with a few lines of glue in the program that composes both.
pub trait TpmObjects: fmt::Debug + Send + Sync {
    /// Reads a TPM2B_PUBLIC and checks that it is a restricted signing key that cannot leave its
    /// TPM.
    fn attestation_key(&self, tpm2b_public: &[u8]) -> Result<PublicKey, TpmObjectError>;

    /// Creates a challenge for the attestation key of `tpm2b_public` under the offered endorsement
    /// key.
    fn challenge(
        &self,
        ek: &EkOffer,
        tpm2b_public: &[u8],
        secret: &SecretArray<32>,
        rng: &mut dyn CryptoRng,
    ) -> Result<Credential, TpmObjectError>;
}
