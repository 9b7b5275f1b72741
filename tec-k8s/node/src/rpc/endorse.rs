//! Accepts attestation keys that an endorsement key vouches for.
//!
//! ```text
//!  node                                         service
//!   endorsement key, its certificate, ─────────► list or roots; the attestation key of this connection
//!   public area of the attestation key
//!   TPM2_ActivateCredential ◄─ id, a secret encrypted to the endorsement key for that very object
//!   id, secret, with the next request ─────────► the secret of that id, derived again
//! ```
//! The service remembers nothing between the two calls.

use std::fmt;
use std::sync::Arc;

use crate::derive::DiskId;
use crate::grant::member_machine;
use async_trait::async_trait;
use tec_core::ak::{Credential, EkOffer, Fingerprint, PublicKey, TpmObjects};
use tec_core::challenge::{Challenge, ChallengeKey};
use tec_core::code::Code;
use tec_core::port::{Clock, Entropy, EntropyRng, PortError, PortErrorKind};
use tec_core::secret::{SecretArray, SecretBytes};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::generated::join::api_client::ApiClient;
use super::generated::join::{
    ChallengeEndorsementKeyRequest, ChallengeEndorsementKeyResponse, EndorsementProof,
};
use super::{CALL_LIMIT, Caller, Reason, convert};

/// Maximum number of characters of a reason: names in certificates can have any length.
const MAX_REASON: usize = 512;

/// Which attestation keys need an endorsement key, and which endorsement keys may vouch for them.
pub trait EndorsementPolicy: fmt::Debug + Send + Sync {
    /// Whether nothing else vouches for this attestation key.
    fn is_demanded(&self, ak: &Fingerprint) -> bool;

    /// Challenges endorsement keys, and refuses those that may not vouch; `None` if none may.
    fn issuer(&self) -> Option<Arc<dyn TpmObjects>>;
}

/// Challenges endorsement keys, and checks the answers.
#[derive(Debug)]
pub struct Endorsements {
    policy: Arc<dyn EndorsementPolicy>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    key: ChallengeKey,
}

impl Endorsements {
    /// Uses this policy. A node asks and answers over one connection, so each process has its own key.
    pub fn new(
        policy: Arc<dyn EndorsementPolicy>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { policy, key: ChallengeKey::random(&*entropy), clock, entropy }
    }

    /// Whether an endorsement key can be proven at all.
    pub(super) fn can_be_proven(&self) -> bool {
        self.policy.issuer().is_some()
    }

    /// A challenge for the TPM of the caller.
    pub(super) fn challenge(
        &self,
        caller: &Caller,
        message: ChallengeEndorsementKeyRequest,
    ) -> Result<ChallengeEndorsementKeyResponse, Status> {
        let disk = convert::disk_id(&message.disk_uuid)?;
        let public = PublicKey::from_der(&message.endorsement_key);
        let public = public.map_err(|error| refused(caller, None, &error.to_string()))?;
        let ek = public.fingerprint();
        let refused = |reason: &str| refused(caller, Some(ek), reason);
        let Some(tpm) = self.policy.issuer() else {
            let reason = "the join service has neither endorsement_keys nor endorsement_roots";
            return Err(refused(reason));
        };
        let named = tpm.attestation_key(&message.attestation_key);
        let named = named.map_err(|error| refused(&error.reason))?;
        if named != *caller.key() {
            return Err(refused("the attestation key is not the one that this connection proved"));
        }
        let machine = member_machine(disk, &caller.ak());
        let challenge = Challenge { machine, ek, public: named };
        let issued = challenge.issue(&self.key, self.clock.now(), &*self.entropy);
        let (id, secret) = issued.ok_or_else(|| refused("the challenge cannot be created"))?;
        let certificate = (!message.certificate.is_empty()).then_some(message.certificate);
        let offer = EkOffer::new(public, certificate);
        let mut rng = EntropyRng::new(&*self.entropy);
        let made = tpm.challenge(&offer, &message.attestation_key, &secret, &mut rng);
        let credential = made.map_err(|error| refused(&error.reason))?;
        Ok(ChallengeEndorsementKeyResponse {
            challenge: id,
            id_object: credential.id_object,
            encrypted_secret: credential.encrypted_secret,
        })
    }

