//! `tec audit` on a cluster: the audit lines and latest attempts of a namespace.

use tec_core::port::AttemptLog as _;
use tec_k8s::client::AttemptRecords;
use tec_support::exit::OK;

use super::access::Cluster;
use super::lookup::wanted;
use super::{failed, of};
use crate::attempt::attempt_table;
use crate::audit::{AuditCommand, Wanted, cells};
use crate::output::{Output, Table};

pub(crate) async fn audit(
    cluster: &Cluster,
    command: AuditCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        AuditCommand::List(args) => {
            let selection = Wanted::new(&args, wanted(cluster, args.of.clone()).await?);
            let lines = of(cluster).audit_lines().await;
            let mut lines = lines.map_err(failed("read the audit lines"))?;
            lines.retain(|line| selection.has(line));
            lines.reverse();
            lines.truncate(args.limit);
            let rows = lines.iter().map(|line| cells(line).to_vec());
            output.table(&lines, &Table::new(&["AT", "ACTION", "MACHINE", "SUBJECT"], rows))?;
        }
        AuditCommand::Attempts { of: filter, limit } => {
            let machine = wanted(cluster, filter).await?;
            let listed = AttemptRecords::new(of(cluster)).latest(machine, limit).await;
            let listed = listed.map_err(failed("list the attempts"))?;
            output.table(&listed, &attempt_table(&listed))?;
        }
        // `place::misplaced` has already refused it.
        AuditCommand::Verify => anyhow::bail!("a cluster has no audit chain"),
    }
    Ok(OK)
}
