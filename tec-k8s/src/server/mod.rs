//! What the servers that nodes reach know about the cluster, so that a request costs one write.
//!
//! ```text
//!   watch of clusters ──────► ClusterView ─► which config nodes get, who may register
//!   watch of machines, keys ► Intake ──────► which machine waits, which key is known
//!                               └── unknown objects are requested by name
//!   watch of images ────────► WatchedImages ► which boots a key broker admits
//! ```
//! *What it is*: knowledge that may be a few moments old. Registration does not depend on current knowledge:
//! object names rule out duplicates, and only the operator binds keys, by compare-and-swap. [`WatchedImages`]
//! documents how long it trusts a watch. *What it is not*: a cache of objects. About ten words are kept for
//! each machine and key.

mod cluster;
mod images;
mod intake;
mod known;
mod submit;
mod watch;

pub use self::cluster::{ClusterView, owner_of};
pub use self::images::WatchedImages;
pub use self::intake::Intake;
pub use self::known::Known;
pub use self::submit::SubmitOnly;
