//! Init: this node becomes the first of a cluster.
//!
//! ```text
//!  read marker, journal ─► prepare (checks all, changes nothing) ─► write intent
//!     ─► lock ─► write state ─► re-key disk ─► kubeadm init ─► intent done ─► finish
//!      └ the point of no return: from here on a plan only goes forward, and may be run again
//! ```
//!
//! A request that is repeated after a crash, with the same hash and the same cluster ID, continues
//! where the first one stopped. Any other request is refused.

use std::fmt;

use serde::Serialize;
use tec_core::digest::Sha256Digest;
use tec_core::plan::Plan;

use super::derive::{ClusterId, MeasurementSalt};
use super::journal::{Intent, Phase};
use super::lock::MarkerState;
use super::ticket::Component;

/// Settings of the new cluster; contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// SHA-256 over the whole request: only the same request continues after a crash.
    pub digest: Sha256Digest,
    /// Kubernetes version.
    pub kubernetes_version: String,
    /// What to install.
    pub components: Vec<Component>,
    /// Whether kube-proxy runs.
    pub proxy: KubeProxy,
}

/// Whether kube-proxy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeProxy {
    /// The cluster network replaces it.
    Replaced,
    /// It runs, as conformance tests require.
    Kept,
}

/// Label of the measurement salt.
const SALT: &[u8] = b"tec-measurement-salt/1\0";

impl InitRequest {
    /// The salt of the cluster ID. Derived from the request, so that a request that continues after
    /// a crash leads to the same cluster.
    pub fn measurement_salt(&self) -> MeasurementSalt {
        let salt = Sha256Digest::of([SALT, self.digest.as_bytes()].concat());
        MeasurementSalt::new(*salt.as_bytes())
    }
}

/// An event that init receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum InitEvent {
    /// An authenticated request with this SHA-256 digest arrived.
    Requested(Sha256Digest),
    /// The journal's intent, if there is one.
    Journal(Option<Intent>),
    /// State of the TPM's marker.
    Marker(MarkerState),
    /// All checks passed, and this would be the cluster.
    Prepared(ClusterId),
    /// An effect was carried out.
    Done(InitStep),
    /// Another caller holds the lock.
    LockTaken,
    /// An effect failed; it may be retried.
    Failed(InitStep),
    /// An effect can never succeed.
    Refused(InitStep),
}

/// A step of init.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum InitStep {
    /// Reading the journal.
    ReadJournal,
    /// Reading the TPM's marker.
    ReadMarker,
    /// Keys, disk, components and kubeadm's preflight, checked without changes.
    Prepare,
    /// Writing the intent.
    WriteIntent,
    /// Taking the lock.
    Lock,
    /// `node_state.json`.
    WriteState,
    /// Re-keying the disk, so that only the derived key opens it.
    #[serde(rename = "re-key-disk")]
    RekeyDisk,
    /// `kubeadm init`.
    InitCluster,
    /// Recording completion.
    WriteDone,
}

impl fmt::Display for InitStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An effect that init requests.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitEffect {
    /// Run a step. All steps converge when repeated.
    Run(InitStep),
    /// Write this intent; answered as [`InitStep::WriteIntent`] or, if it says that the node is a
    /// member, as [`InitStep::WriteDone`].
    WriteIntent(Intent),
    /// Lock the node for this cluster.
    Lock(ClusterId),
    /// Wait briefly, then repeat the step. After the lock, the plan never gives up.
    Again(InitStep),
    /// The plan has finished.
    Finish(InitOutcome),
}

/// Outcome of init.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitOutcome {
    /// The cluster exists.
    Initialized(ClusterId),
    /// All checks passed, and only checks were requested: this would be the cluster.
    Possible(ClusterId),
    /// The node is already in a cluster, or about to be: by join, or by another request.
    AlreadyActivated,
    /// Nothing changed; the same or another request may follow.
    Retry(InitStep),
    /// Nothing changed; this request can never succeed.
    Refused(InitStep),
}

/// The plan of one init.
#[derive(Debug, Default)]
pub struct InitPlan {
    request: Sha256Digest,
    journal: Option<Intent>,
    marker: Option<MarkerState>,
    intent: Option<Intent>,
}

