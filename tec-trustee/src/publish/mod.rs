//! Publishing: reconciles any number of Trustees with one desired state (Trustee, KBS configuration; Trustee,
//! KBS admin API).
//!
//! ```text
//!            Desired ── plan(desired, record) ─► steps, only of what changed
//!               │
//!    Fanout ────┼─► BrokerPublisher ─► KeyBroker: AdminApi of a remote Trustee, or any other
//!   (N targets) └─► MountedPublisher ─► MountedTarget: ConfigMaps, Secrets, one patch of the pod
//! ```
//! *What it is*: level-triggered. A publisher compares what is desired with what it knows to be there, and
//! applies the difference: policies first, then what is withdrawn, then what is new. Anything that it sent
//! without getting an answer is in doubt, and is sent again. A target that lost its state receives
//! everything; a publisher that was restarted reads what is there and sends the differences. Items that are
//! no longer desired are found and withdrawn.
//!
//! *What it is not*: it decides nothing about machines, waits for nothing, and holds no Kubernetes client.
//! [`Fanout`] and [`Desired::changed`] show when to call again; the program makes the calls.
//!
//! # Entry points
//! | when | call | cost |
//! |---|---|---|
//! | start | [`Desired::from_intent`], then state all that registries hold, then the first round | |
//! | a key is approved or revoked | [`Desired::bind_key`], [`Desired::unbind_key`] | O(log n), no I/O |
//! | a machine gets a disk key or is deleted | [`Desired::put_secret`], [`Desired::remove_secret`] | O(log n), no I/O |
//! | images change | [`Desired::set_pcr`] for each register that counts, even without values | O(log n), no I/O |
//! | something changed, or a target is due | [`Fanout::publish_to`], in a task for each target | O(changes); after a restart one request for 128 items |
//! | the pod of a Trustee is ready | [`Fanout::publish_to`], which detects whether it kept its state | |
//! | occasionally | [`BrokerPublisher::refresh`] with a part of all items | that part |
//!
//! The mounted form is rendered as a whole for each round, which is why changes are gathered; only the
//! differences are written.
//!
//! # One publisher for each Trustee
//! Overlapping rounds of two publishers for one Trustee overwrite each other's notes. Elect a leader.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
//! use std::sync::Arc;
//! use tec_core::testing::{MemoryBroker, SeededEntropy, sample};
//! use tec_trustee::publish::{BrokerPublisher, Desired, Progress, Publisher};
//! let desired = Desired::new("package policy", "package policy");
//! desired.bind_key(&sample::public_key(1), &sample::machine_id(1))?;
//! desired.put_secret(sample::secret_path(1), sample::secret(1));
//!
//! let trustee = Arc::new(MemoryBroker::new());
//! let publisher = BrokerPublisher::new(Arc::clone(&trustee) as _,
//! Arc::new(SeededEntropy::new(1))); assert!(matches!(publisher.publish(&desired).await?,
//! Progress::Converged { .. })); assert!(trustee.resource(&sample::secret_path(1)).is_some());
//!
//! desired.remove_secret(&sample::secret_path(1));
//! publisher.publish(&desired).await?;
//! assert!(trustee.resource(&sample::secret_path(1)).is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admin;
mod broker;
mod desired;
mod fanout;
mod index;
mod item;
mod mounted;
mod plan;
mod record;
#[cfg(test)]
#[cfg(feature = "kbs")]
mod tests;

use std::fmt;

use async_trait::async_trait;
use tec_core::port::PortError;
use tec_core::time::Timestamp;

pub use self::admin::{
    AdminApi, AdminError, AdminKey, AdminKeyFormatError, AdminSetupError, MAX_TOKEN_SECONDS,
};
pub use self::broker::BrokerPublisher;
pub use self::desired::{Desired, DesiredError};
pub use self::fanout::{Fanout, Health, TargetStatus};
pub use self::item::{ParseItemError, ReferenceName};
pub use self::mounted::{
    Change, Debounce, Form, Layout, Mount, MountedPublisher, MountedTarget, Object, Observed,
    Patch, Pod, RESTART_ANNOTATION, RenderError, Volume, render,
};

/// How far a call of [`Publisher::publish`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The target holds what is desired.
    Converged {
        /// Number of changes that this call made; 0 if there was nothing to do.
        changes: usize,
        /// Number of the latest change that the target has; later ones are for the next call.
        revision: u64,
    },
    /// Changes are being gathered first.
    Waiting {
        /// When to call again.
        until: Timestamp,
    },
}

/// Reconciles one target with the desired state.
///
/// *Contract*: level-triggered and idempotent; each call starts from what the target holds, as far as that
/// can be known. An error leaves the target between two states, and the next call continues from there;
/// [`PortError::is_retryable`] tells whether waiting alone may help.
///
/// # Cancel safety
/// Every await may be the last.
#[async_trait]
pub trait Publisher: fmt::Debug + Send + Sync {
    /// Runs one round.
    async fn publish(&self, desired: &Desired) -> Result<Progress, PortError>;

    /// Discards everything known about the target: the next round sends everything again.
    async fn distrust(&self);
}
