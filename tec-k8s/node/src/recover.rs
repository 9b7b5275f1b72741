//! Recovery: opens the state disk of a rebooted node with keys from a join service that knows the node, or
//! from a caller that knows where the keys are.
//!
//! ```text
//!  keys, from whom ever ─► try them on the disk ─┬─ do not fit: say so, go on waiting
//!                                                └─ fit: map ─► read state, journal ─► set marker ─► finish
//! ```

use tec_core::plan::Plan;

use super::derive::ClusterId;
use super::lock::MarkerState;

/// The source of offered keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// A Recover call, which waits for an answer.
    Operator,
    /// A join service, through a rejoin ticket.
    Rejoin,
}

/// An event that recovery receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecoverEvent {
    /// Keys arrived; the shell keeps them by source.
    Offered(KeySource),
    /// The keys open the disk.
    KeyFits,
    /// The keys do not open the disk.
    KeyRefused,
    /// The disk is mapped, and its state belongs to this cluster.
    Mapped(ClusterId),
    /// The disk is mapped, and its journal belongs to a different cluster than the secret.
    Foreign,
    /// State of the TPM's marker.
    Marker(MarkerState),
    /// The marker was set.
    MarkerSet,
    /// A step failed.
    Failed(RecoverStep),
}

/// A step of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoverStep {
    /// Trying the key on the LUKS slots.
    TryKey,
    /// Mapping the disk, and reading its state and its journal.
    MapDisk,
    /// Reading the marker.
    ReadMarker,
    /// Setting the marker.
    SetMarker,
}

/// An effect that recovery requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoverEffect {
    /// Try the keys of this source, without changing anything.
    TryKey(KeySource),
    /// Answer the caller.
    Answer(KeySource, Answer),
    /// Map the disk, and read its state.
    MapDisk,
    /// Read the marker.
    ReadMarker,
    /// Set the marker.
    SetMarker(ClusterId),
    /// Wait a little, then repeat the step.
    Again(RecoverStep),
    /// The plan has finished.
    Finish(RecoverOutcome),
}

/// The answer to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The keys open the disk.
    Accepted,
    /// The keys do not open the disk; others may be tried.
    WrongKey,
    /// Other keys were accepted already.
    TooLate,
    /// The disk cannot be read at the moment.
    Unavailable,
}

/// Outcome of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoverOutcome {
    /// Disk and marker are as before the reboot.
    Recovered(ClusterId),
    /// The marker, or the measurement secret, belongs to a different cluster than the disk: recovery must
    /// stop.
    OtherCluster,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Waiting,
    Trying(KeySource),
    Mapping,
    Marking(ClusterId),
    Ended,
}

/// The plan of one recovery.
#[derive(Debug, Default)]
pub struct RecoverPlan {
    stage: Stage,
    next: Option<KeySource>,
}

impl RecoverPlan {
    /// A plan that waits for keys.
    pub fn new() -> Self {
        Self::default()
    }

    fn offered(&mut self, source: KeySource) -> Vec<RecoverEffect> {
        match self.stage {
            Stage::Waiting => {
                self.stage = Stage::Trying(source);
                vec![RecoverEffect::TryKey(source)]
            }
            Stage::Trying(current) if current != source => {
                self.next = Some(source);
                Vec::new()
            }
            _ => vec![RecoverEffect::Answer(source, Answer::TooLate)],
        }
    }

    fn tried(&mut self, answer: Answer) -> Vec<RecoverEffect> {
        let Stage::Trying(source) = self.stage else {
            return Vec::new();
        };
        let mut effects = vec![RecoverEffect::Answer(source, answer)];
        let next = self.next.take();
        if answer == Answer::Accepted {
            self.stage = Stage::Mapping;
            effects.extend(next.map(|next| RecoverEffect::Answer(next, Answer::TooLate)));
            effects.push(RecoverEffect::MapDisk);
        } else {
            self.stage = next.map_or(Stage::Waiting, Stage::Trying);
            effects.extend(next.map(RecoverEffect::TryKey));
        }
        effects
    }

    fn marked(&mut self, state: MarkerState) -> Vec<RecoverEffect> {
        let Stage::Marking(cluster) = self.stage else {
            return Vec::new();
        };
        match state {
            MarkerState::Unset => vec![RecoverEffect::SetMarker(cluster)],
            state if state.is_of(&cluster) => self.finish(RecoverOutcome::Recovered(cluster)),
            MarkerState::Set(_) => self.finish(RecoverOutcome::OtherCluster),
        }
    }

    fn finish(&mut self, outcome: RecoverOutcome) -> Vec<RecoverEffect> {
        self.stage = Stage::Ended;
        vec![RecoverEffect::Finish(outcome)]
    }
}

impl Plan for RecoverPlan {
    type Event = RecoverEvent;
    type Effect = RecoverEffect;

    fn step(&mut self, event: RecoverEvent) -> Vec<RecoverEffect> {
        match event {
            RecoverEvent::Offered(source) => self.offered(source),
            RecoverEvent::KeyFits => self.tried(Answer::Accepted),
            RecoverEvent::KeyRefused => self.tried(Answer::WrongKey),
            RecoverEvent::Failed(RecoverStep::TryKey) => self.tried(Answer::Unavailable),
            RecoverEvent::Mapped(cluster) => {
                self.stage = Stage::Marking(cluster);
                vec![RecoverEffect::ReadMarker]
            }
            RecoverEvent::Foreign => self.finish(RecoverOutcome::OtherCluster),
            RecoverEvent::Marker(state) => self.marked(state),
            // The answer may be lost: the value of the register decides.
            RecoverEvent::MarkerSet | RecoverEvent::Failed(RecoverStep::SetMarker) => {
                vec![RecoverEffect::ReadMarker]
            }
            RecoverEvent::Failed(step) => vec![RecoverEffect::Again(step)],
        }
    }
}

#[cfg(test)]
mod tests;
