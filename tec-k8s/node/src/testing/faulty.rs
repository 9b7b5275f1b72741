//! Deliberate faults of key services.

use async_trait::async_trait;
use tec_core::port::{CreateOutcome, PortError};
use tec_core::secret::SecretBytes;
use tec_core::testing::Faulty;

use crate::derive::DataKeyId;
use crate::envelope::{KeyWrapper, WrappedKeys};

#[async_trait]
impl<T: KeyWrapper> KeyWrapper for Faulty<T> {
    async fn wrap(&self, id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, PortError> {
        self.run("KeyWrapper::wrap", self.inner().wrap(id, plain)).await
    }

    async fn unwrap(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, PortError> {
        self.run("KeyWrapper::unwrap", self.inner().unwrap(id, wrapped)).await
    }
}

#[async_trait]
impl<T: WrappedKeys> WrappedKeys for Faulty<T> {
    async fn find(&self, id: &DataKeyId) -> Result<Option<Vec<u8>>, PortError> {
        self.run("WrappedKeys::find", self.inner().find(id)).await
    }

    async fn add(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<CreateOutcome, PortError> {
        self.run("WrappedKeys::add", self.inner().add(id, wrapped)).await
    }
}
