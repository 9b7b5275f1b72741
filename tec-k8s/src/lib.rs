//! Trusted Execution Clusters on Kubernetes.
//!
//! *What it is*: the custom resources of the group `trusted-execution-clusters.io`, with the names,
//! fields and rules that existing clusters use, and what they mean in terms of
//! [`tec_core`].
//!
//! *What it is not*: it talks to no API server and reconciles nothing; that comes with the features
//! `client` and `controller`, which do not exist yet. It picks no version of the Kubernetes API: the
//! binary that links it enables one of `k8s-openapi`'s version features.
//!
//! ```text
//!   object in the cluster ──► api::Machine, api::AttestationKey, api::ApprovedImage
//!                               │ to_core, with typed errors        ▲ from_core
//!                               ▼                                   │
//!                             tec_core::machine::Machine, ak::AkRecord, image::ApprovedImage
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "api")]
pub mod api;
#[cfg(feature = "service")]
pub mod service;
