//! Evicts pods before a node is removed.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tec_core::code::Code;
use tec_support::exit::CodedError;
use tokio::time::Instant;

use crate::kube::access::coded;

/// Polling interval of the pods.
const PAUSE: Duration = Duration::from_secs(2);
/// Annotation of the kubelet's own pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Cordons a node, and evicts its pods until all evictable ones are gone. A node that no longer exists has
/// none.
pub(super) async fn drain(client: &Client, node: &str, limit: Duration) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    match nodes.patch(node, &PatchParams::default(), &cordon).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        cordoned => cordoned.map(drop).map_err(coded(format!("cordon Node {node}")))?,
    }
    let until = Instant::now() + limit;
    loop {
        let left = left(client, node).await?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let names: Vec<_> = left.iter().map(kube::ResourceExt::name_any).collect();
            let context = format!(
                "pods stay on {node}: {}; delete them, or give the command without --drain",
                names.join(", ")
            );
            return Err(CodedError::new(Code::ClusterConflict, context).into());
        }
        for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            evict(client, pod).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn left(client: &Client, node: &str) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::all(client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = pods.list(&on_node).await.map_err(coded(format!("list the pods of {node}")))?;
    Ok(pods.items.into_iter().filter(can_go).collect())
}

/// Pods of DaemonSets would be recreated, and the kubelet's own pods cannot be evicted through the API
/// server.
fn can_go(pod: &Pod) -> bool {
    let mut owners = pod.owner_references().iter();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !pod.annotations().contains_key(MIRROR)
        && !owners.any(|owner| owner.kind == "DaemonSet")
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The eviction of a pod that may not be evicted yet (429, a PodDisruptionBudget) is retried.
async fn evict(client: &Client, pod: &Pod) -> anyhow::Result<()> {
    let (name, namespace) = (pod.name_any(), pod.namespace().context("a pod has no namespace")?);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    match pods.evict(&name, &EvictParams::default()).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 429) => Ok(()),
        evicted => Ok(evicted.map(drop).map_err(coded(format!("evict pod {namespace}/{name}")))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_static_pods_and_pods_that_ended_do_not_keep_a_node() {
        let pod = |json| serde_json::from_value::<Pod>(json).unwrap();
        let owner = |kind: &str| {
            let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "x"});
            pod(json!({"metadata": {"name": "p", "ownerReferences": [owner]}}))
        };
        assert!(can_go(&owner("ReplicaSet")));
        assert!(can_go(&pod(json!({"metadata": {"name": "p"}}))));
        assert!(!can_go(&owner("DaemonSet")));
        assert!(!can_go(&pod(json!({"metadata": {"name": "p", "annotations": {MIRROR: "x"}}}))));
        assert!(!can_go(&pod(json!({"metadata": {"name": "p"}, "status": {"phase": "Failed"}}))));
    }
}
