//! The attestation-key registration server.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use serde::Deserialize;

use super::reply::{ReplyBody, ReplyStyle, code_of, is_json, json, read_body, refusal};
use crate::ak::{
    AkCandidate, AkMatcher, AkReason, EkOffer, Fingerprint, PublicKey, SourceNetwork, TpmObjects,
};
use crate::challenge::{Challenge, ChallengeKey};
use crate::code::Code;
use crate::flow::{AkOutcome, AkPorts, ClaimLimits, ProvisionPorts, approve, provision};
use crate::id::MachineId;
use crate::luks::LuksKeyGenerator;
use crate::port::{
    AkRegistry, AuditSink, Clock, Entropy, EntropyRng, MachineRegistry, SecretStore,
};
use crate::secret::SecretArray;

/// Parts of the service.
#[derive(Debug)]
#[non_exhaustive]
pub struct AkServiceConfig {
    /// The machines.
    pub machines: Arc<dyn MachineRegistry>,
    /// The keys.
    pub aks: Arc<dyn AkRegistry>,
    /// Makes the decision.
    pub matcher: Arc<dyn AkMatcher>,
    /// Where events are recorded.
    pub audit: Arc<dyn AuditSink>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Reads TPM structures.
    pub tpm: Arc<dyn TpmObjects>,
    /// Gives a machine its disk key as soon as its attestation key is bound; `None` if something
    /// else does.
    pub provision: Option<(Arc<dyn SecretStore>, Arc<dyn LuksKeyGenerator>)>,
    /// Limits for trust on first use.
    pub claims: ClaimLimits,
    /// The key that ties answers to their challenges.
    pub challenge_key: Arc<ChallengeKey>,
}

impl AkServiceConfig {
    /// Bundles the ports, with the default [`ClaimLimits`] and a new challenge key; disk keys are
    /// created elsewhere.
    pub fn new(
        machines: Arc<dyn MachineRegistry>,
        aks: Arc<dyn AkRegistry>,
        matcher: Arc<dyn AkMatcher>,
        audit: Arc<dyn AuditSink>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        tpm: Arc<dyn TpmObjects>,
    ) -> Self {
        Self {
            challenge_key: Arc::new(ChallengeKey::random(&*entropy)),
            machines,
            aks,
            matcher,
            audit,
            clock,
            entropy,
            tpm,
            provision: None,
            claims: ClaimLimits::default(),
        }
    }

    /// Accepts answers to the challenges of every server that has this key.
    pub fn with_challenge_key(self, challenge_key: Arc<ChallengeKey>) -> Self {
        Self { challenge_key, ..self }
    }

    /// Gives a machine its disk key as soon as its attestation key is bound.
    pub fn with_provision(
        self,
        secrets: Arc<dyn SecretStore>,
        generator: Arc<dyn LuksKeyGenerator>,
    ) -> Self {
        Self { provision: Some((secrets, generator)), ..self }
    }

    /// Limits the machines that trust on first use admits.
    pub fn with_claims(self, claims: ClaimLimits) -> Self {
        Self { claims, ..self }
    }
}

