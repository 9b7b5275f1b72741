//! A key broker that stores what it is given.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::id::ResourcePath;
use crate::port::{KeyBroker, PolicySlot, PortError};
use crate::secret::SecretBytes;

#[derive(Debug, Default)]
struct State {
    resources: BTreeMap<ResourcePath, SecretBytes>,
    policies: HashMap<PolicySlot, String>,
    reference_values: BTreeMap<String, serde_json::Value>,
}

/// A [`KeyBroker`] in memory, whose content a test can inspect.
#[derive(Debug, Default)]
pub struct MemoryBroker(Mutex<State>);

impl MemoryBroker {
    /// An empty broker.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the resource at `path`.
    pub fn resource(&self, path: &ResourcePath) -> Option<SecretBytes> {
        self.state().resources.get(path).map(|secret| secret.duplicate("a test looks at it"))
    }

    /// The policy in a slot.
    pub fn policy(&self, slot: PolicySlot) -> Option<String> {
        self.state().policies.get(&slot).cloned()
    }

    /// All reference values by name, revoked ones as `null`.
    pub fn reference_values(&self) -> BTreeMap<String, serde_json::Value> {
        self.state().reference_values.clone()
    }
}

#[async_trait]
impl KeyBroker for MemoryBroker {
    async fn put(&self, path: &ResourcePath, secret: &SecretBytes) -> Result<(), PortError> {
        let copy = secret.duplicate("the broker keeps it");
        self.state().resources.insert(path.clone(), copy);
        Ok(())
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        self.state().resources.remove(path);
        Ok(())
    }

    async fn list(&self) -> Result<Option<Vec<ResourcePath>>, PortError> {
        Ok(Some(self.state().resources.keys().cloned().collect()))
    }

    async fn set_policy(&self, slot: PolicySlot, rego: &str) -> Result<(), PortError> {
        self.state().policies.insert(slot, rego.to_owned());
        Ok(())
    }

    async fn set_reference_value(
        &self,
        name: &str,
        value: &serde_json::Value,
    ) -> Result<(), PortError> {
        self.state().reference_values.insert(name.to_owned(), value.clone());
        Ok(())
    }

    async fn reference_value(&self, name: &str) -> Result<Option<serde_json::Value>, PortError> {
        Ok(self.state().reference_values.get(name).cloned())
    }
}
