//! How registries are talked to.

use std::collections::BTreeSet;

use crate::credentials::Credentials;
use crate::document::Platform;
use crate::mirror::Mirror;

/// How registries are talked to.
#[derive(Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "built field by field by programs")]
pub struct RegistryOptions {
    /// Pull secrets.
    pub credentials: Credentials,
    /// Other places of images, which are asked first.
    pub mirrors: Vec<Mirror>,
    /// CAs in addition to those of the platform, DER.
    pub roots: Vec<Vec<u8>>,
    /// Hosts, with their ports, that are talked to without TLS.
    pub dangerous_plain_http: BTreeSet<String>,
    /// Which image of an index is taken.
    pub platform: Platform,
}
