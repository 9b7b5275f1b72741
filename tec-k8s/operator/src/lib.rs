//! The parts of an operator other than the controllers of [`tec_k8s::controller`].
//!
//! ```text
//!   tec_k8s::controller::Operator ◄─ Parts
//!       trust:  FedTrust ──────── desired state ─► Trustees: admin API, or files in their pods
//!       labels: Registries ────── values in an image's label
//!       tags:   Registries ────── where a followed tag points to
//! ```
//!
//! *What it is*: the code that connects tec-k8s, tec-trustee and tec-tpm. An operator of your own uses these
//! parts, or implements [`Trust`](tec_k8s::controller::Trust), [`LabelReader`](tec_k8s::controller::LabelReader)
//! and [`TagReader`](tec_k8s::controller::TagReader) itself, one by one. It chooses the TLS provider, and brings
//! its own [`TrusteeMaker`](tec_k8s::controller::TrusteeMaker), which issues certificates.
//!
//! *What it is not*: a program; `bins/operator` is one, with its own `TrusteeMaker`.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod registries;
mod target;
mod trust;
mod volumes;

pub use self::config::trustee_config;
pub use self::registries::Registries;
pub use self::trust::FedTrust;
