//! The parts of an operator other than the controllers of [`tec_k8s::controller`].
//!
//! ```text
//!   tec_k8s::controller::Operator ◄─ Parts
//!       trust:  FedTrust ──────── desired state ─► Trustees: admin API, or files in their pods
//!       labels: RegistryLabels ── values in an image's label
//!       tags:   RegistryTags ──── where a followed tag points to
//!       maker:  Maker ─────────── what the cluster's own Trustee starts with
//! ```
//!
//! *What it is*: the code that connects tec-k8s, tec-trustee and tec-tpm. An operator of your own uses these
//! parts, or implements [`Trust`](tec_k8s::controller::Trust),
//! [`LabelReader`](tec_k8s::controller::LabelReader), [`TagReader`](tec_k8s::controller::TagReader) and
//! [`TrusteeMaker`](tec_k8s::controller::TrusteeMaker) itself, one by one.
//!
//! *What it is not*: a program; `bins/operator` is one.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod labels;
mod maker;
mod tags;
mod target;
mod trust;
mod volumes;

pub use self::labels::RegistryLabels;
pub use self::maker::Maker;
pub use self::tags::RegistryTags;
pub use self::trust::FedTrust;
