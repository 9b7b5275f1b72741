//! Join: this node becomes a member of an existing cluster.
//!
//! ```text
//!  read marker ─► ask for a ticket ─► prepare (checks all, changes nothing) ─► write intent
//!     ─► lock ─► write state ─► re-key disk ─► write files ─► kubeadm join ─► intent done
//!     ─► finish
//! ```
//!
//! Before the lock, everything is retried with increasing waits, since init may win in the
//! meantime. After the lock, the join can only continue; after a crash, it continues with a new
//! ticket for the same cluster.

use std::fmt;

use serde::Serialize;
use tec_core::digest::Sha256Digest;
use tec_core::plan::Plan;

use super::derive::ClusterId;
use super::journal::Intent;
use super::lock::MarkerState;

/// The longest wait is the first one doubled this many times.
const MAX_DOUBLINGS: u32 = 5;

/// An event that join receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinEvent {
    /// The program started; this is the SHA-256 digest of the name and role of this node. The disk
    /// is the one with the journal.
    Started(Sha256Digest),
    /// Init won: there is nothing left to do.
    Stopped,
    /// The journal's intent, if there is one.
    Journal(Option<Intent>),
    /// State of the TPM's marker.
    Marker(MarkerState),
    /// An authenticated service issued a ticket for this cluster.
    Ticket(ClusterId),
    /// The wait is over.
    Waited,
    /// A step succeeded.
    Done(JoinStep),
    /// The journal is reserved by another caller, who may still give it back.
    Reserved,
    /// Another caller holds the lock.
    LockTaken,
    /// A step failed.
    Failed(JoinStep),
}

/// A step of join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum JoinStep {
    /// Reading the journal.
    ReadJournal,
    /// Reading the TPM's marker.
    ReadMarker,
    /// Finding join services, mutual attestation, and fetching a ticket.
    FetchTicket,
    /// Key, disk, components, certificate and files, checked without changes.
    Prepare,
    /// Writing the intent.
    WriteIntent,
    /// Taking the lock.
    Lock,
    /// `node_state.json`.
    WriteState,
    /// Re-keying the disk, so that only the ticket's key opens it.
    #[serde(rename = "re-key-disk")]
    RekeyDisk,
    /// Control-plane files, kubelet certificate.
    WriteFiles,
    /// `kubeadm join`.
    JoinCluster,
    /// Recording completion.
    WriteDone,
}

impl fmt::Display for JoinStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An effect that join requests.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinEffect {
    /// Run a step. All steps converge when repeated.
    Run(JoinStep),
    /// Write this intent; answered as [`JoinStep::WriteIntent`] or, if it says that the node is a
    /// member, as [`JoinStep::WriteDone`].
    WriteIntent(Intent),
    /// Lock the node for this cluster.
    Lock(ClusterId),
    /// Wait: the first wait times two to the power of `doublings`, with jitter.
    Wait {
        /// Number of doublings.
        doublings: u32,
    },
    /// Wait briefly, then repeat the step. After the lock, the plan never gives up.
    Again(JoinStep),
    /// The plan has finished.
    Finish(JoinOutcome),
}

/// Outcome of join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinOutcome {
    /// The node is a member.
    Joined(ClusterId),
    /// Init won.
    Yielded,
    /// The node was a member before.
    AlreadyMember,
}

/// The plan of one join.
#[derive(Debug, Default)]
pub struct JoinPlan {
    request: Sha256Digest,
    journal: Option<Intent>,
    marker: Option<MarkerState>,
    intent: Option<Intent>,
    failures: u32,
    locking: bool,
}

impl JoinPlan {
    /// A new plan, which knows nothing about the node yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn after(&mut self, step: JoinStep) -> Vec<JoinEffect> {
        let next = match (step, &self.intent) {
            (JoinStep::Prepare, Some(intent)) => JoinEffect::WriteIntent(*intent),
            (JoinStep::WriteIntent, Some(intent)) => {
                self.locking = true;
                JoinEffect::Lock(intent.cluster)
            }
            // A disk that only the cluster's key opens is recovered from the state on it. Files
            // with keys wait until nothing else opens the disk.
            (JoinStep::Lock, _) => JoinEffect::Run(JoinStep::WriteState),
            (JoinStep::WriteState, _) => JoinEffect::Run(JoinStep::RekeyDisk),
            (JoinStep::RekeyDisk, _) => JoinEffect::Run(JoinStep::WriteFiles),
            (JoinStep::WriteFiles, _) => JoinEffect::Run(JoinStep::JoinCluster),
            (JoinStep::JoinCluster, Some(intent)) => JoinEffect::WriteIntent(intent.done()),
            (JoinStep::WriteDone, Some(intent)) => {
                JoinEffect::Finish(JoinOutcome::Joined(intent.cluster))
            }
            _ => return Vec::new(),
        };
        vec![next]
    }

    fn marked(&mut self, state: MarkerState) -> Vec<JoinEffect> {
        self.marker = Some(state);
        let began = |intent: &Intent| intent.began(self.request, state);
        if state == MarkerState::Unset || self.journal.as_ref().is_some_and(began) {
            vec![JoinEffect::Run(JoinStep::FetchTicket)]
        } else {
            vec![JoinEffect::Finish(JoinOutcome::AlreadyMember)]
        }
    }

    /// A ticket is useful only for the cluster whose join began.
    fn ticket(&mut self, cluster: ClusterId) -> Vec<JoinEffect> {
        let fits = match self.marker {
            Some(MarkerState::Unset) => true,
            Some(state) => state.is_of(&cluster),
            None => false,
        };
        if !fits {
            return self.wait();
        }
        self.intent = Some(Intent::new(cluster, self.request));
        vec![JoinEffect::Run(JoinStep::Prepare)]
    }

    fn wait(&mut self) -> Vec<JoinEffect> {
        let doublings = self.failures.min(MAX_DOUBLINGS);
        self.failures = self.failures.saturating_add(1);
        vec![JoinEffect::Wait { doublings }]
    }

    fn failed(&mut self, step: JoinStep) -> Vec<JoinEffect> {
        match step {
            JoinStep::ReadJournal
            | JoinStep::ReadMarker
            | JoinStep::FetchTicket
            | JoinStep::Prepare
            | JoinStep::WriteIntent => self.wait(),
            other => vec![JoinEffect::Again(other)],
        }
    }
}

impl Plan for JoinPlan {
    type Event = JoinEvent;
    type Effect = JoinEffect;

    fn step(&mut self, event: JoinEvent) -> Vec<JoinEffect> {
        match event {
            JoinEvent::Started(request) => {
                *self = Self { request, ..Self::default() };
                vec![JoinEffect::Run(JoinStep::ReadJournal)]
            }
            // Once it locks, init cannot have won, and stopping here would leave half a member.
            JoinEvent::Stopped if self.locking => Vec::new(),
            JoinEvent::Stopped | JoinEvent::LockTaken => {
                vec![JoinEffect::Finish(JoinOutcome::Yielded)]
            }
            JoinEvent::Journal(intent) => {
                self.journal = intent;
                vec![JoinEffect::Run(JoinStep::ReadMarker)]
            }
            JoinEvent::Marker(state) => self.marked(state),
            JoinEvent::Ticket(cluster) => self.ticket(cluster),
            // After the wait, the marker tells whether init won.
            JoinEvent::Reserved => self.wait(),
            JoinEvent::Waited => vec![JoinEffect::Run(JoinStep::ReadJournal)],
            JoinEvent::Done(step) => self.after(step),
            JoinEvent::Failed(step) => self.failed(step),
        }
    }
}

#[cfg(test)]
mod tests;
