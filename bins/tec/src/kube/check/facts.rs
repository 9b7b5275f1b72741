//! The inputs of the checks, gathered once.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use tec_core::code::Code;
use tec_k8s::api::{
    ApprovedImage, BrokerKind, ConditionKind, Machine, TlsServer, TrustedExecutionCluster, crds,
};
use tec_k8s::render::{BROKER_SESSION, Component, TRUSTEE_AUTH, TRUSTEE_SIGNER, component_of};
use tec_support::exit::CodedError;

use super::super::access::{Cluster, coded};
use super::super::condition;
use super::{is_behind, pods};

/// The programs that run permanently, including the key broker that the cluster object names.
fn programs(clusters: &[TrustedExecutionCluster]) -> [Component; 4] {
    let broker = clusters.first().map(TrustedExecutionCluster::key_broker).unwrap_or_default();
    [
        Component::Operator,
        component_of(broker),
        Component::RegisterServer,
        Component::AttestationKeyRegister,
    ]
}

/// Result of a lookup.
#[derive(Debug, Default)]
pub(super) enum Seen<T> {
    There(T),
    #[default]
    Missing,
    /// This user may not read the object.
    Hidden,
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) version: (u32, u32),
    /// Whether each definition is served.
    pub(super) definitions: BTreeMap<String, Seen<bool>>,
    pub(super) deployments: BTreeMap<Component, Seen<Deployment>>,
    /// What the pods of these components are waiting for, if replicas are missing.
    pub(super) reasons: BTreeMap<Component, Vec<String>>,
    /// The holder of the lease.
    pub(super) leader: Seen<Option<String>>,
    pub(super) clusters: Vec<TrustedExecutionCluster>,
    pub(super) secrets: BTreeMap<String, Seen<()>>,
    pub(super) images: Vec<ApprovedImage>,
    pub(super) failing_machines: Vec<String>,
}

impl<T> Seen<T> {
    /// Forbidden means unknown; other errors abort the command.
    fn from_result(found: Result<Option<T>, CodedError>) -> Result<Self, CodedError> {
        match found {
            Ok(Some(object)) => Ok(Self::There(object)),
            Ok(None) => Ok(Self::Missing),
            Err(error) if error.code == Code::ClusterForbidden => Ok(Self::Hidden),
            Err(error) => Err(error),
        }
    }

    fn map<R>(self, change: impl FnOnce(T) -> R) -> Seen<R> {
        match self {
            Self::There(object) => Seen::There(change(object)),
            Self::Missing => Seen::Missing,
            Self::Hidden => Seen::Hidden,
        }
    }
}

impl Facts {
    pub(super) async fn gather(cluster: &Cluster) -> Result<Self, CodedError> {
        let mut facts = Self {
            version: version(cluster).await?,
            definitions: definitions(cluster).await?,
            leader: leader(cluster).await?,
            ..Self::default()
        };
        let defined = |seen: &Seen<bool>| !matches!(seen, Seen::Missing);
        // Kinds without a definition have no objects to list.
        if facts.definitions.values().all(defined) {
            facts.clusters = cluster.list().await?;
            facts.images = cluster.list().await?;
            facts.failing_machines = failing(&cluster.list().await?);
        }
        for component in programs(&facts.clusters) {
            let found = cluster.find(component.deployment()).await;
            let found = Seen::from_result(found)?;
            if let Seen::There(deployment) = &found
                && is_behind(deployment)
            {
                let reasons = pods::reasons(cluster, deployment).await?;
                facts.reasons.insert(component, reasons);
            }
            facts.deployments.insert(component, found);
        }
        facts.secrets = secrets(cluster, &facts.clusters).await?;
        Ok(facts)
    }
}

async fn version(cluster: &Cluster) -> Result<(u32, u32), CodedError> {
    let info = cluster.client.apiserver_version().await;
    let info = info.map_err(coded("ask the API server for its version".to_owned()))?;
    // Some platforms write the minor version as `31+`.
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    Ok((number(&info.major), number(&info.minor)))
}

async fn definitions(cluster: &Cluster) -> Result<BTreeMap<String, Seen<bool>>, CodedError> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut seen = BTreeMap::new();
    for name in crds().iter().map(ResourceExt::name_any) {
        let found = api.get_opt(&name).await;
        let found = found.map_err(coded(format!("look up the definition {name}")));
        let found = Seen::from_result(found)?.map(|crd| is_established(&crd));
        seen.insert(name, found);
    }
    Ok(seen)
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let status = crd.status.as_ref();
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

async fn leader(cluster: &Cluster) -> Result<Seen<Option<String>>, CodedError> {
    let name = Component::Operator.deployment();
    let found = Seen::from_result(cluster.find::<Lease>(name).await)?;
    Ok(found.map(|lease| {
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        holder.filter(|holder| !holder.is_empty())
    }))
}

fn failing(machines: &[Machine]) -> Vec<String> {
    let is_failing = |machine: &&Machine| {
        let status = machine.status.as_ref();
        let published = status.and_then(|status| {
            let bound = status.attestation_key.is_some();
            condition(&status.conditions, ConditionKind::Ready.as_str()).filter(|_| bound)
        });
        published.is_some_and(|condition| condition.status == "False")
    };
    let machines = machines.iter().filter(is_failing);
    machines.map(|machine| machine.spec.id.clone()).collect()
}

/// Requests only metadata: the content of the Secrets is not needed here.
async fn secrets(
    cluster: &Cluster,
    clusters: &[TrustedExecutionCluster],
) -> Result<BTreeMap<String, Seen<()>>, CodedError> {
    let mut names = BTreeSet::new();
    for object in clusters {
        names.extend(TlsServer::ALL.into_iter().filter_map(|server| object.tls_secret(server)));
        let own = match object.key_broker() {
            BrokerKind::Builtin => BROKER_SESSION,
            _ => TRUSTEE_AUTH,
        };
        names.extend([own, TRUSTEE_SIGNER]);
    }
    let mut seen = BTreeMap::new();
    for name in names {
        let found = cluster.api::<Secret>().get_metadata_opt(name).await;
        let found = found.map_err(coded(format!("look up the Secret {name}")));
        let found = Seen::from_result(found)?.map(|_| ());
        seen.insert(name.to_owned(), found);
    }
    Ok(seen)
}
