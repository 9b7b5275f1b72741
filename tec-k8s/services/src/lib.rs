//! Bootstrap of a platform's services from nothing but Kubernetes service-account tokens: a vault
//! (OpenBao), NATS, OpenSearch, components and telemetry.
//!
//! *What it is*: the decisions, without I/O. [`vault`] brings a vault up, keeps it unsealed, and
//! defines its content; [`nats`] creates operator, account and user JWTs and server configuration;
//! [`opensearch`] creates the files of the security plugin; [`telemetry`] the configuration of
//! collectors; [`caller`] defines who may call what, and what a refusal means.
//!
//! *What it is not*: a program. [`shell`] (feature `shell`) carries the decisions out; the programs
//! `services-bootstrap`, `services-init` and `services-broker` compose it.
//!
//! ```text
//!   controller:  vault::BringUp ──► vault::Converge ──► gRPC server with a certificate of the vault
//!   caller:      service-account token ──► vault login ──► certificate, JWT, password
//!                   nats::ServerConfig     opensearch::SecurityFiles     telemetry::Collector
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
pub mod caller;
mod fatal;
#[cfg(feature = "shell")]
mod generated;
pub mod nats;
pub mod opensearch;
pub mod pace;
mod rate;
#[cfg(feature = "shell")]
pub mod shell;
pub mod telemetry;
pub mod tls;
pub mod vault;

pub use self::fatal::Fatal;
pub use self::rate::Rates;
