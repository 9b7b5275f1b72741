//! Audit lines: the commands of `tec audit`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tec_core::id::MachineId;
use tec_core::port::{AuditEvent, Clock as _};
use tec_core::store::AuditPlace;
use tec_core::time::Timestamp;
use tec_support::SystemClock;

use crate::args::{Consent, MachineFilter};
use crate::output::word;

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List audit lines, newest first.
    ///
    /// On Kubernetes they are in annotations of objects and in Events, which the API server drops after
    /// an hour by default. They are records, not a verified chain: collect the logs of the operator and
    /// the key broker to keep every line.
    List(LineArgs),
    /// List attestation attempts, newest first.
    Attempts {
        #[command(flatten)]
        of: MachineFilter,
        /// Maximum number of attempts.
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: usize,
    },
    /// Verify that no audit line was changed, removed or inserted.
    Verify {
        /// File of archived lines to verify first; repeatable, oldest first.
        #[arg(long, value_name = "FILE")]
        archive: Vec<PathBuf>,
        /// Head from an earlier `verify` or a backup; the chain must contain this line, or the command fails.
        #[arg(long, value_name = "NUMBER:HASH", value_parser = place)]
        head: Option<AuditPlace>,
    },
    /// Move the oldest audit lines to a file. The chain stays verifiable: it continues after the last of them.
    Archive {
        /// New file that receives the lines, as JSON.
        file: PathBuf,
        /// Move the lines that are older than this.
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "90d")]
        older_than: Duration,
        #[command(flatten)]
        consent: Consent,
    },
}

/// A place in the chain, as it is printed.
fn place(text: &str) -> anyhow::Result<AuditPlace> {
    let (sequence, hash) = text.split_once(':').context("a head is NUMBER:HASH")?;
    Ok(AuditPlace { sequence: sequence.parse()?, hash: hash.parse()? })
}

/// Selects audit lines.
#[derive(Debug, Args)]
pub(crate) struct LineArgs {
    #[command(flatten)]
    pub(crate) of: MachineFilter,
    /// Only lines of this action, such as key-released.
    #[arg(long)]
    pub(crate) action: Option<String>,
    /// Only lines newer than this, such as 24h.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Maximum number of lines.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    pub(crate) limit: usize,
    /// Print new lines as they are written, oldest first, until interrupted.
    #[arg(long, short)]
    pub(crate) follow: bool,
}

/// The selected audit lines.
#[derive(Debug)]
pub(crate) struct Wanted {
    machine: Option<MachineId>,
    action: Option<String>,
    since: Option<Timestamp>,
}

impl Wanted {
    pub(crate) fn new(args: &LineArgs, machine: Option<MachineId>) -> Self {
        let ago = |age: Duration| {
            let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            SystemClock.now().plus_seconds(seconds.saturating_neg())
        };
        Self { machine, action: args.action.clone(), since: args.since.map(ago) }
    }

    pub(crate) fn has(&self, line: &AuditEvent) -> bool {
        self.machine.is_none_or(|machine| line.machine == Some(machine))
            && self.action.as_ref().is_none_or(|action| word(&line.action) == *action)
            && !self.is_before(line)
    }

    /// Whether the line is older than all selected lines.
    pub(crate) fn is_before(&self, line: &AuditEvent) -> bool {
        self.since.is_some_and(|since| line.at < since)
    }
}

/// An audit line as table cells: time, action, machine, subject.
pub(crate) fn cells(event: &AuditEvent) -> [String; 4] {
    [
        event.at.to_string(),
        word(&event.action),
        event.machine.map_or_else(|| "-".to_owned(), |id| id.to_string()),
        event.subject.clone(),
    ]
}
