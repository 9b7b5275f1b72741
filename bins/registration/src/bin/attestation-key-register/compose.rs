//! Builds the service from the cluster object and the mounted files.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use kube::Client;
use parking_lot::RwLock;
use registration::Changes;
use tec_core::code::Code;
use tec_core::flow::ClaimLimits;
use tec_core::http::{AkService, AkServiceConfig, ChallengeKey, ReplyStyle, refusal};
use tec_core::port::chain;
use tec_k8s::client::KubeRegistry;
use tec_k8s::server::{Intake, Known, SubmitOnly, owner_of};
use tec_support::{SystemClock, SystemEntropy};

use crate::setting::{Files, NotReady, Setting};

/// Keeps the service in line with the cluster object and the files.
pub(crate) struct Composer {
    client: Client,
    namespace: String,
    known: Arc<Known>,
    files: Files,
    /// The challenge key of this process, used if replicas share none.
    challenge_key: Arc<ChallengeKey>,
    current: RwLock<Option<AkService>>,
}

impl Composer {
    pub(crate) fn new(client: Client, namespace: &str, known: Arc<Known>, files: Files) -> Self {
        let challenge_key = Arc::new(ChallengeKey::random(&SystemEntropy));
        let namespace = namespace.to_owned();
        Self { client, namespace, known, files, challenge_key, current: RwLock::default() }
    }

    /// Composes now and after each change, forever.
    pub(crate) async fn follow(&self, changes: Changes) {
        let compose = |setting: &Result<Setting, String>| {
            let service = setting
                .clone()
                .and_then(|setting| self.service(&setting).map_err(|error| chain(&error)));
            let service = service
                .inspect_err(|error| tracing::error!(error, "no attestation key is accepted"));
            *self.current.write() = service.ok();
        };
        registration::follow(changes, |cluster| self.files.read(cluster), compose).await;
    }

    pub(crate) async fn respond(&self, request: Request) -> Response {
        let service = self.current.read().clone();
        match service {
            Some(service) => service.respond(request).await.into_response(),
            None => refusal(ReplyStyle::AttestationKey, Code::RegisterNotReady).into_response(),
        }
    }

    fn service(&self, setting: &Setting) -> Result<AkService, NotReady> {
        let made = self.files.make(setting)?;
        let clock = Arc::new(SystemClock);
        let registry = KubeRegistry::new(self.client.clone(), &self.namespace, clock.clone());
        let registry = match owner_of(&setting.cluster) {
            Some(owner) => registry.owned_by(owner),
            None => registry,
        };
        let known = Arc::clone(&self.known);
        let intake = Intake::new(registry.clone(), self.client.clone(), &self.namespace, known);
        let intake = Arc::new(intake);
        Ok(AkService::new(
            AkServiceConfig::new(
                Arc::clone(&intake) as _,
                intake,
                Arc::new(SubmitOnly::new(made.matcher)),
                Arc::new(registry),
                clock,
                Arc::new(SystemEntropy),
                made.tpm,
            )
            .with_challenge_key(made.challenge_key.unwrap_or_else(|| self.challenge_key.clone()))
            .with_claims(ClaimLimits::NONE),
        ))
    }
}
