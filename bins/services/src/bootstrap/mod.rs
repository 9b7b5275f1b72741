//! The controller beside a vault: sets it up, keeps it in its desired state, and serves the services that
//! bootstrap from it.
//!
//! *What it is*: the loop around the plans of [`tec_services::vault`], and the gRPC server of
//! [`tec_services::shell`] with a certificate that the vault issued.
//!
//! *What it is not*: a place where decisions are made.

pub mod accounts;
pub mod archive;
mod authority;
pub mod cli;
pub mod compose;
pub mod controller;
pub mod copy;
pub mod disk;
pub mod export;
pub mod guard;
pub mod health;
mod limited;
pub mod passwords;
pub mod peers;
pub mod restore;
pub mod sealing;
pub mod show;
pub mod snapshots;
