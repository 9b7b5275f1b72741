//! Init containers: ask the controller beside the vault with the pod's own token, write what the
//! service needs to the volume that they share, and end.
//!
//! *What it is*: a caller with retries, and files that are whole or absent; the last of them,
//! `.complete`, holds the digest of the others, so that a half-written volume is never taken for a
//! finished one. With `--keep` it stays beside the service, and renews the certificate alone. *What it
//! is not*: a reader of what it wrote.

pub mod cli;
pub mod connect;
pub mod output;
pub mod own_key;
pub mod run;
