//! Machines by ID or by the name of their node.

use std::collections::BTreeSet;

use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_k8s::api::Machine;
use tec_support::exit::CodedError;

use super::access::Cluster;
use crate::args::{MachineFilter, MachineRef};
use crate::machine::{Unknown, meant};

/// The object of a machine by its ID, the first digits of the ID, or the name of its node. Admins may name
/// objects as they like.
pub(super) async fn find(cluster: &Cluster, asked: &MachineRef) -> Result<Machine, CodedError> {
    let asked = &asked.machine;
    let found = match asked.parse::<MachineId>() {
        Ok(id) => match cluster.find::<Machine>(&Machine::name_of(&id)).await? {
            Some(machine) => vec![machine],
            None => cluster.list_where::<Machine>(&format!("spec.id={id}")).await?,
        },
        // A selector would interpret some characters.
        Err(_) => with_id(cluster.list::<Machine>().await?, asked, &cluster.namespace)?,
    };
    found.into_iter().min_by_key(Machine::precedence).ok_or_else(|| {
        let context = format!("there is no machine {asked} in {}", cluster.namespace);
        CodedError::new(Code::ClusterMissing, context)
    })
}

/// The objects of the one matching machine.
fn with_id(
    mut machines: Vec<Machine>,
    asked: &str,
    namespace: &str,
) -> Result<Vec<Machine>, CodedError> {
    let known = machines.iter().filter_map(|machine| {
        let name = machine.spec.node_name.clone();
        Some((machine.machine_id().ok()?, name))
    });
    // Several objects with one ID are one machine.
    let known: BTreeSet<_> = known.collect();
    let id = meant(known, asked).map_err(|unknown| {
        let code = match unknown {
            Unknown::None(_) => Code::ClusterMissing,
            Unknown::Several(..) => Code::ClusterConflict,
        };
        CodedError::new(code, format!("{unknown} in {namespace}"))
    })?;
    machines.retain(|machine| machine.machine_id().is_ok_and(|other| other == id));
    Ok(machines)
}

/// The given ID, even if there is no such machine, or the ID of the machine with this name.
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

/// The machines with this name.
pub(super) fn named(mut machines: Vec<Machine>, name: &str) -> Vec<Machine> {
    machines.retain(|machine| machine.spec.node_name.as_deref() == Some(name));
    machines
}
