//! What the operator does, as one future that a program drives.
//!
//! ```text
//!   watches ─► caches ─► queue ─► cluster   Deployments, Services, … from `render`
//!                          │      machine   disk key, once; facts for the Trustees
//!                          │      key       decision, binding, Secret of the key
//!                          │      image     measurements: label, or a Job
//!                          │      follow    tags: approves new images, revokes old ones
//!                          └─────► sync ──► Trust: every Trustee holds what it should
//!   AttestationRecords ─► status of machines
//!                      └─► untrusted ─► taints and quarantines, if the cluster object asks for them
//! ```
//! *What it is*: level-triggered. Each object is reconciled when something about it changes, and whatever is
//! missing is done; doing it again changes nothing. An object that fails is retried after a growing delay and
//! does not delay others.
//!
//! *What it is not*: it knows no Trustee and no image registry. The program supplies them as [`Trust`],
//! [`LabelReader`] and [`TagReader`].
//!
//! # Order
//! Nothing is published before every existing machine has been reconciled, because publishing removes
//! whatever is not desired.
//!
//! # Cancel safety
//! May be dropped at any await.

mod attempt;
mod authority;
mod broker;
mod cache;
mod certificate;
mod child;
mod cluster;
mod context;
mod endorsement;
mod files;
mod follow;
mod image;
mod job;
mod key;
mod lease;
mod machine;
mod managed;
mod metrics;
mod parts;
mod pinned;
mod queue;
mod record;
mod report;
mod rollout;
mod run;
mod summary;
mod sweep;
mod sync;
mod token;
mod trust;
mod untrusted;

pub use self::metrics::Metrics;
pub use self::parts::Parts;
pub use self::run::{Health, Operator, OperatorError};
pub use self::trust::{
    AdminPair, CertificatePair, LabelReader, Published, Round, SignerFiles, TagReader, Trust,
    TrusteeMaker,
};
