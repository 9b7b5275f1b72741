//! `tec machine readmit` and `recovery-key` on a cluster.

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
    output: &Output,
) -> anyhow::Result<()> {
    let clocks = cluster.list_labeled::<TpmClock>(&format!("{CLOCK_OF}={id}")).await?;
    if clocks.is_empty() {
        return Err(machine::no_clock(id).into());
    }
    machine::readmit(&of(cluster), Code::ClusterUnreachable, id, dry_run, output).await
}

pub(super) async fn recovery_keys(
    cluster: &Cluster,
    id: MachineId,
    identity: Option<&Path>,
    output: &Output,
) -> anyhow::Result<()> {
    recovery::print(&of(cluster), Code::ClusterUnreachable, id, identity, output).await
}
