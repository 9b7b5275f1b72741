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

/// An event that recovery receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum RecoverEvent {
    /// Keys arrived; the shell keeps them.
    Offered,
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
    /// Try the keys, without changing anything.
    TryKey,
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

/// The plan of one recovery.
#[derive(Debug, Default)]
pub struct RecoverPlan {
    marking: Option<ClusterId>,
}

impl RecoverPlan {
    /// A plan that waits for keys.
    pub fn new() -> Self {
        Self::default()
    }

    fn marked(&mut self, state: MarkerState) -> Vec<RecoverEffect> {
        let Some(cluster) = self.marking else {
            return Vec::new();
        };
        match state {
            MarkerState::Unset => vec![RecoverEffect::SetMarker(cluster)],
            state if state.is_of(&cluster) => self.finish(RecoverOutcome::Recovered(cluster)),
            MarkerState::Set(_) => self.finish(RecoverOutcome::OtherCluster),
        }
    }

    fn finish(&mut self, outcome: RecoverOutcome) -> Vec<RecoverEffect> {
        self.marking = None;
        vec![RecoverEffect::Finish(outcome)]
    }
}

impl Plan for RecoverPlan {
    type Event = RecoverEvent;
    type Effect = RecoverEffect;

    fn step(&mut self, event: RecoverEvent) -> Vec<RecoverEffect> {
        match event {
            RecoverEvent::Offered => vec![RecoverEffect::TryKey],
            RecoverEvent::KeyFits => vec![RecoverEffect::MapDisk],
            // The caller waits for other keys, or for the disk.
            RecoverEvent::KeyRefused | RecoverEvent::Failed(RecoverStep::TryKey) => Vec::new(),
            RecoverEvent::Mapped(cluster) => {
                self.marking = Some(cluster);
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
