//! What a cluster object requires for admission, and which Secrets it names.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use serde_json::{Value, json};
use tec_core::migrate::belonging::{Binding, Demands, Entry, Service};
use tec_core::pcr::PcrIndex;

use crate::api::{ApprovalPolicy, PinsKind, RegistrationMode, TlsServer, TrustedExecutionCluster};

/// Default name of the Secret for the registration token.
pub(super) const TOKEN_SECRET: &str = "trust-registration-token";
/// Annotation of the cluster object: the adopted requirements, JSON.
pub(super) const ADOPTED_DEMANDS: &str = "trusted-execution-clusters.io/adopted-demands";

pub(super) fn secret_name(cluster: &TrustedExecutionCluster, service: Service) -> Option<&str> {
    cluster.tls_secret(match service {
        Service::KeyBroker => TlsServer::KeyBroker,
        Service::Registration => TlsServer::Registration,
        _ => TlsServer::AttestationKeys,
    })
}

/// The Secret that someone named. A token that the operator created stays where it is.
pub(super) fn token_secret(cluster: &TrustedExecutionCluster) -> Option<&str> {
    cluster.spec.registration.as_ref()?.token_secret.as_deref()
}

/// The registers that are pinned for every image; the empty set if each image has its own, since those move
/// with the images.
pub fn pinned_of(cluster: &TrustedExecutionCluster) -> Option<BTreeSet<PcrIndex>> {
    let status = cluster.status.as_ref()?;
    if status.pins == Some(PinsKind::Predicted) {
        return Some(BTreeSet::new());
    }
    let pcrs = status.pinned_pcrs.iter().map(|index| PcrIndex::try_from(*index).ok());
    pcrs.collect::<Option<BTreeSet<_>>>().filter(|pcrs| !pcrs.is_empty())
}

pub(super) fn adopted(cluster: &TrustedExecutionCluster) -> Option<Demands> {
    serde_json::from_str(cluster.annotations().get(ADOPTED_DEMANDS)?).ok()
}

/// `roots` is the digest of the CA certificates of endorsement keys, if the object names some.
pub(super) fn demands_of(
    cluster: &TrustedExecutionCluster,
    roots: Option<String>,
) -> Option<Demands> {
    let (entry, binding) = (&cluster.spec.registration, &cluster.spec.approval);
    if entry.is_none() && binding.is_none() {
        return None;
    }
    let binding = binding.clone().unwrap_or_default();
    Some(Demands {
        entry: match entry.as_ref().map(|entry| entry.mode).unwrap_or_default() {
            RegistrationMode::Open => Entry::Open,
            RegistrationMode::Token => Entry::Token,
            RegistrationMode::Manual => Entry::Manual,
        },
        binding: match binding.policy {
            ApprovalPolicy::FirstUse => Binding::FirstUse,
            ApprovalPolicy::EndorsementKey => Binding::EndorsementKey,
            ApprovalPolicy::Manual => Binding::Manual,
        },
        endorsement_keys: binding.allowed_endorsement_keys.into_iter().collect(),
        endorsement_roots: roots,
    })
}

/// The fields of the spec that express the requirements; existing limits stay. If no token is adopted, the
/// operator creates one.
pub(super) fn spec_of(
    demands: &Demands,
    cluster: &TrustedExecutionCluster,
    has_token: bool,
) -> Value {
    let mode = match demands.entry {
        Entry::Token => RegistrationMode::Token,
        Entry::Manual => RegistrationMode::Manual,
        _ => RegistrationMode::Open,
    };
    let policy = match demands.binding {
        Binding::EndorsementKey => ApprovalPolicy::EndorsementKey,
        Binding::Manual => ApprovalPolicy::Manual,
        _ => ApprovalPolicy::FirstUse,
    };
    let named = token_secret(cluster).or_else(|| has_token.then_some(TOKEN_SECRET));
    let token = named.filter(|_| mode == RegistrationMode::Token);
    json!({
        "registration": {"mode": mode, "tokenSecret": token},
        "approval": {"policy": policy, "allowedEndorsementKeys": demands.endorsement_keys},
    })
}
