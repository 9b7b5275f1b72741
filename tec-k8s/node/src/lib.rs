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
//! | `rpc` | [`rpc`] | the services Init, Join and Recover, and their clients |
//! | `host` | [`host`] | the state disk, files, kubeadm, key services, metadata |
//! | `aws` | in [`host`] | key service and buckets of AWS |
//! | `experimental-clouds` | in [`host`] | key services and buckets of Azure and Google Cloud |
//! | `member` | [`member`] | what the join service keeps in the cluster |
//! | `instance` | [`instance`], [`admission`] | the parts assembled, as the programs run them |
//!
//! *What it is not*: policies. [`tec_core::node`] decides what may happen, and in which order; attested TLS
//! is `tec_tpm::atls`. The parts of the program `bootstrapper` are in [`instance`], those of `join-service`
//! in [`admission`].
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "instance")]
pub mod admission;
#[cfg(feature = "rpc")]
mod generated;
#[cfg(feature = "host")]
pub mod host;
#[cfg(feature = "instance")]
pub mod instance;
#[cfg(feature = "member")]
pub mod member;
#[cfg(feature = "rpc")]
pub mod rpc;
