//! What a plan is told, what it wants done, and how it ends.

use crate::migrate::{Authority, Intake, Refused, Transition};

/// What an admin wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers choose one of them")]
pub enum Goal {
    /// The other anchor has what the authority has.
    Copy,
    /// As it is, both hold the same.
    Verify,
    /// The target is the authority.
    Cutover,
    /// The source is the authority.
    Rollback,
    /// The source is retired, and the target the authority.
    Retire,
}

/// One of the two anchors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two")]
pub enum Side {
    /// Where the trust was.
    Source,
    /// Where it goes.
    Target,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Source => Self::Target,
            Self::Target => Self::Source,
        }
    }
}

/// What the plan is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateEvent {
    /// Begin.
    Begin(Goal),
    /// Both records.
    Read {
        /// That of the source.
        source: Box<Authority>,
        /// That of the target.
        target: Box<Authority>,
    },
    /// A change of a record was carried out, or somebody else was first.
    Answered {
        /// Whether it was carried out.
        won: bool,
    },
    /// A pass ended.
    Copied {
        /// Whose units were copied.
        from: Side,
        /// Whether units stand in the way.
        conflicts: bool,
    },
    /// A comparison ended.
    Compared {
        /// Whose units were looked for.
        from: Side,
        /// Whether the other side has all of them.
        same: bool,
    },
    /// The keys of the source are gone.
    Shredded,
    /// An effect failed; the plan ends, and another may begin.
    Failed,
}

/// What the plan wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateEffect {
    /// Read both records, the source first.
    Read,
    /// Change the record of one side, if it is still what the change begins with.
    Swap(Side, Box<Transition>),
    /// Copy all units of one side to the other, in this pass.
    Copy(Side, Intake),
    /// Look whether the other side has all units of one side.
    Compare(Side),
    /// Shred the keys of the source.
    Shred,
    /// The plan has ended.
    Finish(MigrateOutcome),
}

/// How a plan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MigrateOutcome {
    /// The goal is reached.
    Reached,
    /// Units stand in the way; the authority stayed or went back where it was.
    Conflicts,
    /// The anchors do not hold the same; the authority stayed or went back where it was.
    NotTheSame,
    /// The records do not allow it.
    Refused(Refused),
    /// An effect failed; the same may be tried again.
    Interrupted,
}

pub(super) fn swap(side: Side, change: &Transition) -> MigrateEffect {
    MigrateEffect::Swap(side, Box::new(*change))
}

pub(super) fn finish(outcome: MigrateOutcome) -> MigrateEffect {
    MigrateEffect::Finish(outcome)
}
