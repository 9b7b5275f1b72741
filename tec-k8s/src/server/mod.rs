//! What the servers that nodes reach know of the cluster, so that a request costs one write.
//!
//! ```text
//!   watch of clusters ──────► ClusterView ─► which config nodes get, who may register
//!   watch of machines, keys ► Intake ──────► which machine waits, which key is known
//!                               └── what it does not know yet is asked for, by name
//!   watch of images ────────► WatchedImages ► which boots a key broker admits
//! ```
//! *What it is*: knowledge that may be some moments old. Registration does not depend on it being
//! fresh: names of objects make a second one impossible, and only the operator binds keys, by compare
//! and swap. [`WatchedImages`] says for how long it believes a watch.
//! *What it is not*: a cache of objects. Of each machine and key some ten words are kept.

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
