//! One side of connections, and its parts.

use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use tec_core::port::{Clock, Entropy};
use tokio::sync::Semaphore;

use super::identity::LeafKey;
use super::inner::{BoundConfigs, Inner};
use super::{ChannelBinding, Issuer, Validator, certificate, config};

/// Time limit of a handshake, including the document: discrete TPMs take seconds for a quote.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of documents that a server is creating or waiting for; further clients are refused.
const ISSUING_LIMIT: usize = 64;
/// Maximum number of documents created at the same time: a TPM does one thing at a time, and
/// threads are few.
const TURNS: usize = 2;

/// An endpoint was assembled incorrectly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The endpoint can neither prove anything nor verify anyone.
    #[error("an endpoint needs an issuer or a validator")]
    Nothing,
    /// The cryptography provider cannot use the key.
    #[error("cannot use the cryptography provider")]
    Provider(#[source] rustls::Error),
}

/// One side of attested connections, for any number of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Endpoint(pub(super) Arc<Inner>);

impl Endpoint {
    /// Starts with the settings that every endpoint needs.
    pub fn builder(
        provider: Arc<CryptoProvider>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> EndpointBuilder {
        EndpointBuilder {
            provider,
            clock,
            entropy,
            issuer: None,
            validators: Vec::new(),
            binding: ChannelBinding::Required,
            limit: HANDSHAKE_LIMIT,
        }
    }
}

/// Builder of an [`Endpoint`].
#[derive(Debug)]
pub struct EndpointBuilder {
    provider: Arc<CryptoProvider>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    issuer: Option<Arc<dyn Issuer>>,
    validators: Vec<Arc<dyn Validator>>,
    binding: ChannelBinding,
    limit: Duration,
}

impl EndpointBuilder {
    /// Proves the identity of this side. A server needs it unless its clients verify nothing.
    pub fn with_issuer(mut self, issuer: Arc<dyn Issuer>) -> Self {
        self.issuer = Some(issuer);
        self
    }

    /// Verifies the other side. If there are several validators, the first whose variant is in the
    /// certificate is used. A server without a validator accepts any client.
    pub fn with_validator(mut self, validator: Arc<dyn Validator>) -> Self {
        self.validators.push(validator);
        self
    }

    /// How evidence is sent: by default over the connection, refusing peers without support.
    pub fn with_channel_binding(mut self, binding: ChannelBinding) -> Self {
        self.binding = binding;
        self
    }

    /// Time limit of a handshake, including the document (default 30 seconds).
    pub fn with_handshake_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Generates the key of its certificates.
    pub fn build(self) -> Result<Endpoint, EndpointError> {
        if self.issuer.is_none() && self.validators.is_empty() {
            return Err(EndpointError::Nothing);
        }
        let key =
            LeafKey::generate(&*self.entropy, &self.provider).map_err(EndpointError::Provider)?;
        let bound = self.bound(&key).map_err(EndpointError::Provider)?;
        Ok(Endpoint(Arc::new(Inner {
            provider: self.provider,
            clock: self.clock,
            entropy: self.entropy,
            key,
            issuer: self.issuer,
            validators: self.validators,
            binding: self.binding,
            limit: self.limit,
            issuing: Semaphore::new(ISSUING_LIMIT),
            turns: Arc::new(Semaphore::new(TURNS)),
            bound,
        })))
    }

    fn bound(&self, key: &LeafKey) -> Result<BoundConfigs, rustls::Error> {
        let certified = key.certified(&*self.entropy, certificate::without_end(), None)?;
        config::bound(&self.provider, certified, self.issuer.is_some(), !self.validators.is_empty())
    }
}
