//! Makes an instance a node of a cluster: by init, when somebody asks for it, or by join, when a
//! cluster is there. Whichever comes first wins, once.
//!
//! ```text
//!   recover: marker unset, disk not new ─► Recover on :9999 ─┬─► disk mapped, marker set again
//!                                          rejoin tickets ───┘
//!   run:     marker set ───────────────────────────────────────► kubelet, and that is all
//!            marker unset ─► Init on :9000 ──┐
//!                            join client ────┴─ NodeLock ─► kubeadm, kubelet ─► exit 0
//! ```
//!
//! *What it is not*: a library of policies; those are in [`tec_core::node`], and what acts on the
//! host in [`tec_k8s::node`]. The join service is [`admission`]; both share [`transport`] and
//! [`authority`].

pub mod admission;
pub mod authority;
pub mod azure;
pub mod cleaner;
pub mod cli;
pub mod components;
pub mod discover;
pub mod founder;
pub mod gate;
pub mod identity;
pub mod kept;
pub mod keys;
pub mod mapping;
pub mod node;
pub mod pause;
pub mod recover;
pub mod run;
pub mod secret;
pub mod settings;
pub mod survey;
pub mod transport;
pub mod trust;
