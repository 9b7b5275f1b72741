//! Init containers: ask the controller beside the vault with the pod's own token, write what the service
//! needs to a volume shared with it, and exit.
//!
//! *What it is*: a caller with retries, and files that are either whole or absent; the last of them,
//! `.complete`, holds the digest of the others, so that a half-written volume is never mistaken for a
//! complete one. With `--keep`, it stays beside the service and renews only the certificate. *What it is
//! not*: a reader of what it wrote.

pub mod cli;
pub mod connect;
pub mod heal;
pub mod output;
pub mod own_key;
pub mod run;
