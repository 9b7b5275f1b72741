//! Bootstraps services from nothing but a service account token: the programs `services-bootstrap`,
//! `services-init` and `services-broker`, as libraries.
//!
//! ```text
//!   bootstrap: controller beside a vault  ◄──gRPC──  init: files for NATS, OpenSearch, telemetry
//!                                         ◄──gRPC──  broker: sidecar of a component
//! ```

pub mod bootstrap;
pub mod broker;
pub mod init;
