//! `tec migrate`: moves trust from one anchor to another.

mod anchor;
mod belonging;
mod log;
mod mirror;
mod report;

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use clap::{Args, Subcommand};
use tec_core::migrate;
use tec_core::migrate::{CopyReport, Goal, MigrateOutcome, Observer, Role};
use tec_core::port::{PortError, PortErrorKind};
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use self::anchor::{Anchor, FromArgs, ToArgs};
use self::belonging::{Luggage, Stay};
use self::report::{Done, Planned, Records, ended, outcome_word};
use super::coded;
use crate::args::{Consent, DryRun};
use crate::consent::consented;
use crate::output::Output;

/// Default number of units copied per second.
const RATE: NonZeroU32 = NonZeroU32::MIN.saturating_add(4999);

/// How many times a move of the authority restarts after an interfering copy.
const TRIES: u32 = 64;
/// Pause before a move of the authority restarts.
const AGAIN: Duration = Duration::from_millis(100);

/// Default number of seconds between copies of a mirror.
const EVERY: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);

/// The consequence of retiring an anchor.
const SHREDS: &str = "After a last proof that the target has every disk key, this anchor shreds its own. \
                      This cannot be undone.";

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// List what would be created, changed and left alone at the target, and what prevents the move.
    Plan(Way),
    /// Copy everything; can be repeated.
    Apply {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Copy everything, and keep the target in sync until the cutover or until interrupted.
    Mirror {
        #[command(flatten)]
        way: Way,
        /// Seconds between copies.
        #[arg(long, value_name = "SECONDS", default_value_t = EVERY)]
        every: NonZeroU32,
    },
    /// Prove that the target holds every key, without moving one.
    Verify(Way),
    /// Move the authority: the target approves from now on, and this anchor only serves.
    Cutover {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Move the authority back, with everything approved in the meantime.
    Rollback {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Shred the keys of this anchor, after a final proof that the target has them; keeps the audit log.
    Retire {
        #[command(flatten)]
        way: Way,
        #[command(flatten)]
        consent: Consent,
    },
    /// Show who has the authority.
    Status(Way),
}

/// From --state-dir or a namespace to another anchor.
#[derive(Clone, Debug, Args)]
pub(crate) struct Way {
    #[command(flatten)]
    from: FromArgs,
    #[command(flatten)]
    to: ToArgs,
    /// Maximum number of machines and images copied per second.
    #[arg(long, default_value_t = RATE)]
    rate: NonZeroU32,
    /// Keep this at the target even if the source differs.
    #[arg(long, value_enum, value_delimiter = ',')]
    keep_target: Vec<Stay>,
}

pub(crate) async fn migrate(
    state_dir: &Path,
    command: MigrateCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let mut consent = None;
    let (goal, way, dry_run) = match command {
        MigrateCommand::Plan(way) => {
            return plan(&Pair::open(state_dir, &way).await?, output).await;
        }
        MigrateCommand::Status(way) => {
            return status(&Pair::open(state_dir, &way).await?, output).await;
        }
        MigrateCommand::Mirror { way, every } => {
            let every = Duration::from_secs(every.get().into());
            return mirror::mirror(&Pair::open(state_dir, &way).await?, every, output).await;
        }
        MigrateCommand::Apply { way, dry_run } => (Goal::Copy, way, dry_run.dry_run),
        MigrateCommand::Verify(way) => (Goal::Verify, way, false),
        MigrateCommand::Cutover { way, dry_run } => (Goal::Cutover, way, dry_run.dry_run),
        MigrateCommand::Rollback { way, dry_run } => (Goal::Rollback, way, dry_run.dry_run),
        MigrateCommand::Retire { way, consent: asked } => {
            consent = Some(asked);
            (Goal::Retire, way, asked.dry_run.dry_run)
        }
    };
    let pair = Pair::open(state_dir, &way).await?;
    if dry_run {
        return plan(&pair, output).await;
    }
    if let Some(consent) = consent {
        pair.target.is_published().await?;
        consented(&[SHREDS.to_owned()], consent)?;
    }
    let ended = carry_out(&pair, goal).await?;
    let target = &ended.done.records.target;
    let has_moved = target.role() == Role::Active && !target.is_alone();
    let code = ended.tell(&pair, goal, output)?;
    if goal == Goal::Verify && has_moved {
        pair.target.is_fed().await?;
    }
    Ok(code)
}

/// Both anchors.
struct Pair {
    source: Anchor,
    target: Anchor,
    rate: NonZeroU32,
    stay: Vec<Stay>,
}

impl Pair {
    async fn open(state_dir: &Path, way: &Way) -> anyhow::Result<Self> {
        Ok(Self {
            source: way.from.open(state_dir).await?,
            target: way.to.open().await?,
            rate: way.rate,
            stay: way.keep_target.clone(),
        })
    }

    async fn records(&self) -> anyhow::Result<Records> {
        let (source, target) = (self.source.port(), self.target.port());
        let read = |anchor: &Anchor| coded(anchor.unavailable(), "read the record of authority");
        Ok(Records {
            source: source.authority().await.map_err(read(&self.source))?,
            target: target.authority().await.map_err(read(&self.target))?,
        })
    }

    /// What the source keeps in addition to its units; `None` if the target belongs, or may come to belong,
    /// to another anchor.
    async fn luggage(&self) -> anyhow::Result<Option<Luggage>> {
        let records = self.records().await?;
        let (source, target) = (&records.source, &records.target);
        let stands_by = target.role() == Role::Standby && target.peer() == Some(source.anchor());
        if source.role() == Role::Standby || !(stands_by || target.is_alone()) {
            return Ok(None);
        }
        let luggage = Luggage::weigh(&self.source, &self.target, &self.stay).await?;
        Ok(Some(luggage))
    }

    /// A move of the authority restarts if another copy, such as a mirror's, replaced this one; the copied
    /// pages are not lost.
    async fn migrate(&self, goal: Goal) -> migrate::Outcome {
        let anchors = (self.source.port(), self.target.port());
        let mut tries = match goal {
            Goal::Cutover | Goal::Rollback => TRIES,
            Goal::Copy | Goal::Verify | Goal::Retire => 1,
        };
        loop {
            let pace = Pace::new(self.rate);
            let ports = (&SystemClock as _, &SystemEntropy as _);
            let ended = migrate::migrate(goal, anchors, ports, &pace).await;
            tries -= 1;
            let error = ended.error.as_ref();
            let was_late = error.is_some_and(|error| error.kind() == PortErrorKind::Conflict);
            if tries == 0 || !was_late || ended.outcome != MigrateOutcome::Interrupted {
                return ended;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Copies units first if the target is not on standby yet: nothing is written to an anchor that is its
    /// own authority.
    async fn move_on(&self, goal: Goal, luggage: &Luggage) -> anyhow::Result<migrate::Outcome> {
        luggage.refuse_clashes()?;
        if luggage.brings().is_empty() {
            return Ok(self.migrate(goal).await);
        }
        if self.records().await?.target.is_alone() || goal == Goal::Copy {
            let copied = self.migrate(Goal::Copy).await;
            if copied.outcome != MigrateOutcome::Reached {
                return Ok(copied);
            }
            luggage.bring(&self.target).await?;
            if goal == Goal::Copy {
                return Ok(copied);
            }
        } else {
            luggage.bring(&self.target).await?;
        }
        Ok(self.migrate(goal).await)
    }
}

async fn status(pair: &Pair, output: &Output) -> anyhow::Result<u8> {
    output.print(&pair.records().await?, Records::text)?;
    Ok(OK)
}

async fn plan(pair: &Pair, output: &Output) -> anyhow::Result<u8> {
    let copy = migrate::compare(pair.source.port(), pair.target.port()).await;
    let copy = copy.map_err(coded(pair.target.unavailable(), "compare both anchors"))?;
    let luggage = pair.luggage().await?;
    let planned = Planned {
        records: pair.records().await?,
        copy,
        belongings: luggage.map(|luggage| luggage.weighed).unwrap_or_default(),
        dry_run: true,
    };
    output.print(&planned, Planned::text)?;
    Ok(OK)
}

/// A finished run, and what to report about it.
struct Ended {
    done: Done,
    outcome: MigrateOutcome,
    error: Option<PortError>,
    lacks: Result<(), CodedError>,
}

impl Ended {
    fn is_reached(&self) -> bool {
        self.outcome == MigrateOutcome::Reached
    }

    fn tell(self, pair: &Pair, goal: Goal, output: &Output) -> anyhow::Result<u8> {
        output.print(&self.done, Done::text)?;
        let unavailable = pair.target.unavailable();
        let code = ended(self.outcome, &self.done, (self.error, unavailable))?;
        if goal == Goal::Verify {
            self.lacks?;
        }
        Ok(code)
    }
}

async fn carry_out(pair: &Pair, goal: Goal) -> anyhow::Result<Ended> {
    let luggage = match goal {
        Goal::Copy | Goal::Verify | Goal::Cutover => pair.luggage().await?,
        Goal::Rollback | Goal::Retire => None,
    };
    let moves = matches!(goal, Goal::Copy | Goal::Cutover);
    let ran = match &luggage {
        Some(luggage) if moves => pair.move_on(goal, luggage).await?,
        _ => pair.migrate(goal).await,
    };
    let records = pair.records().await?;
    let of = records.source.anchor();
    let audit = match goal {
        Goal::Retire if ran.outcome == MigrateOutcome::Reached => {
            log::keep(&pair.source, &pair.target, of).await?
        }
        _ => None,
    };
    Ok(Ended {
        lacks: luggage.as_ref().map_or(Ok(()), Luggage::refuse_missing),
        done: Done {
            records,
            outcome: outcome_word(ran.outcome),
            copy: ran.copied,
            mismatches: ran.mismatches,
            belongings: luggage.map(|luggage| luggage.weighed).unwrap_or_default(),
            audit,
        },
        outcome: ran.outcome,
        error: ran.error,
    })
}

/// Limits the rate of a copy, and reports its progress.
struct Pace {
    rate: NonZeroU32,
    begin: tokio::time::Instant,
}

impl Pace {
    fn new(rate: NonZeroU32) -> Self {
        Self { rate, begin: tokio::time::Instant::now() }
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
