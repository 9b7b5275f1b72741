//! A key broker that stores what it is given.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use parking_lot::Mutex;

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

    /// A copy of the resource at `path`.
    pub fn resource(&self, path: &ResourcePath) -> Option<SecretBytes> {
        self.0.lock().resources.get(path).map(|secret| secret.duplicate("a test looks at it"))
    }

    /// The policy in a slot.
    pub fn policy(&self, slot: PolicySlot) -> Option<String> {
        self.0.lock().policies.get(&slot).cloned()
    }

    /// All reference values by name, revoked ones as `null`.
    pub fn reference_values(&self) -> BTreeMap<String, serde_json::Value> {
        self.0.lock().reference_values.clone()
    }
}

#[async_trait]
impl KeyBroker for MemoryBroker {
    async fn put(&self, path: &ResourcePath, secret: &SecretBytes) -> Result<(), PortError> {
        let copy = secret.duplicate("the broker keeps it");
        self.0.lock().resources.insert(path.clone(), copy);
        Ok(())
    }

    async fn remove(&self, path: &ResourcePath) -> Result<(), PortError> {
        self.0.lock().resources.remove(path);
        Ok(())
    }

    async fn list(&self) -> Result<Option<Vec<ResourcePath>>, PortError> {
        Ok(Some(self.0.lock().resources.keys().cloned().collect()))
    }

    async fn set_policy(&self, slot: PolicySlot, rego: &str) -> Result<(), PortError> {
        self.0.lock().policies.insert(slot, rego.to_owned());
        Ok(())
    }

    async fn set_reference_value(
        &self,
        name: &str,
        value: &serde_json::Value,
    ) -> Result<(), PortError> {
        self.0.lock().reference_values.insert(name.to_owned(), value.clone());
        Ok(())
    }

    async fn reference_value(&self, name: &str) -> Result<Option<serde_json::Value>, PortError> {
        Ok(self.0.lock().reference_values.get(name).cloned())
    }
}
