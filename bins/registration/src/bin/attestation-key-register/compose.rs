//! From the cluster object to the service.

use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use kube::Client;
use tec_core::ak::{AkMatcher, EkBoundMatcher, Fingerprint, ManualMatcher, TofuMatcher};
use tec_core::code::Code;
use tec_core::flow::ClaimLimits;
use tec_core::http::{AkService, AkServiceConfig, ReplyStyle, refusal};
use tec_k8s::api::{ApprovalPolicy, ApprovalSpec, TrustedExecutionCluster};
use tec_k8s::client::KubeRegistry;
use tec_k8s::server::{Intake, Known, SubmitOnly, owner_of};
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::ek::CredentialIssuer;
use tokio::sync::watch;

/// Keeps the service in line with the cluster object.
pub(crate) struct Composer {
    client: Client,
    namespace: String,
    known: Arc<Known>,
    current: RwLock<Option<AkService>>,
}

impl Composer {
    pub(crate) fn new(client: Client, namespace: &str, known: Arc<Known>) -> Self {
        Self { client, namespace: namespace.to_owned(), known, current: RwLock::default() }
    }

    /// Composes now and after each change, for ever.
    pub(crate) async fn follow(
        &self,
        mut changes: watch::Receiver<Option<Arc<TrustedExecutionCluster>>>,
    ) {
        loop {
            let cluster = changes.borrow_and_update().clone();
            let service = cluster.and_then(|cluster| self.service(&cluster));
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = service;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) async fn respond(&self, request: Request) -> Response {
        let service = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        match service {
            Some(service) => service.respond(request).await.into_response(),
            None => refusal(ReplyStyle::AttestationKey, Code::RegisterNotReady).into_response(),
        }
    }

    fn service(&self, cluster: &TrustedExecutionCluster) -> Option<AkService> {
        let clock = Arc::new(SystemClock);
        let registry = KubeRegistry::new(self.client.clone(), &self.namespace, clock.clone());
        let registry = match owner_of(cluster) {
            Some(owner) => registry.owned_by(owner),
            None => registry,
        };
        let matcher = match matcher(cluster.spec.approval.as_ref()) {
            Ok(matcher) => matcher,
            Err(text) => {
                tracing::error!(text, "a fingerprint in the approval policy cannot be read");
                return None;
            }
        };
        let known = Arc::clone(&self.known);
        let intake = Intake::new(registry.clone(), self.client.clone(), &self.namespace, known);
        let intake = Arc::new(intake);
        Some(AkService::new(
            AkServiceConfig::new(
                Arc::clone(&intake) as _,
                intake,
                Arc::new(SubmitOnly::new(matcher)),
                Arc::new(registry),
                clock,
                Arc::new(SystemEntropy),
                Arc::new(CredentialIssuer::new()),
            )
            .with_claims(ClaimLimits::NONE),
        ))
    }
}

/// The policy of the cluster; the error is a fingerprint that is none.
fn matcher(said: Option<&ApprovalSpec>) -> Result<Arc<dyn AkMatcher>, String> {
    let policy = said.map(|said| said.policy).unwrap_or_default();
    let allowed = said.map(|said| said.allowed_endorsement_keys.as_slice());
    Ok(match policy {
        ApprovalPolicy::FirstUse => Arc::new(TofuMatcher),
        ApprovalPolicy::EndorsementKey => match allowed.unwrap_or_default() {
            [] => Arc::new(EkBoundMatcher::any_ek()),
            some => {
                let parse = |text: &String| text.parse::<Fingerprint>().map_err(|_| text.clone());
                let keys: Result<Vec<_>, _> = some.iter().map(parse).collect();
                Arc::new(EkBoundMatcher::allow_list(keys?))
            }
        },
        // What is not known must not let anybody in.
        _ => Arc::new(ManualMatcher),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(json: &str) -> ApprovalSpec {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_fingerprint_that_is_none_lets_nobody_in() {
        let good = format!(
            r#"{{"policy":"EndorsementKey","allowedEndorsementKeys":["{}"]}}"#,
            "ab".repeat(32)
        );
        assert!(matcher(Some(&said(&good))).is_ok());
        let bad = said(r#"{"policy":"EndorsementKey","allowedEndorsementKeys":["x"]}"#);
        assert_eq!(matcher(Some(&bad)).unwrap_err(), "x");
    }
}
