//! The procedure as a plan: it reads both records, and decides what comes next.
//!
//! ```text
//!  read both ─► stand by ─► listen ─► copy ─► verify          the authority works all the while
//!     ▲                                         │
//!     │            gave up ◄── yield(n) ◄───────┘
//!     │               └─► listen(n) ─► copy ─► verify ─► take(n)
//!     └── another writer won the swap: read again
//! ```
//!
//! A plan keeps no state that matters: anyone who starts a new one, after a crash or in parallel
//! with another admin, reads the records and continues from there.

mod step;

pub use self::step::{Goal, MigrateEffect, MigrateEvent, MigrateOutcome, Side};
use self::step::{finish, swap};
use super::{Authority, Epoch, Intake, Refused, Role};
use crate::plan::Plan;

/// The plan of one run.
#[derive(Debug)]
pub struct MigratePlan {
    goal: Goal,
    /// The pass that this run requested, and whether it is its own.
    asked: Option<(Intake, bool)>,
    /// What this run copied: from which side, and at which of its epochs.
    copied: Option<(Side, Epoch)>,
    compared: Option<(Side, Epoch)>,
    /// Why the authority is handed back.
    failure: Option<MigrateOutcome>,
    records: Option<Records>,
    shredded: bool,
}

/// Both records of authority.
#[derive(Clone, Copy, Debug)]
struct Records {
    source: Authority,
    target: Authority,
}

impl Records {
    fn of(&self, side: Side) -> &Authority {
        match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        }
    }

    /// The side that had the authority last: its data is authoritative.
    fn newest(&self) -> Side {
        if self.target.is_alone() || self.target.held() <= self.source.held() {
            Side::Source
        } else {
            Side::Target
        }
    }

    /// An epoch that neither side has seen.
    fn next_epoch(&self) -> Epoch {
        self.source.epoch().max(self.target.epoch()).next()
    }
}

impl Default for MigratePlan {
    fn default() -> Self {
        Self::new()
    }
}

impl MigratePlan {
    /// A new plan, which has read neither record yet.
    pub fn new() -> Self {
        Self {
            goal: Goal::Verify,
            asked: None,
            copied: None,
            compared: None,
            failure: None,
            records: None,
            shredded: false,
        }
    }

    fn next(&mut self) -> MigrateEffect {
        let Some(records) = &self.records.clone() else {
            return MigrateEffect::Read;
        };
        let next = match self.goal {
            Goal::Verify => Ok(self.only_compare(records)),
            Goal::Copy => self.keep_in_step(records),
            Goal::Cutover => self.hand_over(Side::Target, records),
            Goal::Rollback => self.hand_over(Side::Source, records),
            Goal::Retire => self.retire(records),
        };
        next.unwrap_or_else(|refused| finish(MigrateOutcome::Refused(refused)))
    }

    fn only_compare(&self, records: &Records) -> MigrateEffect {
        match self.compared {
            None => MigrateEffect::Compare(records.newest()),
            Some(_) => finish(MigrateOutcome::Reached),
        }
    }

    fn keep_in_step(&mut self, records: &Records) -> Result<MigrateEffect, Refused> {
        let pass = self.copy_once(records.newest(), records)?;
        Ok(pass.unwrap_or_else(|| finish(MigrateOutcome::Reached)))
    }

    /// One pass from `side` at its epoch, if this run has made none yet.
    fn copy_once(
        &mut self,
        side: Side,
        records: &Records,
    ) -> Result<Option<MigrateEffect>, Refused> {
        let (giver, taker) = (records.of(side), records.of(side.other()));
        if taker.is_alone() {
            // An anchor that gave up to another peer has nothing for this one.
            if let Some(paired) = giver.peer().filter(|_| giver.role() != Role::Active)
                && paired != taker.anchor()
            {
                let other = taker.anchor();
                return Err(Refused::Peer { paired, other });
            }
            let change = taker.stand_by(giver)?;
            return Ok(Some(swap(side.other(), &change)));
        }
        if self.copied == Some((side, giver.epoch())) {
            return Ok(None);
        }
        let own = self.asked.filter(|(_, won)| *won).map(|(intake, _)| intake);
        let intake = taker.intake().filter(|intake| intake.epoch() == giver.epoch());
        if let Some(intake) = intake.filter(|intake| own == Some(*intake)) {
            return Ok(Some(MigrateEffect::Copy(side, intake)));
        }
        let change = taker.listen(giver)?;
        self.asked = change.to().intake().map(|intake| (intake, false));
        Ok(Some(swap(side.other(), &change)))
    }

    /// Like [`copy_once`](Self::copy_once), followed by one comparison.
    fn copy_and_compare(
        &mut self,
        side: Side,
        records: &Records,
    ) -> Result<Option<MigrateEffect>, Refused> {
        if let Some(effect) = self.copy_once(side, records)? {
            return Ok(Some(effect));
        }
        let done = self.compared == Some((side, records.of(side).epoch()));
        Ok((!done).then_some(MigrateEffect::Compare(side)))
    }