/// `PUT /register-ak`, and `PUT /register-ak/proof` for the answer to a challenge. The network that
/// a key comes from is a [`SourceNetwork`] in the request's extensions; without one, all keys count
/// as coming from one network.
#[derive(Clone, Debug)]
pub struct AkService(Arc<AkServiceConfig>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AkWire {
    #[serde(alias = "attestation_key")]
    public_key: String,
    uuid: Option<String>,
    tpm_public: Option<String>,
    ek_public: Option<String>,
    ek_certificate: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProofWire {
    challenge: String,
    secret: String,
}

/// A parsed registration.
#[derive(Debug)]
struct AkRequest {
    machine: MachineId,
    public: PublicKey,
    tpm_public: Option<Vec<u8>>,
    ek: Option<EkOffer>,
    source: Option<SourceNetwork>,
}

impl AkRequest {
    fn parse(body: &[u8]) -> Result<Self, Code> {
        let wire: AkWire = serde_json::from_slice(body).map_err(|_| Code::RegisterMalformed)?;
        let base64 = |text: String| STANDARD.decode(text).map_err(|_| Code::RegisterMalformed);
        let public = PublicKey::from_pem(&wire.public_key).map_err(|_| Code::RegisterKeyRefused)?;
        // A key without a machine can never be matched; nothing is stored for it.
        let uuid = wire.uuid.ok_or(Code::RegisterMachineUnknown)?;
        let certificate = wire.ek_certificate.map(base64).transpose()?;
        let ek = wire
            .ek_public
            .map(|pem| PublicKey::from_pem(&pem).map_err(|_| Code::RegisterKeyRefused))
            .transpose()?
            .map(|public| EkOffer::new(public, certificate));
        Ok(Self {
            machine: uuid.parse().map_err(|_| Code::RegisterMalformed)?,
            public,
            tpm_public: wire.tpm_public.map(base64).transpose()?,
            ek,
            source: None,
        })
    }
}

impl AkService {
    /// Creates the service.
    pub fn new(config: AkServiceConfig) -> Self {
        Self(Arc::new(config))
    }

    /// Answers one request.
    pub async fn respond<B: Body>(&self, request: Request<B>) -> Response<ReplyBody>
    where
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self.try_respond(request).await {
            Ok(response) => response,
            Err(code) => refusal(ReplyStyle::AttestationKey, code),
        }
    }

    async fn try_respond<B: Body>(&self, request: Request<B>) -> Result<Response<ReplyBody>, Code>
    where
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let is_proof = match request.uri().path() {
            "/register-ak" => false,
            "/register-ak/proof" => true,
            _ => return Err(Code::RegisterNotFound),
        };
        if request.method() != Method::PUT {
            return Err(Code::RegisterMethod);
        }
        if !is_json(request.headers()) {
            return Err(Code::RegisterContentType);
        }
        let source = request.extensions().get().copied();
        let body = read_body(request.into_body()).await?;
        if is_proof {
            self.prove(&body, source).await
        } else {
            let request = AkRequest::parse(&body)?;
            self.submit(AkRequest { source, ..request }).await
        }
    }

    async fn submit(&self, request: AkRequest) -> Result<Response<ReplyBody>, Code> {
        if let Some(area) = &request.tpm_public {
            let named = self.0.tpm.attestation_key(area);
            if named.map_err(|_| Code::RegisterKeyRefused)? != request.public {
                return Err(Code::RegisterKeyRefused);
            }
        }
        let candidate = AkCandidate::from_node(request.public.clone(), None);
        let candidate = candidate.from_network(request.source);
        match self.decide(request.machine, candidate).await? {
            AkOutcome::Waiting(AkReason::NeedsEkProof) => self.challenge(request),
            AkOutcome::Rejected(AkReason::KeyHasOtherMachine) => {
                self.elsewhere(&request.public.fingerprint()).await
            }
            outcome => reply(outcome),
        }
    }

    /// Refuses a key that another machine has, and returns the ID of that machine: a node that lost
    /// power during its first boot asks again as a new machine, and then continues as the machine
    /// that already has its key.
    ///
    /// # Security
    /// The ID is not secret and grants nothing: keys are released only to a node that signs with
    /// the key.
    async fn elsewhere(&self, key: &Fingerprint) -> Result<Response<ReplyBody>, Code> {
        let code = Code::RegisterKeyElsewhere;
        let record = self.0.aks.find(key).await;
        let Ok(Some(record)) = record else {
            return Err(code);
        };
        let mut response = refusal(ReplyStyle::AttestationKey, code);
        let body = serde_json::json!({
            "status": "error", "message": code.title(), "code": code, "uuid": record.machine,
        });
        *response.body_mut() = ReplyBody::from(body.to_string());
        Ok(response)
    }

    /// Decides, and gives a bound machine its disk key. Also provisions a key that is already
    /// bound, because the last attempt may have been interrupted.
    async fn decide(&self, machine: MachineId, candidate: AkCandidate) -> Result<AkOutcome, Code> {
        let config = &*self.0;
        let ports = AkPorts {
            machines: &*config.machines,
            aks: &*config.aks,
            matcher: &*config.matcher,
            audit: &*config.audit,
            clock: &*config.clock,
            claims: config.claims,
        };
        let outcome = approve(ports, machine, candidate)
            .await
            .map_err(|error| code_of(&error, Code::RegisterFull))?;
        if matches!(outcome, AkOutcome::Bound(_) | AkOutcome::AlreadyBound) {
            self.provision(machine).await?;
        }
        Ok(outcome)
    }

    async fn provision(&self, machine: MachineId) -> Result<(), Code> {
        let config = &*self.0;
        let Some((secrets, generator)) = &config.provision else {
            return Ok(());
        };
        let ports = ProvisionPorts {
            secrets: &**secrets,
            generator: &**generator,
            clock: &*config.clock,
            entropy: &*config.entropy,
        };
        provision(ports, machine)
            .await
            .map(drop)
            .map_err(|error| code_of(&error, Code::RegisterUnavailable))
    }

    fn challenge(&self, request: AkRequest) -> Result<Response<ReplyBody>, Code> {
        let config = &*self.0;
        let (Some(ek), Some(area)) = (&request.ek, &request.tpm_public) else {
            return Err(Code::RegisterEkProof);
        };
        let challenge = Challenge {
            machine: request.machine,
            ek: ek.public.fingerprint(),
            public: request.public,
        };
        let issued = challenge.issue(&config.challenge_key, config.clock.now(), &*config.entropy);
        let (id, secret) = issued.ok_or(Code::RegisterUnavailable)?;
        let mut rng = EntropyRng::new(&*config.entropy);
        let credential = config.tpm.challenge(ek, area, &secret, &mut rng);
        let credential = credential.map_err(|_| Code::RegisterEkRefused)?;
        let body = serde_json::json!({
            "status": "challenge",
            "challenge": URL_SAFE_NO_PAD.encode(&id),
            "id_object": STANDARD.encode(credential.id_object),
            "encrypted_secret": STANDARD.encode(credential.encrypted_secret),
        });
        Ok(json(StatusCode::ACCEPTED, body.to_string()))
    }

    async fn prove(
        &self,
        body: &[u8],
        source: Option<SourceNetwork>,
    ) -> Result<Response<ReplyBody>, Code> {
        let wire: ProofWire = serde_json::from_slice(body).map_err(|_| Code::RegisterMalformed)?;
        let id = URL_SAFE_NO_PAD.decode(&wire.challenge).map_err(|_| Code::RegisterMalformed)?;
        let mut answer = [0; 32];
        let length = STANDARD
            .decode_slice(&wire.secret, &mut answer)
            .map_err(|_| Code::RegisterMalformed)?;
        if length != answer.len() {
            return Err(Code::RegisterEkProof);
        }
        let (key, now) = (&self.0.challenge_key, self.0.clock.now());
        let proven = Challenge::check(key, &id, &SecretArray::new(answer), now);
        let proven = proven.ok_or(Code::RegisterEkProof)?;
        let candidate = AkCandidate::from_node(proven.public, Some(proven.ek));
        let candidate = candidate.from_network(source);
        reply(self.decide(proven.machine, candidate).await?)
    }
}

