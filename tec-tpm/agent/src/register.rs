//! Registration of the attestation key.
//!
//! ```text
//! PUT {public_key, uuid, tpm_public, ek_public, …} ─┬─ 201, 409 "already registered" ► registered
//!                                                   ├─ 202 pending ─ wait ─► again
//!                                                   ├─ 202 challenge ─ TPM ─► PUT …/proof
//!                                                   ├─ 400, 422 ─► again with {public_key, uuid}
//!                                                   └─ 429, 5xx, no answer ─ back-off ─► again
//! ```
//! The existing operator's server supports only the short body.

mod answer;
mod http;

use std::error::Error;
use std::fmt;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tec_core::ak::{Credential, EkOffer, PublicKey};
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::ignition::NumRetries;
use tec_core::port::Entropy;
use tec_core::secret::SecretBytes;

use self::answer::Answer;
pub use self::http::HttpRegistrar;
use crate::backoff::Backoff;

/// Number of tries at a server that does not answer, if the configuration has none.
const DEFAULT_TRIES: u32 = 10;
/// Maximum number of polls while an admin has not decided: about an hour, at 30 s each.
const PENDING_POLLS: u32 = 130;
/// Maximum number of challenges to answer: a server forgets them when it restarts.
const MAX_CHALLENGES: u32 = 3;

/// The attestation key as presented to a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AkIdentity {
    /// The public key.
    pub public: PublicKey,
    /// Its `TPM2B_PUBLIC`, which states that it is restricted and never leaves its TPM.
    pub tpm_public: Option<Vec<u8>>,
    /// The endorsement key of the same TPM, if the TPM reveals it.
    pub ek: Option<EkOffer>,
}

impl AkIdentity {
    /// A key of which only the public part is known.
    pub fn new(public: PublicKey) -> Self {
        Self { public, tpm_public: None, ek: None }
    }
}

/// Answers challenges: the TPM.
pub trait Activator: fmt::Debug + Send + Sync {
    /// `TPM2_ActivateCredential` with the attestation key and the endorsement key.
    fn activate(&self, credential: &Credential) -> Result<SecretBytes, ActivateError>;
}

/// The TPM did not answer a challenge.
#[derive(Debug, thiserror::Error)]
#[error("cannot answer the challenge of the endorsement key")]
#[non_exhaustive]
pub struct ActivateError {
    /// The cause.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

impl ActivateError {
    /// A failure of the TPM.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: source.into() }
    }
}

/// Where a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// The registration itself.
    Registration,
    /// The answer to a challenge, one path segment below.
    Proof,
}

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body, limited in size by the transport.
    pub body: Vec<u8>,
}

/// Sends a registration to a server, once.
#[async_trait]
pub trait Registrar: fmt::Debug + Send + Sync {
    /// `PUT`s a body. Fails with [`RegisterError::Unanswered`].
    async fn put(&self, target: Target, body: &Value) -> Result<Reply, RegisterError>;
}

/// The key is not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The address or the CA in the configuration cannot be used.
    #[error("cannot use the registration address {url}: {reason}")]
    Address {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No server answered.
    #[error("reach {url}")]
    Unanswered {
        /// The URL.
        url: String,
        /// Whether TLS failed, or the network.
        code: Code,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server refused.
    #[error("the server refused with status {status} ({code})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The server's code, or the one that its status stands for.
        code: Code,
    },
    /// The key is registered for another machine ID, which this node had before.
    #[error("the attestation key belongs to machine {0}")]
    Elsewhere(MachineId),
    /// The server kept replying that it cannot answer now.
    #[error("the server is still busy (status {status}, {code})")]
    Busy {
        /// HTTP status.
        status: u16,
        /// The server's code, or the one that its status stands for.
        code: Code,
    },
    /// No admin approved the key in time.
    #[error("the attestation key waits for approval by an admin")]
    Pending,
    /// The TPM did not answer the challenge.
    #[error("cannot prove that the attestation key is in this TPM")]
    Activate(#[source] ActivateError),
}

impl RegisterError {
    /// The code, which identifies the fix.
    pub fn code(&self) -> Code {
        match self {
            Self::Address { .. } => Code::NodeConfig,
            Self::Unanswered { code, .. }
            | Self::Refused { code, .. }
            | Self::Busy { code, .. } => *code,
            Self::Elsewhere(_) => Code::RegisterKeyElsewhere,
            Self::Pending => Code::AkNotBound,
            Self::Activate(_) => Code::NodeTpm,
        }
    }
}

/// The ports of a registration.
#[derive(Clone, Copy, Debug)]
pub struct RegisterPorts<'a> {
    /// Carries requests.
    pub registrar: &'a dyn Registrar,
    /// Answers challenges.
    pub activator: &'a dyn Activator,
    /// Randomness of the waits.
    pub entropy: &'a dyn Entropy,
}

/// Registers the key for a machine. Repeating it is harmless: a registered key stays registered.
///
/// # Errors
/// `Refused` and `Elsewhere` immediately; `Unanswered` and `Busy` when `retries` are used up; `Pending` after
/// about an hour, or never with [`NumRetries::Infinity`].
///
/// # Cancel safety
/// Can be dropped and run again at any point.
pub async fn register(
    ports: RegisterPorts<'_>,
    identity: &AkIdentity,
    machine: MachineId,
    retries: Option<NumRetries>,
) -> Result<(), RegisterError> {
    let mut course = Course::new(ports, identity, machine, retries);
    loop {
        let failed = match course.submit().await? {
            Step::Done => return Ok(()),
            Step::Again => continue,
            Step::Failed(error) => error,
        };
        if course.used_up(&failed) {
            return Err(failed);
        }
        tracing::info!(code = %failed.code(), "attestation key not registered yet");
        course.backoff.wait().await;
    }
}

