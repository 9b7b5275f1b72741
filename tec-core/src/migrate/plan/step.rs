//! Events, effects and outcomes of a plan.

use crate::migrate::{Authority, Intake, Refused, Transition};

/// What an admin wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The other anchor gets everything that the authority has.
    Copy,
    /// Both anchors are compared, and left unchanged.
    Verify,
    /// The target becomes the authority.
    Cutover,
    /// The source becomes the authority.
    Rollback,
    /// The source is retired, and the target is the authority.
    Retire,
}

/// One of the two anchors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The current home of the trust.
    Source,
    /// Its destination.
    Target,
}

impl Side {
    /// The other side.
    pub fn other(self) -> Self {
        match self {
            Self::Source => Self::Target,
            Self::Target => Self::Source,
        }
    }
}

/// An event that the plan receives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateEvent {
    /// Begin.
    Begin(Goal),
    /// Both records.
    Read {
        /// Record of the source.
        source: Box<Authority>,
        /// Record of the target.
        target: Box<Authority>,
    },
    /// A change of a record was carried out, or lost to another change.
    Answered {
        /// Whether the change was carried out.
        won: bool,
    },
    /// A pass finished.
    Copied {
        /// The side whose units were copied.
        from: Side,
        /// Whether units conflict.
        conflicts: bool,
    },
    /// A comparison finished.
    Compared {
        /// The side whose units were looked up.
        from: Side,
        /// Whether the other side has all of them.
        same: bool,
    },
    /// The keys of the source are gone.
    Shredded,
    /// An effect failed; the plan ends, and another may begin.
    Failed,
}

/// An effect that the plan requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateEffect {
    /// Read both records, the source first.
    Read,
    /// Change the record of one side, if it is still the one that the change is based on.
    Swap(Side, Box<Transition>),
    /// Copy all units of one side to the other, in this pass.
    Copy(Side, Intake),
    /// Check whether the other side has all units of one side.
    Compare(Side),
    /// Shred the keys of the source.
    Shred,
    /// The plan has ended.
    Finish(MigrateOutcome),
}

/// Outcome of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateOutcome {
    /// The goal is reached.
    Reached,
    /// Units conflict; the authority stayed, or was handed back.
    Conflicts,
    /// The contents of the anchors differ; the authority stayed, or was handed back.
    NotTheSame,
    /// The records do not allow it.
    Refused(Refused),
    /// An effect failed; the plan may be retried.
    Interrupted,
}

pub(super) fn swap(side: Side, change: &Transition) -> MigrateEffect {
    MigrateEffect::Swap(side, Box::new(*change))
}

pub(super) fn finish(outcome: MigrateOutcome) -> MigrateEffect {
    MigrateEffect::Finish(outcome)
}
