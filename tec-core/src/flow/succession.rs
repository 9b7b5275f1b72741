//! Succession: the bound key of an attested machine names the key that follows it; see
//! [`crate::ak::SuccessionOffer`]. [`admit`](super::admit) binds that key when it attests.

use crate::ak::{Fingerprint, PublicKey, SuccessionOffer, TpmObjects, succession_data};
use crate::attest::Attested;
use crate::code::Code;
use crate::flow::ReleaseError;
use crate::flow::rotation::still_trusted;
use crate::port::{
    AkRegistry, AkSuccession, AuditAction, AuditEvent, Clock, NameOutcome, PortError,
};

/// Ports for a succession.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a bundle of references, built field by field")]
pub struct SuccessionPorts<'a> {
    /// The attestation keys.
    pub aks: &'a dyn AkRegistry,
    /// Their successors.
    pub successors: &'a dyn AkSuccession,
    /// Reads what the TPM certified.
    pub tpm: &'a dyn TpmObjects,
    /// The clock.
    pub clock: &'a dyn Clock,
}

/// Records a new key as the successor of the key that an attested machine is bound to, in place of an earlier
/// one that was never used. The old key stays bound. `nonce` is that of the session.
///
/// # Errors
/// `Refused` if the machine or its key has been revoked or quarantined since the attestation, if the TPM with the
/// bound key does not certify the new one for this session, or if the new key is known already.
///
/// # Security
/// The certification proves that the new key is a restricted signing key in the same TPM. It admits nothing by
/// itself: a successor is bound only after evidence that it signs passes every check.
pub async fn name_successor(
    ports: SuccessionPorts<'_>,
    attested: &Attested,
    nonce: &str,
    offer: &SuccessionOffer,
) -> Result<Fingerprint, ReleaseError> {
    still_trusted(ports.aks, attested).await?;
    let bound = ports.aks.find(&attested.ak()).await.map_err(ReleaseError::Port)?;
    let bound = bound.ok_or(ReleaseError::Refused { code: Code::AkNotBound })?;
    let machine = attested.machine();
    let qualifying = succession_data(nonce, &machine);
    let key = ports.tpm.certified_key(&bound.public, &qualifying, offer);
    let key = key.map_err(|_| ReleaseError::Refused { code: Code::RegisterKeyRefused })?;
    let outcome = name(ports, attested, &key).await.map_err(ReleaseError::Port)?;
    let refused = |code| Err(ReleaseError::Refused { code });
    match outcome {
        NameOutcome::Named => Ok(key.fingerprint()),
        NameOutcome::NotBound => refused(Code::AkNotBound),
        NameOutcome::KeyTaken => refused(Code::RegisterKeyElsewhere),
    }
}

async fn name(
    ports: SuccessionPorts<'_>,
    attested: &Attested,
    key: &PublicKey,
) -> Result<NameOutcome, PortError> {
    let subject =
        format!("{} after {} attempt {}", key.fingerprint(), attested.ak(), attested.attempt());
    let (now, action) = (ports.clock.now(), AuditAction::AkSuccessorNamed);
    let line = AuditEvent::new(now, action, Some(attested.machine()), subject);
    ports.successors.name_successor(&attested.ak(), key, &line).await
}