fn short_body(identity: &AkIdentity, machine: MachineId) -> Value {
    json!({ "public_key": identity.public.to_pem(), "uuid": machine })
}

fn full_body(identity: &AkIdentity, machine: MachineId) -> Value {
    let mut body = short_body(identity, machine);
    let mut add = |name: &str, value: Option<String>| {
        if let (Some(members), Some(value)) = (body.as_object_mut(), value) {
            members.insert(name.to_owned(), Value::String(value));
        }
    };
    let area = identity.tpm_public.as_ref();
    add("tpm_public", area.map(|area| STANDARD.encode(area)));
    if let Some(ek) = &identity.ek {
        add("ek_public", Some(ek.public.to_pem()));
        let certificate = ek.certificate.as_ref();
        add("ek_certificate", certificate.map(|der| STANDARD.encode(der)));
    }
    body
}

/// Result of one submission.
enum Step {
    Done,
    Again,
    Failed(RegisterError),
}

/// The state of one registration.
struct Course<'a> {
    ports: RegisterPorts<'a>,
    backoff: Backoff<'a>,
    body: Value,
    /// Sent if the server does not understand `body`.
    short: Option<Value>,
    /// `None`: unlimited.
    tries: Option<u32>,
    polls: Option<u32>,
    challenges: u32,
}

impl<'a> Course<'a> {
    fn new(
        ports: RegisterPorts<'a>,
        identity: &AkIdentity,
        machine: MachineId,
        retries: Option<NumRetries>,
    ) -> Self {
        let (tries, polls) = match retries {
            None => (Some(DEFAULT_TRIES), Some(PENDING_POLLS)),
            Some(NumRetries::Rounds(rounds)) => (Some(rounds), Some(PENDING_POLLS)),
            Some(_) => (None, None),
        };
        let (body, short) = (full_body(identity, machine), short_body(identity, machine));
        Self {
            backoff: Backoff::short(ports.entropy),
            ports,
            short: Some(short).filter(|short| *short != body),
            body,
            tries,
            polls,
            challenges: MAX_CHALLENGES,
        }
    }

    async fn submit(&mut self) -> Result<Step, RegisterError> {
        let reply = match self.ports.registrar.put(Target::Registration, &self.body).await {
            Err(error @ RegisterError::Unanswered { .. }) => return Ok(Step::Failed(error)),
            reply => reply?,
        };
        match Answer::read(&reply) {
            Answer::NotUnderstood(code) => match self.short.take() {
                Some(short) => {
                    tracing::info!("the server takes only public_key and uuid");
                    self.body = short;
                    Ok(Step::Again)
                }
                None => Err(RegisterError::Refused { status: reply.status, code }),
            },
            Answer::Challenge(id, credential) => self.prove(&id, &credential).await,
            answer => settled(&answer, reply.status),
        }
    }

    async fn prove(&mut self, id: &str, credential: &Credential) -> Result<Step, RegisterError> {
        let secret = self.ports.activator.activate(credential);
        let secret = secret.map_err(RegisterError::Activate)?;
        let proof = STANDARD.encode(secret.expose("answer the challenge"));
        let body = json!({ "challenge": id, "secret": proof });
        let reply = match self.ports.registrar.put(Target::Proof, &body).await {
            Err(error @ RegisterError::Unanswered { .. }) => return Ok(Step::Failed(error)),
            reply => reply?,
        };
        match Answer::read(&reply) {
            Answer::Refused(code @ Code::RegisterEkProof) if self.challenges > 1 => {
                self.challenges -= 1;
                Ok(Step::Failed(RegisterError::Busy { status: reply.status, code }))
            }
            answer => settled(&answer, reply.status),
        }
    }

    /// Counts a failure; returns whether it was the last one allowed.
    fn used_up(&mut self, failed: &RegisterError) -> bool {
        let left = if let RegisterError::Pending = failed {
            if self.polls == Some(PENDING_POLLS) {
                tracing::warn!("the attestation key waits for approval by an admin");
            }
            &mut self.polls
        } else {
            &mut self.tries
        };
        left.as_mut().is_some_and(|left| {
            *left = left.saturating_sub(1);
            *left == 0
        })
    }
}

/// The result of a submission that leads to no other one.
fn settled(answer: &Answer, status: u16) -> Result<Step, RegisterError> {
    match *answer {
        Answer::Registered => Ok(Step::Done),
        Answer::Pending => Ok(Step::Failed(RegisterError::Pending)),
        Answer::Busy(code) => Ok(Step::Failed(RegisterError::Busy { status, code })),
        Answer::Elsewhere(machine) => Err(RegisterError::Elsewhere(machine)),
        Answer::Refused(code) | Answer::NotUnderstood(code) => {
            Err(RegisterError::Refused { status, code })
        }
        Answer::Challenge(..) => {
            Err(RegisterError::Refused { status, code: Code::RegisterEkProof })
        }
    }
}

#[cfg(test)]
mod tests;