impl InitPlan {
    /// A new plan, which knows nothing about the node yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only the request that began may continue, and only for the cluster of the marker.
    fn admitted(&self, cluster: &ClusterId) -> bool {
        let own = |intent: &Intent| intent.cluster == *cluster && intent.request == self.request;
        match self.marker {
            Some(MarkerState::Unset) => true,
            Some(state) => state.is_of(cluster) && self.journal.as_ref().is_some_and(own),
            None => false,
        }
    }

    fn after(&self, step: InitStep) -> Vec<InitEffect> {
        let next = match (step, &self.intent) {
            (InitStep::WriteIntent, Some(intent)) => InitEffect::Lock(intent.cluster),
            // A disk that only the cluster's key opens is recovered from the state on it.
            (InitStep::Lock, _) => InitEffect::Run(InitStep::WriteState),
            (InitStep::WriteState, _) => InitEffect::Run(InitStep::RekeyDisk),
            (InitStep::RekeyDisk, _) => InitEffect::Run(InitStep::InitCluster),
            (InitStep::InitCluster, Some(intent)) => InitEffect::WriteIntent(intent.done()),
            (InitStep::WriteDone, Some(intent)) => {
                InitEffect::Finish(InitOutcome::Initialized(intent.cluster))
            }
            _ => return Vec::new(),
        };
        vec![next]
    }

    fn marked(&mut self, state: MarkerState) -> Vec<InitEffect> {
        self.marker = Some(state);
        let began = |intent: &Intent| intent.began(self.request, state);
        if state == MarkerState::Unset || self.journal.as_ref().is_some_and(began) {
            vec![InitEffect::Run(InitStep::Prepare)]
        } else {
            vec![InitEffect::Finish(self.already())]
        }
    }

    /// Repeats the outcome when the same request arrives again after it succeeded.
    fn already(&self) -> InitOutcome {
        match (&self.journal, self.marker) {
            (Some(intent), Some(state))
                if intent.request == self.request
                    && intent.phase == Phase::Done
                    && state.is_of(&intent.cluster) =>
            {
                InitOutcome::Initialized(intent.cluster)
            }
            _ => InitOutcome::AlreadyActivated,
        }
    }

    fn prepared(&mut self, cluster: ClusterId) -> Vec<InitEffect> {
        if !self.admitted(&cluster) {
            return vec![InitEffect::Finish(InitOutcome::AlreadyActivated)];
        }
        let intent = Intent::new(cluster, self.request);
        self.intent = Some(intent);
        vec![InitEffect::WriteIntent(intent)]
    }
}

/// Before the lock, a failure ends the plan; after it, the plan can only continue.
fn failed(step: InitStep, outcome: fn(InitStep) -> InitOutcome) -> Vec<InitEffect> {
    let reversible = matches!(
        step,
        InitStep::ReadJournal | InitStep::ReadMarker | InitStep::Prepare | InitStep::WriteIntent
    );
    if reversible { vec![InitEffect::Finish(outcome(step))] } else { vec![InitEffect::Again(step)] }
}

impl Plan for InitPlan {
    type Event = InitEvent;
    type Effect = InitEffect;

    fn step(&mut self, event: InitEvent) -> Vec<InitEffect> {
        match event {
            InitEvent::Requested(request) => {
                *self = Self { request, ..Self::default() };
                vec![InitEffect::Run(InitStep::ReadJournal)]
            }
            InitEvent::Journal(intent) => {
                self.journal = intent;
                vec![InitEffect::Run(InitStep::ReadMarker)]
            }
            InitEvent::Marker(state) => self.marked(state),
            InitEvent::Prepared(cluster) => self.prepared(cluster),
            InitEvent::Done(step) => self.after(step),
            InitEvent::LockTaken => vec![InitEffect::Finish(InitOutcome::AlreadyActivated)],
            InitEvent::Failed(step) => failed(step, InitOutcome::Retry),
            InitEvent::Refused(step) => failed(step, InitOutcome::Refused),
        }
    }
}

#[cfg(test)]
mod tests;
