//! `kubectl tec audit`: audit lines and the latest attempts to attest, as a namespace has them.

use clap::Subcommand;
use tec_core::id::MachineId;
use tec_core::port::AttemptLog as _;
use tec_k8s::client::AttemptRecords;
use tec_support::exit::OK;

use super::access::Cluster;
use super::{failed, of};
use crate::attempt::attempt_table;
use crate::command::audit::cells;
use crate::output::{Output, table};

#[derive(Debug, Subcommand)]
pub(crate) enum KubeAuditCommand {
    /// List audit lines, oldest first: those in annotations of objects, which stay with their object,
    /// and those in Events, which the API server drops after an hour by default. They are records, not
    /// a verified chain: an account that may write these objects can change them. Collect the logs of
    /// the operator and the key broker to keep every line.
    List {
        /// Only lines about this machine
        #[arg(long)]
        machine: Option<MachineId>,
        /// Maximum number of lines; the latest are shown
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// List the latest attempts to attest, newest first: the last 16 of each machine, from its
    /// AttestationRecord. `kubectl tec explain` shows the checks of an attempt.
    Attempts {
        /// Only attempts of this machine
        #[arg(long)]
        machine: Option<MachineId>,
        /// Maximum number of attempts
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
}

pub(super) async fn audit(
    cluster: &Cluster,
    command: KubeAuditCommand,
    output: Output,
) -> anyhow::Result<u8> {
    match command {
        KubeAuditCommand::List { machine, limit } => {
            let lines = of(cluster).audit_lines().await;
            let mut lines = lines.map_err(failed("read the audit lines"))?;
            lines.retain(|line| machine.is_none() || line.machine == machine);
            lines.drain(..lines.len().saturating_sub(limit));
            output.print(&lines, |lines| {
                let rows: Vec<_> = lines.iter().map(cells).collect();
                table(["AT", "ACTION", "MACHINE", "SUBJECT"], &rows)
            })?;
        }
        KubeAuditCommand::Attempts { machine, limit } => {
            let records = AttemptRecords::new(of(cluster));
            let listed = records.latest(machine, limit).await;
            let listed = listed.map_err(failed("list the attempts"))?;
            output.print(&listed, |listed| attempt_table(listed))?;
        }
    }
    Ok(OK)
}
