//! What the procedures need from their environment.
//!
//! A process may die after any call, so every call converges when repeated. Failures of kind `Invalid` and
//! `Denied` can never succeed; all others may be retried.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use super::derive::{DataKeyId, DiskId, MasterSecret};
use super::init::InitRequest;
use super::journal::Intent;
use super::lock::LockedNode;
use super::state::NodeState;
use super::ticket::JoinTicket;
use super::uri::{KmsUri, StorageUri, TrusteeKey};

/// Returns data keys: the same ID always gives the same key.
#[async_trait]
pub trait DataKeys: fmt::Debug + Send + Sync {
    /// A data key of `length` bytes; generated if it was never requested before.
    async fn data_key(&self, id: &DataKeyId, length: usize) -> Result<SecretBytes, PortError>;

    /// A data key that something already depends on; kind `NotFound` if there is none. Never generates one: a
    /// new key opens no disk, and would stay wherever a wrong URI pointed.
    async fn existing_data_key(
        &self,
        id: &DataKeyId,
        length: usize,
    ) -> Result<SecretBytes, PortError>;

    /// Renews our credentials for the service. Returns when to call again; `None` if nothing expires.
    /// `Denied` or `Invalid` if they cannot be renewed.
    async fn renew(&self) -> Result<Option<Duration>, PortError> {
        Ok(None)
    }
}

#[async_trait]
impl DataKeys for MasterSecret {
    async fn data_key(&self, id: &DataKeyId, length: usize) -> Result<SecretBytes, PortError> {
        Self::data_key(self, id, length).map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "derive a data key").because(error)
        })
    }

    /// Every key that can be derived exists.
    async fn existing_data_key(
        &self,
        id: &DataKeyId,
        length: usize,
    ) -> Result<SecretBytes, PortError> {
        DataKeys::data_key(self, id, length).await
    }
}

/// Opens the services that URIs name.
#[async_trait]
pub trait KeyServices: fmt::Debug + Send + Sync {
    /// The keys of these URIs. Fails with kind `Invalid` if the service is not supported, or needs storage
    /// and has none.
    async fn open(&self, kms: KmsUri, storage: StorageUri) -> Result<Box<dyn DataKeys>, PortError>;
}

/// Obtains secrets that a Trustee releases only to this node.
#[async_trait]
pub trait ReleasedSecrets: fmt::Debug + Send + Sync {
    /// Attests this node, and obtains the resource.
    async fn release(&self, key: &TrusteeKey) -> Result<SecretBytes, PortError>;
}

/// Supports only keys derived from a master secret, and no service.
#[derive(Clone, Copy, Debug, Default)]
pub struct DerivedKeys;

#[async_trait]
impl KeyServices for DerivedKeys {
    async fn open(
        &self,
        kms: KmsUri,
        _storage: StorageUri,
    ) -> Result<Box<dyn DataKeys>, PortError> {
        match kms {
            KmsUri::Cluster(master) => Ok(Box::new(master)),
            _ => Err(PortError::new(
                PortErrorKind::Invalid,
                "open a key service that this program was not built with",
            )),
        }
    }
}

/// The encrypted state disk.
#[async_trait]
pub trait StateDisk: fmt::Debug + Send + Sync {
    /// UUID of its header.
    async fn id(&self) -> Result<DiskId, PortError>;

    /// Whether this key opens it; nothing is changed.
    async fn opens_with(&self, key: &SecretBytes) -> Result<bool, PortError>;

    /// Whether its initial passphrase opens it; nothing is changed.
    async fn is_new(&self) -> Result<bool, PortError>;

    /// Makes this key the only one that opens the disk; the initial passphrase no longer does. A disk that
    /// this key already opens is left unchanged.
    async fn rekey(&self, node: &LockedNode, key: &SecretBytes) -> Result<(), PortError>;
}

/// Makes the content of the state disk readable.
#[async_trait]
pub trait MappedDisk: fmt::Debug + Send + Sync {
    /// Maps the disk with a key that opens it, and reads the state on it. A disk that is already
    /// mapped stays mapped.
    async fn map(&self, key: &SecretBytes) -> Result<NodeState, PortError>;
}

/// Small files of the node. *Contract*: a write is either complete and durable, or changes nothing.
#[async_trait]
pub trait NodeStore: fmt::Debug + Send + Sync {
    /// The intent recorded in the journal.
    async fn read_intent(&self) -> Result<Option<Intent>, PortError>;

    /// Replaces it.
    async fn write_intent(&self, intent: &Intent) -> Result<(), PortError>;

    /// Writes `node_state.json`.
    async fn write_state(&self, node: &LockedNode, state: &NodeState) -> Result<(), PortError>;
}

/// Where the keys of a cluster come from, as URIs.
#[derive(Debug)]
pub struct KeyUris {
    /// The key service.
    pub kms: SecretBytes,
    /// Where wrapped keys are stored.
    pub storage: SecretBytes,
}

/// Turns this node into a cluster.
#[async_trait]
pub trait ClusterInitializer: fmt::Debug + Send + Sync {
    /// Downloads and checks everything needed; starts nothing.
    async fn prepare(&self, request: &InitRequest) -> Result<(), PortError>;

    /// Stores where the cluster's keys come from, readable only by root: the cluster's join service needs
    /// this. The proof that the node is locked means that only the cluster's key opens the disk.
    async fn keep_key_uris(&self, node: &LockedNode, uris: &KeyUris) -> Result<(), PortError>;

    /// Creates the cluster. A cluster that an earlier call created, fully or in part, is converged
    /// to the same state.
    async fn init(&self, node: &LockedNode, request: &InitRequest) -> Result<(), PortError>;

    /// Returns the admin's kubeconfig.
    async fn kubeconfig(&self) -> Result<SecretBytes, PortError>;
}

/// Finds a join service that authenticates itself, and requests a ticket from it.
#[async_trait]
pub trait TicketSource: fmt::Debug + Send + Sync {
    /// Requests a ticket for this node; every call returns the same keys.
    async fn fetch(&self) -> Result<JoinTicket, PortError>;
}

/// Makes this node a member of a cluster.
#[async_trait]
pub trait ClusterJoiner: fmt::Debug + Send + Sync {
    /// Downloads and checks everything needed; starts nothing.
    async fn prepare(&self, ticket: &JoinTicket) -> Result<(), PortError>;

    /// Writes the kubelet's certificate, and the files of a control plane.
    async fn write_files(&self, node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError>;

    /// Joins. A node that an earlier call joined, fully or in part, is converged to the same state.
    async fn join(&self, node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError>;
}

/// Waits; the argument says why.
#[async_trait]
pub trait Pause: fmt::Debug + Send + Sync {
    /// Notified when a step begins, for observers; ignored by default.
    fn began(&self, _step: &dyn fmt::Display) {}

    /// Notified why a step failed, for the log.
    fn failed(&self, step: &dyn fmt::Debug, error: &PortError);

    /// Waits: a base time multiplied by two to the power of `doublings`, with jitter.
    async fn pause(&self, doublings: u32);
}
