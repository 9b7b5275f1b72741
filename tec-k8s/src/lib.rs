//! Trusted Execution Clusters on Kubernetes.
//!
//! *What it is*: the custom resources of the group `trusted-execution-clusters.io`, with the names, fields
//! and rules that existing clusters use, and their mapping to [`tec_core`]. The feature `client` adds the
//! ports of tec-core over an API server, `server` the servers' view of the cluster, and
//! `controller` the controllers of an operator.
//!
//! *What it is not*: it knows no Trustee; `tec-operator` brings the two together. The bootstrap of nodes is
//! in `tec-node`, that of a platform's services in `tec-services`. It picks neither a version of the Kubernetes API nor a TLS provider: the binary that links
//! it does.
//!
//! ```text
//!   object in the cluster ──► api::Machine, api::AttestationKey, api::ApprovedImage
//!                               │ to_core, with typed errors        ▲ from_core
//!                               ▼                                   │
//!                             tec_core::machine::Machine, ak::AkRecord, image::ApprovedImage
//! ```
//!
//! # Example
//! ```
//! # #[cfg(feature = "api")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tec_k8s::api::Machine;
//! let object: Machine = serde_json::from_value(serde_json::json!({
//!     "apiVersion": "trusted-execution-clusters.io/v1alpha1",
//!     "kind": "Machine",
//!     "metadata": {
//!         "name": "machine-7c9e6679-7425-40de-944b-e07fc1f90ae7",
//!         "creationTimestamp": "2026-11-23T12:00:00Z",
//!     },
//!     "spec": { "id": "7c9e6679-7425-40de-944b-e07fc1f90ae7" },
//! }))?;
//! assert_eq!(object.to_core()?.id.to_string(), "7c9e6679-7425-40de-944b-e07fc1f90ae7");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "api"))]
//! # fn main() {}
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

/// The Kubernetes API types in this crate's public interface. The program that links this crate chooses the
/// version of the API with a feature, for example `v1_33`.
#[cfg(feature = "api")]
pub use k8s_openapi;
/// The client in this crate's public interface.
#[cfg(feature = "api")]
pub use kube;

#[cfg(feature = "api")]
pub mod api;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "controller")]
pub mod controller;
#[cfg(feature = "render")]
pub mod render;
#[cfg(feature = "server")]
pub mod server;
pub mod signal;
