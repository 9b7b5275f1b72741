//! How registries are accessed.

use std::collections::BTreeSet;

use crate::credentials::Credentials;
use crate::document::Platform;
use crate::mirror::Mirror;

/// How registries are accessed.
#[derive(Debug, Default)]
pub struct RegistryOptions {
    /// Pull secrets.
    pub credentials: Credentials,
    /// Mirrors, which are tried first.
    pub mirrors: Vec<Mirror>,
    /// CAs in addition to those of the platform, DER.
    pub roots: Vec<Vec<u8>>,
    /// Hosts, with their ports, that are accessed without TLS.
    pub dangerous_plain_http: BTreeSet<String>,
    /// Platform whose image is taken from an index.
    pub platform: Platform,
}
