//! Bootstrap of nodes over gRPC (feature `rpc`).
//!
//! ```text
//!  CLI ── Init ───────────► InitService ──── drive_init ──► ports of tec_core::node
//!  CLI ── Recover ────────► RecoverService ─ tries the key on the disk, then hands it on
//!  node, TicketClient ────► JoinService ──── grant ──► keys, token, certificate, files
//! ```
//!
//! *What it is not*: a transport. Connections come attested from elsewhere, with a [`Caller`] among
//! the extensions of each request; a service that needs one refuses whoever has none.
//!
//! Callers are told a code of gRPC, a sentence and a [`Reason`]; what failed inside goes to the log.
//! Who proved that it may init hears of each step, too, and after a failure gets the log.

mod caller;
mod client;
mod convert;
mod init;
mod join;
mod reason;
mod recover;
mod watch;

/// Messages and services.
pub mod generated {
    pub use crate::generated::init;
    pub use crate::generated::join;
    pub use crate::generated::recoverproto;
}

pub use self::caller::Caller;
pub use self::client::Dial;
pub use self::client::Reached;
pub use self::client::RejoinClient;
pub use self::client::TicketClient;
pub use self::convert::OlderMasterSecret;
pub use self::convert::ticket_from_bytes;
pub use self::convert::ticket_to_bytes;
pub use self::init::AdmittedInit;
pub use self::init::InitService;
pub use self::init::InitServicePorts;
pub use self::init::NodeLog;
pub use self::init::SecretCheck;
pub use self::init::derived_cluster;
pub use self::join::ClusterFacts;
pub use self::join::ControlPlaneTurns;
pub use self::join::Enrollments;
pub use self::join::JoinService;
pub use self::join::JoinServicePorts;
pub use self::join::KubeletSigner;
pub use self::join::NodeStanding;
pub use self::join::Settled;
pub use self::reason::Reason;
pub use self::recover::RecoverService;
pub use self::recover::RecoveredKeys;
pub use self::watch::Progress;
pub use self::watch::Watcher;

#[cfg(test)]
mod tests;
