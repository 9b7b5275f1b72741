//! Bootstrap of nodes: an instance becomes a node of a cluster, by init when an admin asks for it or by join
//! if there is a cluster. Whichever comes first wins, once.
//!
//! ```text
//!   recover: marker unset, disk not new ─► Recover on :9999 ─┬─► disk mapped, marker set again
//!                                          rejoin tickets ───┘
//!   run:     marker set ───────────────────────────────────────► kubelet, nothing else
//!            marker unset ─► Init on :9000 ──┐
//!                            join client ────┴─ NodeLock ─► kubeadm, kubelet ─► exit 0
//! ```
//!
//! | feature | modules | for |
//! |---|---|---|
//! | (none) | [`derive`](mod@derive), [`envelope`], [`uri`], [`lock`], [`ticket`], [`grant`], [`init`], [`join`], [`recover`], [`drive`], [`port`] | the rules: what may happen and in which order, without I/O |
//! | `atls` | [`atls`] | connections whose ends prove what they are |
//! | `marker` | [`TpmMarker`] | PCR 15 as the marker of a cluster |
//! | `rpc` | [`rpc`], [`plane`] | the services Init, Join and Recover, and their clients; tickets of admins |
//! | `host` | [`host`] | the state disk, files, kubeadm, key services, metadata |
//! | `aws` | in [`host`] | key service and buckets of AWS |
//! | `experimental-clouds` | in [`host`] | key services and buckets of Azure and Google Cloud |
//! | `member` | [`member`] | what the join service keeps in the cluster |
//! | `test-util` | [`testing`] | doubles, and the suites of key services |
//!
//! *What it is*: keys and IDs derived ([`derive`](mod@derive)), keys wrapped by a key service ([`envelope`]),
//! the URIs that locate keys and storage ([`uri`]), the one-way lock ([`lock`]), tickets and who may get one
//! ([`ticket`], [`grant`]), the procedures as [plans](tec_core::plan::Plan), [`drive`], which carries out
//! their effects over [ports](port), and implementations of those ports. *What it is not*: a program. The programs
//! `bootstrapper` and `join-service` put the parts together.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "atls")]
pub mod atls;
pub mod derive;
pub mod drive;
pub mod envelope;
#[cfg(feature = "rpc")]
mod generated;
pub mod grant;
#[cfg(feature = "host")]
pub mod host;
pub mod init;
pub mod join;
pub mod journal;
pub mod lock;
#[cfg(feature = "marker")]
mod marker;
#[cfg(feature = "member")]
pub mod member;
pub mod metadata;
#[cfg(feature = "rpc")]
pub mod plane;
pub mod port;
pub mod recover;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod state;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
pub mod ticket;
pub mod uri;

#[cfg(feature = "marker")]
pub use self::marker::TpmMarker;
