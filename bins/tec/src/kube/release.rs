//! `kubectl tec machine readmit` and `recovery-key`.

use std::path::Path;

use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_k8s::api::{CLOCK_OF, TpmClock};

use super::access::Cluster;
use super::of;
use crate::args::DryRun;
use crate::output::Output;
use crate::{machine, recovery};

pub(super) async fn readmit(
    cluster: &Cluster,
    id: MachineId,
    dry_run: DryRun,
    output: Output,
) -> anyhow::Result<()> {
    if !dry_run.dry_run {
        return machine::readmit(&of(cluster), Code::ClusterUnreachable, id, output).await;
    }
    let clocks = cluster.list_labeled::<TpmClock>(&format!("{CLOCK_OF}={id}")).await?;
    if clocks.is_empty() {
        return Err(machine::no_clock(id).into());
    }
    machine::say(output, "readmitted", true, &[id])
}

pub(super) async fn recovery_keys(
    cluster: &Cluster,
    id: MachineId,
    identity: Option<&Path>,
    output: Output,
) -> anyhow::Result<()> {
    recovery::print(&of(cluster), Code::ClusterUnreachable, id, identity, output).await
}
