//! Nodes of the Kubernetes cluster by the machine they claim to run on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use tec_k8s::api::{MACHINE_LABEL, Machine};

use super::access::Cluster;
use super::cell;

/// Names of Nodes by the machine ID in their label.
///
/// # Security
/// A kubelet can label its own Node as it likes. The names are displayed, in parentheses, but no command
/// finds a machine by them.
#[derive(Debug, Default)]
pub(super) struct Nodes(BTreeMap<String, Vec<String>>);

impl Nodes {
    /// The Nodes with the label. A user who may not list Nodes sees no names.
    pub(super) async fn list(cluster: &Cluster) -> Self {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let labeled = ListParams::default().labels(MACHINE_LABEL);
        match nodes.list_metadata(&labeled).await {
            Ok(list) => Self::of(list.items.iter().filter_map(|node| {
                let machine = node.labels().get(MACHINE_LABEL)?;
                Some((machine.clone(), node.name_any()))
            })),
            Err(error) => {
                tracing::debug!(%error, "no names of Nodes");
                Self::default()
            }
        }
    }

    fn of(claims: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut nodes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (machine, node) in claims {
            nodes.entry(machine).or_default().push(node);
        }
        Self(nodes)
    }

    /// The name set by an admin or the join service, otherwise the name of the one Node that claims the
    /// machine.
    pub(super) fn name_of(&self, machine: &Machine) -> String {
        let named = machine.spec.node_name.as_ref();
        match self.0.get(&machine.spec.id).map(Vec::as_slice) {
            Some([node]) if named.is_none() => format!("({node})"),
            Some(nodes @ [_, _, ..]) if named.is_none() => {
                format!("({} Nodes claim it)", nodes.len())
            }
            _ => cell(named),
        }
    }
}

#[cfg(test)]
mod tests {
    use tec_k8s::api::MachineSpec;

    use super::*;

    #[test]
    fn a_name_that_somebody_set_counts_before_what_nodes_claim_and_two_claims_are_none() {
        let mut machine = Machine::new("m", MachineSpec::default());
        machine.spec.id = "id".to_owned();
        let claim = |node: &str| ("id".to_owned(), node.to_owned());
        let name = |machine: &Machine, nodes: &[&str]| {
            Nodes::of(nodes.iter().map(|node| claim(node))).name_of(machine)
        };
        assert_eq!(name(&machine, &[]), cell(None::<&String>));
        assert_eq!(name(&machine, &["worker-1"]), "(worker-1)");
        assert_eq!(name(&machine, &["worker-1", "evil"]), "(2 Nodes claim it)");
        machine.spec.node_name = Some("worker-1".to_owned());
        assert_eq!(name(&machine, &["evil"]), "worker-1");
    }
}
