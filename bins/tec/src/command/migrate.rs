//! `tec migrate`: trust moves from this state directory to another.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::Args;
use clap::Subcommand;
use serde::Serialize;
use tec_core::code::Code;
use tec_core::migrate;
use tec_core::migrate::Authority;
use tec_core::migrate::CopyReport;
use tec_core::migrate::Difference;
use tec_core::migrate::Goal;
use tec_core::migrate::MigrateOutcome;
use tec_core::migrate::Mismatch;
use tec_core::migrate::Observer;
use tec_core::migrate::TrustAnchor;
use tec_core::store::Store;
use tec_support::SystemClock;
use tec_support::SystemEntropy;
use tec_support::exit::CodedError;
use tec_support::exit::OK;

use super::coded;
use super::word;
use crate::cli::DryRun;
use crate::output::Output;
use crate::state::open_existing;

/// Units that are copied in a second, unless told otherwise.
const RATE: NonZeroU32 = NonZeroU32::MIN.saturating_add(4999);

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Say what would be created, changed and left at the target, and what stands in the way.
    Plan(Way),
    /// Copy everything; again and again, to keep the target in step until the cutover.
    Apply {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Prove that the target holds every key, without moving one.
    Verify(Way),
    /// Move the authority: the target approves from now on, this anchor only serves.
    Cutover {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Move the authority back, with everything that was approved meanwhile.
    Rollback {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Shred the keys of this anchor, after a last proof that the target has them. Keeps the audit log.
    Retire {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Show who has the authority.
    Status(Way),
}

/// From --state-dir to another state directory.
#[derive(Clone, Debug, Args)]
pub(crate) struct Way {
    /// State directory of the target; its server may run.
    #[arg(long, value_name = "DIRECTORY")]
    to: PathBuf,
    /// Most machines and images that are copied in a second.
    #[arg(long, default_value_t = RATE)]
    rate: NonZeroU32,
}

pub(crate) async fn migrate(
    state_dir: &Path,
    command: MigrateCommand,
    output: Output,
) -> anyhow::Result<u8> {
    let (goal, way, dry_run) = match command {
        MigrateCommand::Plan(way) => return plan(&Pair::open(state_dir, &way)?, output).await,
        MigrateCommand::Status(way) => return status(&Pair::open(state_dir, &way)?, output).await,
        MigrateCommand::Apply { way, dry_run } => (Goal::Copy, way, dry_run.dry_run),
        MigrateCommand::Verify(way) => (Goal::Verify, way, false),
        MigrateCommand::Cutover { way, dry_run } => (Goal::Cutover, way, dry_run.dry_run),
        MigrateCommand::Rollback { way, dry_run } => (Goal::Rollback, way, dry_run.dry_run),
        MigrateCommand::Retire { way, dry_run } => (Goal::Retire, way, dry_run.dry_run),
    };
    let pair = Pair::open(state_dir, &way)?;
    if dry_run {
        return plan(&pair, output).await;
    }
    run(&pair, goal, output).await
}

/// Both anchors.
struct Pair {
    source: Arc<Store>,
    target: Arc<Store>,
    rate: NonZeroU32,
}

impl Pair {
    fn open(state_dir: &Path, way: &Way) -> anyhow::Result<Self> {
        Ok(Self {
            source: open_existing(state_dir)?,
            target: open_existing(&way.to)?,
            rate: way.rate,
        })
    }

    async fn records(&self) -> anyhow::Result<Records> {
        let read = || coded(Code::StoreUnavailable, "read the records of authority");
        Ok(Records {
            source: self.source.authority().await.map_err(read())?,
            target: self.target.authority().await.map_err(read())?,
        })
    }
}

/// Who may do what.
#[derive(Debug, Serialize)]
struct Records {
    source: Authority,
    target: Authority,
}

impl Records {
    fn text(&self) -> String {
        let line = |name: &str, record: &Authority| {
            let (role, epoch, anchor) = (record.role(), record.epoch(), record.anchor());
            format!("{name}  {role} at epoch {epoch}, anchor {anchor}")
        };
        let (source, target) = (line("source", &self.source), line("target", &self.target));
        format!("{source}\n{target}")
    }
}

async fn status(pair: &Pair, output: Output) -> anyhow::Result<u8> {
    output.print(&pair.records().await?, Records::text)?;
    Ok(OK)
}

/// What a copy would do.
#[derive(Debug, Serialize)]
struct Planned {
    #[serde(flatten)]
    records: Records,
    copy: CopyReport,
    dry_run: bool,
}

async fn plan(pair: &Pair, output: Output) -> anyhow::Result<u8> {
    let (source, target) = (&*pair.source, &*pair.target);
    let copy = migrate::compare(source, target).await;
    let copy = copy.map_err(coded(Code::StoreUnavailable, "compare both anchors"))?;
    let planned = Planned {
        records: pair.records().await?,
        copy,
        dry_run: true,
    };
    output.print(&planned, |planned| {
        format!(
            "{}\n{}",
            planned.records.text(),
            copy_text(&planned.copy, "would be ")
        )
    })?;
    Ok(OK)
}

/// What a run came to.
#[derive(Debug, Serialize)]
struct Done {
    #[serde(flatten)]
    records: Records,
    outcome: &'static str,
    copy: CopyReport,
    mismatches: Vec<Mismatch>,
}

async fn run(pair: &Pair, goal: Goal, output: Output) -> anyhow::Result<u8> {
    let pace = Pace::new(pair.rate);
    let anchors: (&dyn TrustAnchor, &dyn TrustAnchor) = (&*pair.source, &*pair.target);
    let ran = migrate::migrate(goal, anchors, (&SystemClock, &SystemEntropy), &pace).await;
    let done = Done {
        records: pair.records().await?,
        outcome: outcome_word(ran.outcome),
        copy: ran.copied,
        mismatches: ran.mismatches,
    };
    output.print(&done, |done| {
        let mut text = done.records.text();
        let _ = write!(text, "\n{}", copy_text(&done.copy, ""));
        for mismatch in &done.mismatches {
            let how = word(&mismatch.difference);
            let _ = write!(text, "\n{}: {how} at the other anchor", mismatch.unit);
        }
        text
    })?;
    ended(ran.outcome, &done, ran.error)
}

fn outcome_word(outcome: MigrateOutcome) -> &'static str {
    match outcome {
        MigrateOutcome::Reached => "reached",
        MigrateOutcome::Conflicts => "conflicts",
        MigrateOutcome::NotTheSame => "not-the-same",
        MigrateOutcome::Refused(_) => "refused",
        _ => "interrupted",
    }
}

fn ended(
    outcome: MigrateOutcome,
    done: &Done,
    error: Option<tec_core::port::PortError>,
) -> anyhow::Result<u8> {
    let error = match (outcome, error) {
        (MigrateOutcome::Reached, _) => return Ok(OK),
        (MigrateOutcome::Conflicts, _) => {
            let count = done.copy.conflicts.len();
            CodedError::new(
                Code::TrustConflict,
                format!("{count} units stand in the way"),
            )
        }
        (MigrateOutcome::NotTheSame, _) => {
            let lost = |mismatch: &&Mismatch| {
                matches!(
                    mismatch.difference,
                    Difference::Missing | Difference::Differs
                )
            };
            let count = done.mismatches.iter().filter(lost).count();
            let what = format!("{count} units are missing or differ");
            CodedError::new(Code::TrustIncomplete, what)
        }
        (MigrateOutcome::Refused(refused), _) => {
            CodedError::caused(refused.code(), "the authority stays where it is", refused)
        }
        (_, Some(error)) => coded(Code::StoreUnavailable, "the run was interrupted")(error),
        (_, None) => CodedError::new(Code::AuthorityMoved, "the run was interrupted"),
    };
    Err(error.into())
}

fn copy_text(copy: &CopyReport, would: &str) -> String {
    let CopyReport {
        created,
        updated,
        same,
        conflicts,
        ..
    } = copy;
    let mut text = format!("{created} {would}created, {updated} {would}updated, {same} the same");
    for conflict in conflicts {
        let _ = write!(text, "\nconflict: {}: {}", conflict.unit, conflict.clash);
    }
    text
}

/// Holds the copy back to a rate, and tells how far it is.
struct Pace {
    rate: NonZeroU32,
    begin: tokio::time::Instant,
}

impl Pace {
    fn new(rate: NonZeroU32) -> Self {
        Self {
            rate,
            begin: tokio::time::Instant::now(),
        }
    }
}

#[async_trait]
impl Observer for Pace {
    async fn page(&self, so_far: &CopyReport) {
        tracing::info!(
            units = so_far.units(),
            created = so_far.created,
            updated = so_far.updated,
            conflicts = so_far.conflicts.len(),
            "copied"
        );
        let seconds = so_far.units().checked_div(self.rate.get().into());
        let due = self.begin + Duration::from_secs(seconds.unwrap_or_default());
        tokio::time::sleep_until(due).await;
    }
}
