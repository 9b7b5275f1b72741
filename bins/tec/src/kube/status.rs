//! The cluster objects of a namespace, for `tec status`.

use kube::ResourceExt as _;
use serde::Serialize;
use tec_k8s::api::{ConditionKind, Reason, TargetStatus, TrustedExecutionCluster};

use super::access::Cluster;
use super::condition;

#[derive(Debug, Serialize)]
pub(crate) struct ClusterStatus {
    name: String,
    address: Option<String>,
    pub(crate) ready: bool,
    reason: String,
    ca_held_back: bool,
    targets: Vec<TargetStatus>,
}

pub(crate) async fn clusters(cluster: &Cluster) -> anyhow::Result<Vec<ClusterStatus>> {
    Ok(cluster.list().await?.iter().map(ClusterStatus::of).collect())
}

impl ClusterStatus {
    fn of(object: &TrustedExecutionCluster) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let ready = condition(&status.conditions, ConditionKind::Ready.as_str());
        Self {
            name: object.name_any(),
            address: object.spec.public_trustee_addr.clone(),
            ready: ready.is_some_and(|condition| condition.status == "True"),
            reason: ready.map_or_else(
                || "no operator has looked at it yet".to_owned(),
                |condition| format!("{}: {}", condition.reason, condition.message),
            ),
            ca_held_back: condition(
                &status.conditions,
                ConditionKind::CertificateAuthority.as_str(),
            )
            .is_some_and(|condition| condition.reason == Reason::AuthorityHeldBack.as_str()),
            targets: status.targets,
        }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let ready = if self.ready { "ready" } else { "not ready" };
        let address = self.address.as_deref().unwrap_or("no address yet");
        let mut lines = vec![format!("cluster       {} at {address}, {ready}", self.name)];
        lines.extend(self.targets.iter().map(|target| {
            let state = if target.converged { "converged" } else { "behind" };
            format!("trustee       {} {state}", target.name)
        }));
        lines
    }
}

pub(crate) fn needs_you(clusters: &[ClusterStatus]) -> Vec<String> {
    let mut list = Vec::new();
    match clusters {
        [] => list.push("there is no cluster object: apply a TrustedExecutionCluster".to_owned()),
        [only] if only.ready => {}
        [only] => {
            list.push(format!("the cluster is not ready ({}), see kubectl tec check", only.reason));
        }
        _ => list.push("there are several cluster objects: remove all but one".to_owned()),
    }
    if clusters.iter().any(|cluster| cluster.ca_held_back) {
        list.push("the next CA waits for machines: kubectl tec check".to_owned());
    }
    let targets = clusters.iter().flat_map(|cluster| &cluster.targets);
    list.extend(targets.filter(|target| !target.converged).map(|target| {
        let why = target.message.as_deref().unwrap_or("changes are on their way");
        format!("Trustee {} lacks {} changes: {why}", target.name, target.lag)
    }));
    list
}

#[cfg(test)]
mod tests {
    use tec_k8s::api::TrustedExecutionClusterSpec;

    use super::*;

    #[test]
    fn none_or_several_cluster_objects_need_somebody() {
        assert!(needs_you(&[])[0].contains("TrustedExecutionCluster"));
        let object = TrustedExecutionCluster::new("a", TrustedExecutionClusterSpec::default());
        let several = [ClusterStatus::of(&object), ClusterStatus::of(&object)];
        assert!(needs_you(&several)[0].contains("several"));
    }

    #[test]
    fn a_ca_that_waits_for_machines_needs_somebody() {
        let mut object = TrustedExecutionCluster::new("a", TrustedExecutionClusterSpec::default());
        let held = serde_json::json!({ "conditions": [{
            "type": "CertificateAuthority", "status": "False", "reason": "AuthorityHeldBack",
            "message": "", "lastTransitionTime": "2026-11-24T00:00:00Z",
        }] });
        object.status = Some(serde_json::from_value(held).unwrap());
        let list = needs_you(&[ClusterStatus::of(&object)]);
        assert!(list.iter().any(|one| one.contains("next CA")), "{list:?}");
    }
}
