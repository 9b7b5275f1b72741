//! Machines of a namespace, as `tec machine` shows them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tec_core::id::MachineId;
use tec_k8s::api::{ConditionKind, MACHINE_LABEL, Machine};

use super::access::Cluster;
use super::{failed, of};
use crate::args::DryRun;
use crate::attempt::LastSeen;
use crate::known::{Known, unknown};

/// All machines, in the order of their IDs; several objects with one ID are one machine.
pub(crate) async fn known(cluster: &Cluster) -> anyhow::Result<Vec<Known>> {
    let mut objects = cluster.list::<Machine>().await?;
    let mut nodes = claims(cluster).await;
    objects.sort_by_key(Machine::precedence);
    let mut seen = BTreeSet::new();
    objects.retain(|object| seen.insert(object.spec.id.clone()));
    objects.sort_by(|one, other| one.spec.id.cmp(&other.spec.id));
    let known = objects.iter().filter_map(|object| {
        let claimed_by = nodes.remove(&object.spec.id).unwrap_or_default();
        Some(Known { claimed_by, ..of_object(object)? })
    });
    Ok(known.collect())
}

pub(crate) async fn find(cluster: &Cluster, id: &MachineId) -> anyhow::Result<Option<Known>> {
    let object = of(cluster).machine_object(id).await;
    let object = object.map_err(failed(format!("look up machine {id}")))?;
    Ok(object.as_ref().and_then(of_object))
}

pub(crate) async fn set_name(cluster: &Cluster, id: &MachineId, name: &str) -> anyhow::Result<()> {
    let object = of(cluster).machine_object(id).await;
    let object = object.map_err(failed(format!("look up machine {id}")))?;
    let object = object.ok_or_else(|| unknown(format!("there is no machine {id}")))?;
    let patch = json!({"spec": {"nodeName": name}});
    cluster.merge::<Machine>(&object.name_any(), &patch, DryRun { dry_run: false }).await?;
    Ok(())
}

/// The status does not change with every attempt, but reading it costs little.
fn of_object(object: &Machine) -> Option<Known> {
    let mut known = Known::new(object.to_core().ok()?);
    known.name.clone_from(&object.spec.node_name);
    let status = object.status.clone().unwrap_or_default();
    known.last_seen = status
        .last_attestation
        .and_then(|last| Some(LastSeen::at(last.at.parse().ok()?, last.code.as_deref())));
    // The last attempt says more than its condition.
    let is_told = |kind: &str| kind == ConditionKind::Attested.as_str();
    let unmet = status.conditions.into_iter();
    let unmet = unmet.filter(|one| one.status != "True" && !is_told(&one.type_));
    known.unmet =
        unmet.map(|one| format!("{}: {} {}", one.type_, one.reason, one.message)).collect();
    Some(known)
}

/// Names of Nodes by the machine ID in their label. A user who may not list Nodes sees no names.
pub(crate) async fn claims(cluster: &Cluster) -> BTreeMap<String, Vec<String>> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let mut claims: BTreeMap<_, Vec<_>> = BTreeMap::new();
    match nodes.list_metadata(&ListParams::default().labels(MACHINE_LABEL)).await {
        Ok(list) => {
            for node in list.items {
                if let Some(machine) = node.labels().get(MACHINE_LABEL) {
                    claims.entry(machine.clone()).or_default().push(node.name_any());
                }
            }
        }
        Err(error) => tracing::debug!(%error, "no names of Nodes"),
    }
    claims
}