    /// Hands the authority over to the side `to`.
    fn hand_over(&mut self, to: Side, records: &Records) -> Result<MigrateEffect, Refused> {
        let (giver, taker) = (records.of(to.other()), records.of(to));
        match taker.role() {
            Role::Active if taker.is_alone() && to == Side::Target => {
                let stand_by = self.copy_once(to.other(), records)?;
                return Ok(stand_by.unwrap_or(MigrateEffect::Read));
            }
            Role::Active => return Ok(finish(self.failure.unwrap_or(MigrateOutcome::Reached))),
            role @ (Role::Forward | Role::Retired) => return Err(Refused::Role(role)),
            Role::Standby | Role::ServeOnly => {}
        }
        // The side that had the authority last only needs a grant.
        if records.newest() != to
            && let Some(effect) = self.bring(to.other(), records)?
        {
            return Ok(effect);
        }
        match giver.grant() {
            Some(grant) if taker.epoch() < grant.epoch() => Ok(swap(to, &taker.take(&grant)?)),
            _ => {
                let change = giver.yield_to(taker, records.next_epoch())?;
                Ok(swap(to.other(), &change))
            }
        }
    }

    /// Copies while the giver is active, and once more, with a comparison, when it has given up.
    fn bring(&mut self, from: Side, records: &Records) -> Result<Option<MigrateEffect>, Refused> {
        if records.of(from).role() == Role::Active {
            self.copy_once(from, records)
        } else {
            self.copy_and_compare(from, records)
        }
    }

    /// The last copy goes back to the source, so that any difference is a fault rather than a late
    /// change.
    fn retire(&mut self, records: &Records) -> Result<MigrateEffect, Refused> {
        let Records { source, target } = records;
        Ok(match source.role() {
            Role::Retired => finish(MigrateOutcome::Reached),
            Role::Forward if self.shredded => swap(Side::Source, &source.retire()?),
            Role::Forward => MigrateEffect::Shred,
            Role::ServeOnly if target.role() == Role::Active => {
                match self.copy_once(Side::Target, records)? {
                    Some(effect) => effect,
                    None if self.compared != Some((Side::Source, source.epoch())) => {
                        MigrateEffect::Compare(Side::Source)
                    }
                    None => swap(Side::Source, &source.forward(target)?),
                }
            }
            role => return Err(Refused::Role(role)),
        })
    }

    fn note(&self, side: Side) -> Option<(Side, Epoch)> {
        let records = self.records.as_ref()?;
        Some((side, records.of(side).epoch()))
    }

    /// Ends the plan if the authority was not given up yet; otherwise, hands the authority back.
    fn stop(&mut self, outcome: MigrateOutcome) -> MigrateEffect {
        let back = match self.goal {
            Goal::Cutover => (Side::Source, Goal::Rollback),
            Goal::Rollback => (Side::Target, Goal::Cutover),
            Goal::Copy | Goal::Verify | Goal::Retire => return finish(outcome),
        };
        let gave_up = self.records.is_some_and(|records| records.of(back.0).role() != Role::Active);
        if !gave_up || self.failure.is_some() {
            return finish(outcome);
        }
        self.goal = back.1;
        self.failure = Some(outcome);
        self.records = None;
        MigrateEffect::Read
    }
}

impl Plan for MigratePlan {
    type Event = MigrateEvent;
    type Effect = MigrateEffect;

    fn step(&mut self, event: MigrateEvent) -> Vec<MigrateEffect> {
        let effect = match event {
            MigrateEvent::Begin(goal) => {
                *self = Self { goal, ..Self::new() };
                MigrateEffect::Read
            }
            MigrateEvent::Read { source, target } => {
                self.records = Some(Records { source: *source, target: *target });
                self.next()
            }
            MigrateEvent::Answered { won } => {
                if let Some((_, own)) = &mut self.asked {
                    *own |= won;
                }
                MigrateEffect::Read
            }
            MigrateEvent::Copied { conflicts: true, .. } => self.stop(MigrateOutcome::Conflicts),
            MigrateEvent::Copied { from, .. } => {
                self.copied = self.note(from);
                self.next()
            }
            MigrateEvent::Compared { same: false, .. } => self.stop(MigrateOutcome::NotTheSame),
            MigrateEvent::Compared { from, .. } => {
                self.compared = self.note(from);
                self.next()
            }
            MigrateEvent::Shredded => {
                self.shredded = true;
                self.next()
            }
            MigrateEvent::Failed => finish(MigrateOutcome::Interrupted),
        };
        vec![effect]
    }
}

#[cfg(test)]
mod tests;
