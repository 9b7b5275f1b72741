//! Data keys that cannot be derived: each is random, generated once, and stored wrapped by a key of
//! a key service.
//!
//! ```text
//!  data_key(id) ─► store: there? ──yes──► unwrap ─► is it of this id? ─► key
//!                     │ no                  ▲
//!                     └─► random, wrap ─► store, if still absent
//! ```
//!
//! A wrapped key is bound to its ID, so that someone who can write to the store cannot give one
//! disk the key of another. A key is read back before it is used: no disk depends on a key that was
//! lost on its way to the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tec_core::digest::Sha256Digest;
use tec_core::port::{CreateOutcome, Entropy, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

use super::derive::DataKeyId;
use super::port::DataKeys;

/// Label of the binding to an ID.
const BINDING: &[u8] = b"tec-data-key/1\0";
/// Length of the binding.
const BINDING_LENGTH: usize = 32;
/// Maximum length of a data key in bytes. With its binding it fits into RSA-OAEP with SHA-256 and
/// 2048 bits, the smallest size that key services wrap with (RFC 8017, section 7.1.1: 190 bytes).
pub const MAX_WRAPPED_KEY: usize = 64;

/// Wraps and unwraps with a key that never leaves its service.
///
/// *Contract*: `unwrap` returns what `wrap` was given for the same ID. Anything that was never
/// wrapped with this key fails with kind `Invalid`, and a key that may not be used with `Denied`.
/// *Conformance*: [`testing::key_wrapper`](crate::testing::key_wrapper).
#[async_trait]
pub trait KeyWrapper: fmt::Debug + Send + Sync {
    /// Wraps `plain`. Services that keep a record write the ID into it.
    async fn wrap(&self, id: &DataKeyId, plain: &SecretBytes) -> Result<Vec<u8>, PortError>;

    /// Unwraps a key.
    async fn unwrap(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<SecretBytes, PortError>;

    /// Like [`DataKeys::renew`].
    async fn renew(&self) -> Result<Option<Duration>, PortError> {
        Ok(None)
    }
}

/// Stores wrapped keys by ID.
///
/// *Contract*: `add` is create-if-absent and durable when it returns; of many concurrent calls one
/// is stored. *Conformance*: [`testing::wrapped_keys`](crate::testing::wrapped_keys).
#[async_trait]
pub trait WrappedKeys: fmt::Debug + Send + Sync {
    /// Returns the key that is stored under the ID.
    async fn find(&self, id: &DataKeyId) -> Result<Option<Vec<u8>>, PortError>;

    /// Stores the key, unless one is already stored under the ID.
    async fn add(&self, id: &DataKeyId, wrapped: &[u8]) -> Result<CreateOutcome, PortError>;
}

/// Why a data key cannot be returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The requested length is invalid.
    #[error("a data key must have 1 to {MAX_WRAPPED_KEY} bytes; {0} were requested")]
    Length(usize),
    /// What is stored under the ID was wrapped for another ID, or has another length.
    #[error("the record stored under {0} does not contain the key of {0}")]
    Foreign(DataKeyId),
}

/// Data keys over a key service and a store.
#[derive(Clone, Debug)]
pub struct EnvelopeKeys {
    wrapper: Arc<dyn KeyWrapper>,
    store: Arc<dyn WrappedKeys>,
    entropy: Arc<dyn Entropy>,
}

impl EnvelopeKeys {
    /// Combines a key service and a store.
    pub fn new(
        wrapper: Arc<dyn KeyWrapper>,
        store: Arc<dyn WrappedKeys>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self { wrapper, store, entropy }
    }

    async fn find(&self, id: &DataKeyId, length: usize) -> Result<Option<SecretBytes>, PortError> {
        let Some(wrapped) = self.store.find(id).await? else {
            return Ok(None);
        };
        let plain = self.wrapper.unwrap(id, &wrapped).await?;
        let (found, key) =
            plain.expose("take the key out").split_at_checked(BINDING_LENGTH).unwrap_or_default();
        if found != binding(id).as_bytes() || key.len() != length {
            let error = EnvelopeError::Foreign(id.clone());
            return Err(failed(PortErrorKind::Invalid, "take a data key").because(error));
        }
        Ok(Some(SecretBytes::new(key.to_vec())))
    }

    async fn make(&self, id: &DataKeyId, length: usize) -> Result<(), PortError> {
        let mut plain = Zeroizing::new(vec![0; BINDING_LENGTH + length]);
        let (bound, key) = plain.split_at_mut(BINDING_LENGTH);
        bound.copy_from_slice(binding(id).as_bytes());
        self.entropy.fill(key);
        let plain = SecretBytes::new(std::mem::take(&mut plain));
        let wrapped = self.wrapper.wrap(id, &plain).await?;
        // The first writer wins; the caller looks at what is stored.
        self.store.add(id, &wrapped).await.map(drop)
    }
}

fn binding(id: &DataKeyId) -> Sha256Digest {
    Sha256Digest::of([BINDING, id.as_str().as_bytes()].concat())
}

fn failed(kind: PortErrorKind, operation: &str) -> PortError {
    PortError::new(kind, operation)
}

fn check(length: usize) -> Result<(), PortError> {
    if (1..=MAX_WRAPPED_KEY).contains(&length) {
        return Ok(());
    }
    let error = EnvelopeError::Length(length);
    Err(failed(PortErrorKind::Invalid, "make a data key").because(error))
}

#[async_trait]
impl DataKeys for EnvelopeKeys {
    async fn data_key(&self, id: &DataKeyId, length: usize) -> Result<SecretBytes, PortError> {
        check(length)?;
        if let Some(key) = self.find(id, length).await? {
            return Ok(key);
        }
        self.make(id, length).await?;
        let stored = self.find(id, length).await?;
        stored.ok_or_else(|| failed(PortErrorKind::Unavailable, "read a new data key back"))
    }

    async fn existing_data_key(
        &self,
        id: &DataKeyId,
        length: usize,
    ) -> Result<SecretBytes, PortError> {
        check(length)?;
        let found = self.find(id, length).await?;
        found.ok_or_else(|| PortError::new(PortErrorKind::NotFound, format!("find {id}")))
    }

    async fn renew(&self) -> Result<Option<Duration>, PortError> {
        self.wrapper.renew().await
    }
}

#[cfg(test)]
mod tests;