    /// The endorsement key that the caller proved; `None` if it need not prove one.
    pub(super) fn proven(
        &self,
        caller: &Caller,
        disk: DiskId,
        proof: Option<EndorsementProof>,
    ) -> Result<Option<Fingerprint>, Status> {
        let Some(proof) = proof else {
            return if self.policy.is_demanded(&caller.ak()) {
                Err(demanded(caller))
            } else {
                Ok(None)
            };
        };
        let answer = <[u8; 32]>::try_from(proof.secret).map(SecretArray::new);
        let (id, now) = (&proof.challenge, self.clock.now());
        let proven = answer.ok().and_then(|answer| Challenge::check(&self.key, id, &answer, now));
        let proven = proven.ok_or_else(|| {
            refused(caller, None, "the answer to the challenge is wrong or came too late")
        })?;
        let machine = member_machine(disk, &caller.ak());
        if proven.public != *caller.key() || proven.machine != machine {
            let sentence = "the answer is that of another node";
            return Err(refused(caller, Some(proven.ek), sentence));
        }
        Ok(Some(proven.ek))
    }
}

pub(super) fn demanded(caller: &Caller) -> Status {
    let ak = caller.ak();
    tracing::debug!(ak.fingerprint = %ak, "an endorsement key has to vouch for a node");
    let sentence = format!(
        "the settings do not list attestation key {ak} for this: the endorsement key of its TPM has to vouch for it"
    );
    Reason::NeedsEndorsementKey.status(tonic::Code::FailedPrecondition, sentence)
}

fn refused(caller: &Caller, ek: Option<Fingerprint>, reason: &str) -> Status {
    let code = Code::BootstrapEndorsement;
    let reason: String = reason.chars().take(MAX_REASON).collect();
    tracing::warn!(
        %code,
        ak.fingerprint = %caller.ak(),
        ek.fingerprint = ek.map(tracing::field::display),
        reason,
        "the endorsement key of a node was refused"
    );
    let ek = ek.map(|ek| format!(" ({ek})")).unwrap_or_default();
    let sentence = format!("{code}: {}{ek}: {reason}", code.title());
    Reason::EndorsementKey.status(tonic::Code::PermissionDenied, sentence)
}

/// The keys of its TPM that a node presents.
#[derive(Clone, Debug)]
pub struct TpmOffer {
    /// Endorsement key and certificate.
    pub ek: EkOffer,
    /// TPM2B_PUBLIC of the attestation key.
    pub ak_area: Vec<u8>,
}

/// The TPM of this node, which proves that it holds both keys.
#[async_trait]
pub trait Endorser: fmt::Debug + Send + Sync {
    /// Its keys.
    async fn offer(&self) -> Result<TpmOffer, PortError>;

    /// Answers a challenge (TPM2_ActivateCredential).
    async fn activate(&self, credential: &Credential) -> Result<SecretBytes, PortError>;
}

/// Proves that our attestation key is in the TPM of our endorsement key.
pub(super) async fn prove(
    endorser: &dyn Endorser,
    channel: Channel,
    disk: DiskId,
) -> Result<EndorsementProof, PortError> {
    let TpmOffer { ek, ak_area } = endorser.offer().await?;
    let mut request = Request::new(ChallengeEndorsementKeyRequest {
        disk_uuid: disk.to_string(),
        endorsement_key: ek.public.as_der().to_vec(),
        certificate: ek.certificate.unwrap_or_default(),
        attestation_key: ak_area,
    });
    request.set_timeout(CALL_LIMIT);
    let answer = ApiClient::new(channel).challenge_endorsement_key(request).await;
    let answer = answer.map_err(|status| {
        PortError::new(PortErrorKind::Unavailable, "ask for a challenge of the endorsement key")
            .because(status)
    })?;
    let answer = answer.into_inner();
    let credential = Credential::new(answer.id_object, answer.encrypted_secret);
    let secret = endorser.activate(&credential).await?;
    Ok(EndorsementProof {
        challenge: answer.challenge,
        secret: secret.expose("prove it to the join service").to_vec(),
    })
}

#[cfg(test)]
mod tests;
