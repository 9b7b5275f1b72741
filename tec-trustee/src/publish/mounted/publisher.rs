//! Publishes to files.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::port::{Clock, PortError, PortErrorKind};
use tokio::sync::Mutex;

use super::super::desired::Desired;
use super::super::{Progress, Publisher};
use super::debounce::Debounce;
use super::form::render_state;
use super::layout::Layout;
use super::patch::{Observed, Patch};

/// A cluster that hosts the mounted form.
///
/// *Contract*: `observe` reports the objects that this target created, no others, and all of their keys:
/// anything that it reports and that is not desired is deleted. `apply` is idempotent, and works in this
/// order, so that an interruption leaves nothing that a running pod misses: ConfigMaps, Secrets that are
/// created or merged, the pod template, Secrets that are deleted.
///
/// A machine's Secret that already exists holds its disk key: read it first, and make its content part of the
/// desired state.
#[async_trait]
pub trait MountedTarget: fmt::Debug + Send + Sync {
    /// Returns the objects that are there.
    async fn observe(&self) -> Result<Observed, PortError>;

    /// Applies the changes.
    async fn apply(&self, patch: &Patch) -> Result<(), PortError>;
}

/// Publishes the mounted form. Changes are gathered, so that one patch and one new pod cover any number of
/// machines.
#[derive(Debug)]
pub struct MountedPublisher {
    target: Arc<dyn MountedTarget>,
    layout: Layout,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    debounce: Debounce,
    /// The last revision seen.
    seen: Option<u64>,
}

impl MountedPublisher {
    /// A publisher with the default gathering times.
    pub fn new(target: Arc<dyn MountedTarget>, layout: Layout, clock: Arc<dyn Clock>) -> Self {
        let state = State { debounce: Debounce::default(), seen: None };
        Self { target, layout, clock, state: Mutex::new(state) }
    }
}

#[async_trait]
impl Publisher for MountedPublisher {
    async fn publish(&self, desired: &Desired) -> Result<Progress, PortError> {
        let mut state = self.state.lock().await;
        let (now, latest) = (self.clock.now(), desired.revision());
        if state.seen.is_some_and(|seen| seen != latest) {
            state.debounce.changed(now);
        }
        state.seen = Some(latest);
        if let Some(until) = state.debounce.due().filter(|due| now < *due) {
            return Ok(Progress::Waiting { until });
        }
        let (form, revision) = desired.read(|state| {
            let revision = state.position().revision();
            (render_state(state, &self.layout), revision)
        });
        let form = form.map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "render the mounted form").because(error)
        })?;
        let patch = Patch::between(&self.target.observe().await?, form);
        if !patch.is_empty() {
            self.target.apply(&patch).await?;
        }
        state.debounce.done();
        Ok(Progress::Converged { changes: patch.changes(), revision })
    }

    /// Nothing is carried over between rounds.
    async fn distrust(&self) {}
}
