//! One desired state, several Trustees.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tec_core::ignition::NumRetries;
use tec_core::port::{Clock, Entropy, EntropyRng, PortError, PortErrorKind, chain};
use tec_core::time::Timestamp;

use super::desired::Desired;
use super::{Progress, Publisher};
use crate::client::RetryPolicy;

/// Longest wait after the first failure, and longest wait overall.
const WAITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(5));

/// Health of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// The target has not been tried yet.
    Unknown,
    /// The last round reached the desired state.
    Healthy,
    /// Changes are being gathered before they are sent.
    Waiting,
    /// The last round failed, and waiting may help.
    Failing(PortErrorKind),
    /// The last round failed, and someone must act: a token or a policy is refused. It is retried anyway,
    /// because the fix may happen on the target.
    Broken(PortErrorKind),
}

/// The state of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStatus {
    /// Health of the target.
    pub health: Health,
    /// Number of the latest change that the target has; compare with [`Desired::revision`].
    pub revision: u64,
    /// Number of changes that the target does not have yet, as of the last round.
    pub lag: u64,
    /// When the target last had everything.
    pub converged_at: Option<Timestamp>,
    /// Rounds that failed since then.
    pub failures: u32,
    /// When the next round is due; until then, [`Fanout::publish`] skips it.
    pub due: Timestamp,
    /// The last failure with its causes, without secrets.
    pub error: Option<String>,
}

/// Publishes one desired state to several targets, each independently.
///
/// A target that fails is left alone for increasingly long periods; the others are not affected.
#[derive(derive_more::Debug)]
#[debug("{:?}", targets.keys())]
pub struct Fanout {
    targets: BTreeMap<String, Target>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    retry: RetryPolicy,
}

struct Target {
    publisher: Arc<dyn Publisher>,
    status: Mutex<TargetStatus>,
}

impl Fanout {
    /// No targets.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            targets: BTreeMap::new(),
            clock,
            entropy,
            retry: RetryPolicy::from_config(Some(NumRetries::Infinity))
                .with_delays(WAITS.0, WAITS.1),
        }
    }

    /// Sets delays other than the defaults, 2 s to 5 min. The number of rounds is ignored: targets are never
    /// given up.
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Adds a target, or replaces the one with this name.
    pub fn add(&mut self, name: impl Into<String>, publisher: Arc<dyn Publisher>) {
        let status = TargetStatus {
            health: Health::Unknown,
            revision: 0,
            lag: 0,
            converged_at: None,
            failures: 0,
            due: self.clock.now(),
            error: None,
        };
        self.targets.insert(name.into(), Target { publisher, status: Mutex::new(status) });
    }

    /// Stops publishing to a target; what it holds stays there.
    pub fn remove(&mut self, name: &str) {
        self.targets.remove(name);
    }

    /// The state of all targets, even while a round is under way.
    pub fn status(&self) -> BTreeMap<String, TargetStatus> {
        let status =
            |(name, target): (&String, &Target)| (name.clone(), target.status.lock().clone());
        self.targets.iter().map(status).collect()
    }

    /// When the next target is due: the earliest of all that are not healthy.
    pub fn next_due(&self) -> Option<Timestamp> {
        let status = self.targets.values().map(|target| target.status.lock().clone());
        status.filter(|status| status.health != Health::Healthy).map(|status| status.due).min()
    }

    /// Runs one round for every target that is due, all concurrently. Returns when the last is done; a caller
    /// that must not wait for the slowest calls [`publish_to`](Self::publish_to) for each.
    ///
    /// # Cancel safety
    /// As for the publishers.
    pub async fn publish(&self, desired: &Desired) -> BTreeMap<String, TargetStatus> {
        let now = self.clock.now();
        let due = self.targets.iter().filter(|(_, target)| target.status.lock().due <= now);
        let rounds: Vec<_> = due.map(|(name, target)| self.round(name, target, desired)).collect();
        // Within this task: a library does not spawn.
        join_all(rounds).await;
        self.status()
    }

    /// Runs one round for one target, due or not. `None` if there is no such target.
    pub async fn publish_to(&self, name: &str, desired: &Desired) -> Option<TargetStatus> {
        let target = self.targets.get(name)?;
        self.round(name, target, desired).await;
        let status = target.status.lock().clone();
        Some(status)
    }

    /// Makes the target with this name receive everything again now, for example because its pod was
    /// replaced.
    pub async fn distrust(&self, name: &str) {
        if let Some(target) = self.targets.get(name) {
            target.publisher.distrust().await;
            let mut status = target.status.lock();
            status.due = self.clock.now();
            status.health = Health::Unknown;
        }
    }

    async fn round(&self, name: &str, target: &Target, desired: &Desired) {
        let outcome = target.publisher.publish(desired).await;
        let now = self.clock.now();
        let mut status = target.status.lock();
        match outcome {
            Ok(Progress::Converged { revision, .. }) => {
                status.health = Health::Healthy;
                status.revision = revision;
                status.converged_at = Some(now);
                status.failures = 0;
                status.due = now;
                status.error = None;
            }
            Ok(Progress::Waiting { until }) => {
                status.health = Health::Waiting;
                status.due = until;
            }
            Err(error) => {
                tracing::warn!(
                    trustee = name,
                    error = chain(&error),
                    "this target was not reached"
                );
                status.health = health(&error);
                status.due = now.plus_seconds(self.wait(status.failures));
                status.failures = status.failures.saturating_add(1);
                status.error = Some(chain(&error));
            }
        }
        status.lag = desired.revision().saturating_sub(status.revision);
    }

    /// Seconds to wait after this many earlier failures.
    fn wait(&self, failures: u32) -> i64 {
        let delay = self.retry.delay(failures, &mut EntropyRng::new(&*self.entropy));
        let whole = delay.unwrap_or(self.retry.cap).as_millis().div_ceil(1000);
        i64::try_from(whole).unwrap_or(i64::MAX).max(1)
    }
}

fn health(error: &PortError) -> Health {
    if error.is_retryable() { Health::Failing(error.kind()) } else { Health::Broken(error.kind()) }
}
