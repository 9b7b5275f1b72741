//! `kubectl tec audit`: audit lines and the latest attempts to attest, as a namespace has them.

use tec_core::port::AttemptLog as _;
use tec_k8s::client::AttemptRecords;
use tec_support::exit::OK;

use super::access::Cluster;
use super::cli::KubeAuditCommand;
use super::lookup::wanted;
use super::{failed, of};
use crate::attempt::attempt_table;
use crate::audit::cells;
use crate::output::{Output, table};

pub(super) async fn audit(
    cluster: &Cluster,
    command: KubeAuditCommand,
    output: Output,
) -> anyhow::Result<u8> {
    match command {
        KubeAuditCommand::List { of: filter, limit } => {
            let machine = wanted(cluster, filter).await?;
            let lines = of(cluster).audit_lines().await;
            let mut lines = lines.map_err(failed("read the audit lines"))?;
            lines.retain(|line| machine.is_none() || line.machine == machine);
            lines.drain(..lines.len().saturating_sub(limit));
            output.print(&lines, |lines| {
                let rows: Vec<_> = lines.iter().map(cells).collect();
                table(["AT", "ACTION", "MACHINE", "SUBJECT"], &rows)
            })?;
        }
        KubeAuditCommand::Attempts(args) => {
            let machine = wanted(cluster, args.of).await?;
            let records = AttemptRecords::new(of(cluster));
            let listed = records.latest(machine, args.limit).await;
            let listed = listed.map_err(failed("list the attempts"))?;
            output.print(&listed, |listed| attempt_table(listed))?;
        }
    }
    Ok(OK)
}
