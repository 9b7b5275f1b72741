//! Nodes of a cluster, managed by an admin: init, join, recovery, and what a node proves.
//!
//! ```text
//!   init     evidence of the node ─► Init with progress ─► kubeconfig
//!   recover  evidence of each node ─► Recover, or only a try of its keys
//!   verify   evidence of a node ─► every check, with what was found
//!   join     on the node itself: what it has and finds, or the join
//! ```

mod args;
mod asking;
mod init;
mod join;
mod keys;
mod reach;
mod recover;
mod request;
mod verify;

pub(crate) use self::args::cluster_id;
pub(crate) use self::init::{InitArgs, init};
pub(crate) use self::join::{JoinArgs, join};
pub(crate) use self::recover::{RecoverArgs, recover};
pub(crate) use self::verify::{VerifyArgs, verify};
