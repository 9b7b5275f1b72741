//! The key broker as a receiver of data: a Trustee KBS or the embedded broker.

use std::fmt;

use async_trait::async_trait;
#[cfg(any(test, feature = "test-util"))]
use mockall::automock;

use super::PortError;
use crate::id::ResourcePath;
use crate::secret::SecretBytes;

/// A policy of a key broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PolicySlot {
    /// Turns evidence into a verdict on the machine (`default_cpu` in Trustee).
    Attestation,
    /// Decides whether a verdict allows access to a resource.
    Resource,
}

/// Receives keys, policies and reference values.
///
/// *Contract*: every call is idempotent and sets the whole value; removing something that is already gone
/// succeeds. Policies must be set before secrets are put, since a broker's own defaults may be lax.
/// *Conformance suite*: [`testing::key_broker`](crate::testing::key_broker).
#[cfg_attr(any(test, feature = "test-util"), automock)]
#[async_trait]
pub trait KeyBroker: fmt::Debug + Send + Sync {
    /// Stores or replaces a resource.
    async fn put(&self, path: &ResourcePath, secret: &SecretBytes) -> Result<(), PortError>;

    /// Removes a resource.
    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError>;

    /// Paths that the broker holds; `None` if it cannot list them.
    async fn list(&self) -> Result<Option<Vec<ResourcePath>>, PortError>;

    /// Sets a policy, in Rego.
    async fn set_policy(&self, slot: PolicySlot, rego: &str) -> Result<(), PortError>;

    /// Sets a reference value; JSON `null` revokes it.
    async fn set_reference_value(
        &self,
        name: &str,
        value: &serde_json::Value,
    ) -> Result<(), PortError>;

    /// Reads back a reference value; `None` if there is none.
    async fn reference_value(&self, name: &str) -> Result<Option<serde_json::Value>, PortError>;
}
