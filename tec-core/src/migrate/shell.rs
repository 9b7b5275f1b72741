//! Carries out the plan over two anchors.

use async_trait::async_trait;

use super::{
    Conflict, CopyReport, Goal, Intake, MigrateEffect, MigrateEvent, MigrateOutcome, MigratePlan,
    Mismatch, Observer, Side, SwapOutcome, Transition, TrustAnchor, copy, verify,
};
use crate::plan::{Shell, run};
use crate::port::{AuditAction, AuditEvent, Clock, Entropy, PortError};

/// Result of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// How the plan finished.
    pub outcome: MigrateOutcome,
    /// What was copied, over all passes.
    pub copied: CopyReport,
    /// Differences found by the last comparison.
    pub mismatches: Vec<Mismatch>,
    /// What failed, if anything.
    pub error: Option<PortError>,
}

/// Carries out an admin's goal between two anchors.
///
/// # Cancel safety
/// May be dropped at any await, and run again by anyone: see the module documentation.
pub async fn migrate(
    goal: Goal,
    (source, target): (&dyn TrustAnchor, &dyn TrustAnchor),
    (clock, entropy): (&dyn Clock, &dyn Entropy),
    observer: &dyn Observer,
) -> Outcome {
    let mut ports = Ports {
        source,
        target,
        clock,
        entropy,
        observer,
        came_to: Outcome {
            outcome: MigrateOutcome::Interrupted,
            copied: CopyReport::default(),
            mismatches: Vec::new(),
            error: None,
        },
    };
    run(&mut MigratePlan::new(), MigrateEvent::Begin(goal), &mut ports).await;
    ports.came_to
}

struct Ports<'a> {
    source: &'a dyn TrustAnchor,
    target: &'a dyn TrustAnchor,
    clock: &'a dyn Clock,
    entropy: &'a dyn Entropy,
    observer: &'a dyn Observer,
    came_to: Outcome,
}

impl<'a> Ports<'a> {
    fn of(&self, side: Side) -> &'a dyn TrustAnchor {
        match side {
            Side::Source => self.source,
            Side::Target => self.target,
        }
    }

    async fn read(&self) -> Result<MigrateEvent, PortError> {
        Ok(MigrateEvent::Read {
            source: Box::new(self.source.authority().await?),
            target: Box::new(self.target.authority().await?),
        })
    }

    async fn swap(&self, side: Side, change: &Transition) -> Result<MigrateEvent, PortError> {
        let to = change.to();
        let subject = format!("anchor {} {} at epoch {}", to.anchor(), to.role(), to.epoch());
        let action = AuditAction::AuthorityMoved;
        let line = AuditEvent::new(self.clock.now(), action, None, subject);
        let won = self.of(side).swap(change, &line).await? == SwapOutcome::Swapped;
        Ok(MigrateEvent::Answered { won })
    }

    async fn copy(&mut self, from: Side, intake: Intake) -> Result<MigrateEvent, PortError> {
        let (giver, taker) = (self.of(from), self.of(from.other()));
        let report = copy(giver, taker, intake, self.clock, self.observer).await?;
        let conflicts = !report.conflicts.is_empty();
        let sum = &mut self.came_to.copied;
        sum.created += report.created;
        sum.updated += report.updated;
        sum.same = report.same;
        sum.conflicts = report.conflicts;
        Ok(MigrateEvent::Copied { from, conflicts })
    }

    async fn compare(&mut self, from: Side) -> Result<MigrateEvent, PortError> {
        let mut nonce = [0; 32];
        self.entropy.fill(&mut nonce);
        let found = verify(self.of(from), self.of(from.other()), &nonce).await?;
        let same = !found.iter().any(|mismatch| mismatch.difference.is_loss());
        self.came_to.mismatches = found;
        Ok(MigrateEvent::Compared { from, same })
    }

    async fn shred(&self) -> Result<MigrateEvent, PortError> {
        let action = AuditAction::KeysShredded;
        let line = AuditEvent::new(self.clock.now(), action, None, "every disk key");
        self.source.shred(&line).await?;
        Ok(MigrateEvent::Shredded)
    }
}

#[async_trait]
impl Shell<MigratePlan> for Ports<'_> {
    async fn perform(&mut self, effect: MigrateEffect) -> Option<MigrateEvent> {
        let done = match effect {
            MigrateEffect::Read => self.read().await,
            MigrateEffect::Swap(side, change) => self.swap(side, &change).await,
            MigrateEffect::Copy(from, intake) => self.copy(from, intake).await,
            MigrateEffect::Compare(from) => self.compare(from).await,
            MigrateEffect::Shred => self.shred().await,
            MigrateEffect::Finish(outcome) => {
                self.came_to.outcome = outcome;
                return None;
            }
        };
        Some(done.unwrap_or_else(|error| {
            self.came_to.error = Some(error);
            MigrateEvent::Failed
        }))
    }
}

impl Outcome {
    /// The units that conflict.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.copied.conflicts
    }
}
