//! Lists members with their state.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use tec_k8s::api::Machine;
use tec_node::grant::Claim;
use tec_node::member::{Removed, Roll};

use crate::kube::access::{Cluster, coded};
use crate::output::{Output, table, word};

/// State of a Node that is ready.
pub(super) const READY: &str = "Ready";

/// A current or former member.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Member {
    name: String,
    role: String,
    /// State of its Node: `Ready`, `NotReady`, `Absent`.
    node: &'static str,
    /// State of its machine; `removed` for a removed member.
    state: String,
    addresses: Vec<String>,
    key: String,
    disk: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<String>,
}

pub(super) async fn list(cluster: &Cluster, roll: &Roll, output: &Output) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let nodes =
        nodes.list(&ListParams::default()).await.map_err(coded("list the Nodes".to_owned()))?;
    let nodes = nodes.iter().map(|node| (node.name_any(), standing(node))).collect();
    let machines = cluster.list::<Machine>().await?;
    let states = machines.iter().map(|one| (one.spec.id.clone(), word(&one.state()))).collect();
    let live = roll.claims.iter().map(|claim| {
        let mut member = of_claim(claim, &nodes, &states);
        if roll.has_removed(claim.disk) {
            "leaving".clone_into(&mut member.state);
        }
        member
    });
    let is_gone = |one: &&Removed| !roll.claims.iter().any(|claim| claim.disk == one.disk);
    let gone = roll.removed.iter().filter(is_gone).map(of_removed);
    let mut all: Vec<_> = live.chain(gone).collect();
    all.sort_by(|one, other| (&one.removed, &one.name).cmp(&(&other.removed, &other.name)));
    output.print(&all, |all| render(all))
}

pub(super) fn standing(node: &Node) -> &'static str {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let is_ready = conditions.any(|one| one.type_ == READY && one.status == "True");
    if is_ready { READY } else { "NotReady" }
}

fn of_claim(
    claim: &Claim,
    nodes: &BTreeMap<String, &'static str>,
    states: &BTreeMap<String, String>,
) -> Member {
    // Earlier versions named machines after their disks.
    let state = states.get(&claim.machine_id().to_string());
    let state = state.or_else(|| states.get(&claim.disk.to_string()));
    Member {
        name: claim.name.to_string(),
        role: claim.role.to_string(),
        node: nodes.get(claim.name.as_str()).copied().unwrap_or("Absent"),
        state: state.cloned().unwrap_or_else(|| "unknown".to_owned()),
        addresses: claim.addresses.iter().map(ToString::to_string).collect(),
        key: claim.ak.to_string(),
        disk: claim.disk.to_string(),
        removed: None,
    }
}

fn of_removed(one: &Removed) -> Member {
    Member {
        name: one.name.to_string(),
        role: one.role.to_string(),
        node: "-",
        state: "removed".to_owned(),
        addresses: Vec::new(),
        key: one.key.to_string(),
        disk: one.disk.to_string(),
        removed: Some(one.removed.to_string()),
    }
}

fn render(all: &[Member]) -> String {
    let row = |one: &Member| {
        [
            one.name.clone(),
            one.role.clone(),
            one.node.to_owned(),
            one.state.clone(),
            one.addresses.join(","),
            one.disk.clone(),
            one.key.clone(),
            one.removed.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    table(["NAME", "ROLE", "NODE", "STATE", "ADDRESSES", "DISK", "KEY", "REMOVED"], &rows)
}
