//! Bootstrapping a node: initializing a cluster, joining one, and recovering the node's disk.
//!
//! ```text
//!  Init request ──► init::InitPlan ──┐
//!                                    ├─► NodeLock: one winner, once ──► LockedNode ──► kubeadm
//!  join ticket ───► join::JoinPlan ──┘        │
//!                                             └─ BootstrapMarker: PCR 15, event of the cluster id
//!  Recover, rejoin ─► recover::RecoverPlan ──► the state disk opens, the marker is set again
//! ```
//!
//! *What it is*: derivation of keys and IDs ([`derive`](mod@derive)), keys wrapped by a key service
//! ([`envelope`]), the URIs that locate keys and storage ([`uri`]), the one-way lock ([`lock`]), tickets and
//! who may get one ([`ticket`], [`grant`]), the procedures as [plans](crate::plan::Plan), and [`drive`],
//! which carries out their effects over [ports](port).
//!
//! *What it is not*: it runs no program, opens no disk and talks to no cluster; that is up to the
//! implementations of the ports.

pub mod derive;
pub mod drive;
pub mod envelope;
pub mod grant;
pub mod init;
pub mod join;
pub mod journal;
pub mod lock;
pub mod metadata;
pub mod port;
pub mod recover;
pub mod state;
pub mod ticket;
pub mod uri;