fn reply(outcome: AkOutcome) -> Result<Response<ReplyBody>, Code> {
    match outcome {
        AkOutcome::Bound(_) => Ok(json(StatusCode::CREATED, r#"{"status":"success"}"#)),
        // Granted, and about to be bound by something else: the node may continue.
        AkOutcome::Waiting(AkReason::FirstUse | AkReason::EkProven) => {
            Ok(json(StatusCode::CREATED, r#"{"status":"success"}"#))
        }
        AkOutcome::AlreadyWaiting(AkReason::FirstUse | AkReason::EkProven) => {
            Err(Code::RegisterAkKnown)
        }
        AkOutcome::Waiting(reason) | AkOutcome::AlreadyWaiting(reason) => Ok(pending(reason)),
        AkOutcome::Rejected(AkReason::MachineNotWaiting) => Err(Code::RegisterMachineUnknown),
        AkOutcome::Rejected(AkReason::MachineHasOtherKey) => Err(Code::RegisterMachineTaken),
        AkOutcome::Rejected(AkReason::KeyRevoked | AkReason::Policy(_)) => {
            Err(Code::RegisterKeyRefused)
        }
        AkOutcome::AlreadyBound => Err(Code::RegisterAkKnown),
        AkOutcome::Rejected(_) => Err(Code::RegisterKeyElsewhere),
    }
}

/// The key waits for an admin; the reply has a code if the node could not expect that.
fn pending(reason: AkReason) -> Response<ReplyBody> {
    let code = match reason {
        AkReason::NeedsRebind => Code::RegisterRebind,
        AkReason::Quarantined => Code::RegisterQuarantined,
        _ => return json(StatusCode::ACCEPTED, r#"{"status":"pending"}"#),
    };
    let body = serde_json::json!({
        "status": "pending", "message": code.title(), "code": code,
    });
    let mut response = json(StatusCode::ACCEPTED, body.to_string());
    response.extensions_mut().insert(code);
    response
}

impl<B> tower_service::Service<Request<B>> for AkService
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.respond(request).await) })
    }
}
