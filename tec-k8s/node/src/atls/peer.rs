//! The other side of a connection.

use tec_core::ak::PublicKey;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrValues;

use super::{Mismatch, Validated, Variant};

/// Proof that the peer's evidence was verified and accepted. Only a handshake creates one.
#[derive(Clone, Debug)]
pub struct AttestedPeer {
    pub(super) variant: Variant,
    pub(super) key_hash: Sha256Digest,
    pub(super) validated: Validated,
    pub(super) bound: bool,
}

impl AttestedPeer {
    /// Type of its evidence.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// SHA-256 over the SubjectPublicKeyInfo of its certificate.
    pub fn key_hash(&self) -> &Sha256Digest {
        &self.key_hash
    }

    /// Its attestation key, if it has one.
    ///
    /// # Security
    /// With [`AnyAk`](super::AnyAk) the caller must check whose key it is.
    pub fn ak(&self) -> Option<&PublicKey> {
        self.validated.ak.as_ref()
    }

    /// Its registers, if it has any.
    pub fn pcrs(&self) -> Option<&PcrValues> {
        self.validated.pcrs.as_ref()
    }

    /// Registers that differ from the expected value but only warn.
    pub fn warnings(&self) -> &[Mismatch] {
        &self.validated.warnings
    }

    /// Whether its evidence was sent over this very connection; otherwise it was in its
    /// certificate.
    pub fn is_channel_bound(&self) -> bool {
        self.bound
    }
}
