//! The controller beside a vault: brings it up, keeps it as it shall be, and serves those who
//! bootstrap from it.
//!
//! *What it is*: the loop around the plans of [`tec_core::service::vault`], and the gRPC server of
//! [`tec_k8s::service`] with a certificate that the vault issued.
//!
//! *What it is not*: a place of decisions.

pub mod accounts;
mod authority;
pub mod cli;
pub mod compose;
pub mod controller;
pub mod disk;
pub mod export;
pub mod guard;
pub mod health;
pub mod passwords;
pub mod peers;
pub mod sealing;
pub mod show;
