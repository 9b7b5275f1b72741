//! A key service and its store, in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use tec_core::digest::Sha256Digest;
use tec_core::port::{CreateOutcome, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use crate::derive::DataKeyId;
use crate::envelope::{KeyWrapper, WrappedKeys};

/// Stores what it wraps, and returns its digest instead.
#[derive(Debug, Default)]
pub struct MemoryKeyService(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    plain: BTreeMap<Vec<u8>, SecretBytes>,
    wrapped: BTreeMap<DataKeyId, Vec<u8>>,
}

impl MemoryKeyService {
    /// An empty key service.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl KeyWrapper for MemoryKeyService {
    async fn wrap(&self, _id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, PortError> {
        let name = Sha256Digest::of(plain.expose("name it")).as_bytes().to_vec();
        let copy = plain.duplicate("the service keeps it");
        self.0.lock().plain.insert(name.clone(), copy);
        Ok(name)
    }

    async fn unwrap(&self, _id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, PortError> {
        let state = self.0.lock();
        let plain = state.plain.get(wrapped);
        plain
            .map(|plain| plain.duplicate("it was wrapped here"))
            .ok_or_else(|| PortError::new(PortErrorKind::Invalid, "unwrap a data key"))
    }
}

#[async_trait]
impl WrappedKeys for MemoryKeyService {
    async fn find(&self, id: &DataKeyId) -> Result<Option<Vec<u8>>, PortError> {
        Ok(self.0.lock().wrapped.get(id).cloned())
    }

    async fn add(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<CreateOutcome, PortError> {
        let mut state = self.0.lock();
        if state.wrapped.contains_key(id) {
            return Ok(CreateOutcome::Existed);
        }
        state.wrapped.insert(id.clone(), wrapped.to_vec());
        Ok(CreateOutcome::Created)
    }
}
