//! How nodes learn of an additional CA for the server that they pin, and report which CAs they trust.
//!
//! ```text
//! GET authorities ─► the CA certificates that nodes should trust for this server
//!                    (over TLS that the pinned CA vouches for; the node rewrites its pin)
//! PUT authorities ─► after an attestation: the CAs that the node's disk now trusts
//! ```
//! Trustee has no such paths; the guard answers them itself. A node of another implementation neither asks
//! nor reports, and so delays a replacement of the CA ([`tec_core::rollover`]).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;

/// Name of the path, below the base path.
pub const PLACE: &str = "authorities";
/// Largest body in bytes, in either direction.
pub const MAX_BODY: usize = 64 * 1024;

/// Reply to `GET authorities`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    /// PEM.
    pub certificates: String,
}

/// Body of `PUT authorities`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trusts {
    /// SHA-256 digests of the CA certificates (DER) that the pin trusts for this server.
    pub sha256: BTreeSet<Sha256Digest>,
}

/// Reply to `PUT authorities`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {}
