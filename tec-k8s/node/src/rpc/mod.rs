//! Bootstrap of nodes over gRPC (feature `rpc`).
//!
//! ```text
//!  CLI ── Init ───────────► InitService ──── drive_init ──► ports of crate
//!  CLI ── Recover ────────► RecoverService ─ tries the key on the disk, then hands it on
//!  node, TicketClient ────► JoinService ──── grant ──► keys, certificate, files
//!        Endorser ────────► Endorsements, if no setting lists the attestation key
//! ```
//!
//! *What it is not*: a transport. Connections arrive already attested, with a [`Caller`] among the extensions
//! of each request; a service that needs one refuses requests without it.
//!
//! Callers receive a gRPC code, a sentence and a [`Reason`]; internal failures go to the log. A caller that
//! proved that it may init also receives each step, and after a failure the log.

mod caller;
mod client;
mod convert;
mod endorse;
mod init;
mod join;
mod plane;
mod reason;
mod recover;
mod refuse;
mod watch;

use std::time::Duration;

/// Messages and services.
pub mod generated {
    pub use crate::generated::{init, join, recoverproto};
}

pub use self::caller::Caller;
pub use self::client::{Dial, Reached, RejoinClient, TicketClient};
pub use self::convert::{ticket_from_bytes, ticket_to_bytes};
pub use self::endorse::{EndorsementPolicy, Endorsements, Endorser, TpmOffer};
pub use self::init::{AdmittedInit, InitService, InitServicePorts, SecretCheck, derived_cluster};
pub use self::join::{
    ClusterFacts, ControlPlaneTurns, Enrollments, JoinService, JoinServicePorts, KubeletSigner,
    NodeStanding, Settled,
};
pub use self::reason::Reason;
pub use self::recover::RecoverService;
pub use self::watch::{Progress, Watcher};

/// Time limit of a call to a join service, which may have to issue a certificate.
const CALL_LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
