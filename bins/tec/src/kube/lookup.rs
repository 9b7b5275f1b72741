//! Machines by id or by the name of their node.

use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_k8s::api::Machine;
use tec_support::exit::CodedError;

use super::access::Cluster;
use super::cli::{MachineFilter, MachineRef};

/// The object of a machine by its id or the name of its node. Admins name objects as they like.
pub(super) async fn find(cluster: &Cluster, asked: &MachineRef) -> Result<Machine, CodedError> {
    let asked = &asked.machine;
    let by_id: Option<MachineId> = asked.parse().ok();
    let found = match by_id {
        Some(id) => match cluster.find::<Machine>(&Machine::name_of(&id)).await? {
            Some(machine) => vec![machine],
            None => cluster.list_where::<Machine>(&format!("spec.id={id}")).await?,
        },
        // A selector would read some characters as its own.
        None => named(cluster.list::<Machine>().await?, asked),
    };
    if by_id.is_none() && found.len() > 1 {
        let ids: Vec<_> = found.iter().map(|machine| machine.spec.id.as_str()).collect();
        let context = format!("several machines are named {asked}: {}", ids.join(", "));
        return Err(CodedError::new(Code::ClusterConflict, context));
    }
    found.into_iter().min_by_key(Machine::precedence).ok_or_else(|| {
        let context = format!("there is no machine {asked} in {}", cluster.namespace);
        CodedError::new(Code::ClusterMissing, context)
    })
}

/// The id that was asked for, whether or not there is such a machine, or that of the machine of this name.
pub(super) async fn id_of(cluster: &Cluster, asked: &MachineRef) -> anyhow::Result<MachineId> {
    match asked.machine.parse() {
        Ok(id) => Ok(id),
        Err(_) => Ok(find(cluster, asked).await?.machine_id()?),
    }
}

/// The machine that a list is limited to, if any.
pub(super) async fn wanted(
    cluster: &Cluster,
    filter: MachineFilter,
) -> anyhow::Result<Option<MachineId>> {
    match filter.machine {
        Some(machine) => id_of(cluster, &MachineRef { machine }).await.map(Some),
        None => Ok(None),
    }
}

/// Those with this name.
pub(super) fn named(mut machines: Vec<Machine>, name: &str) -> Vec<Machine> {
    machines.retain(|machine| machine.spec.node_name.as_deref() == Some(name));
    machines
}
