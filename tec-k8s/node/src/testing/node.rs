//! A node in memory: its register, its disk, its files, and a cluster that only counts calls.

use std::fmt;

use async_trait::async_trait;
use parking_lot::Mutex;
use tec_core::digest::Sha256Digest;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use crate::derive::{ClusterId, DiskId};
use crate::init::InitRequest;
use crate::journal::Intent;
use crate::lock::{BootstrapMarker, LockedNode, MarkerState};
use crate::port::{
    ClusterInitializer, ClusterJoiner, KeyUris, MappedDisk, NodeStore, Pause, StateDisk,
};
use crate::state::NodeState;
use crate::ticket::JoinTicket;

/// What happened to a [`MemoryNode`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeRecord {
    /// PCR 15.
    pub register: Sha256Digest,
    /// Number of extensions.
    pub extensions: usize,
    /// SHA-256 of the key that opens the disk; `None` for the initial key.
    pub disk_key: Option<Sha256Digest>,
    /// Journal.
    pub intent: Option<Intent>,
    /// `node_state.json`.
    pub state: Option<NodeState>,
    /// How many times a cluster was created on it.
    pub initialized: usize,
    /// How many times it joined one.
    pub joined: usize,
    /// SHA-256 over the stored URI of the key service.
    pub key_service: Option<Sha256Digest>,
    /// Names of the written control-plane files.
    pub files: Vec<String>,
}

/// A node in memory; implements every port of [`node::port`](crate::port) that acts on a
/// node, and its marker.
#[derive(Debug)]
pub struct MemoryNode {
    disk: DiskId,
    record: Mutex<NodeRecord>,
    refusal: Option<PortErrorKind>,
}

impl MemoryNode {
    /// A new node with this disk.
    pub fn new(disk: DiskId) -> Self {
        Self { disk, record: Mutex::default(), refusal: None }
    }

    /// Makes preparing init or join fail.
    pub fn refusing(mut self, kind: PortErrorKind) -> Self {
        self.refusal = Some(kind);
        self
    }

    /// What happened so far.
    pub fn record(&self) -> NodeRecord {
        self.record.lock().clone()
    }

    /// Reboots the machine, which resets the register.
    pub fn reboot(&self) {
        self.record.lock().register = Sha256Digest::ZERO;
    }

    fn prepared(&self) -> Result<(), PortError> {
        match self.refusal {
            Some(kind) => Err(PortError::new(kind, "prepare")),
            None => Ok(()),
        }
    }
}

fn digest(key: &SecretBytes) -> Sha256Digest {
    Sha256Digest::of(key.expose("compare keys in a test"))
}

#[async_trait]
impl BootstrapMarker for MemoryNode {
    async fn read(&self) -> Result<MarkerState, PortError> {
        Ok(MarkerState::of(self.record.lock().register))
    }

    async fn set(&self, cluster: &ClusterId) -> Result<(), PortError> {
        let mut record = self.record.lock();
        let event = Sha256Digest::of(cluster.as_bytes());
        record.register = record.register.extended(&event);
        record.extensions += 1;
        Ok(())
    }
}

#[async_trait]
impl StateDisk for MemoryNode {
    async fn id(&self) -> Result<DiskId, PortError> {
        Ok(self.disk)
    }

    async fn opens_with(&self, key: &SecretBytes) -> Result<bool, PortError> {
        Ok(self.record.lock().disk_key == Some(digest(key)))
    }

    async fn is_new(&self) -> Result<bool, PortError> {
        Ok(self.record.lock().disk_key.is_none())
    }

    async fn rekey(&self, _node: &LockedNode, key: &SecretBytes) -> Result<(), PortError> {
        self.record.lock().disk_key = Some(digest(key));
        Ok(())
    }
}

#[async_trait]
impl NodeStore for MemoryNode {
    async fn read_intent(&self) -> Result<Option<Intent>, PortError> {
        Ok(self.record.lock().intent)
    }

    async fn write_intent(&self, intent: &Intent) -> Result<(), PortError> {
        self.record.lock().intent = Some(*intent);
        Ok(())
    }

    async fn write_state(&self, _node: &LockedNode, state: &NodeState) -> Result<(), PortError> {
        self.record.lock().state = Some(*state);
        Ok(())
    }
}

#[async_trait]
impl ClusterInitializer for MemoryNode {
    async fn prepare(&self, _request: &InitRequest) -> Result<(), PortError> {
        self.prepared()
    }

    async fn keep_key_uris(&self, _node: &LockedNode, uris: &KeyUris) -> Result<(), PortError> {
        let kept = Sha256Digest::of(uris.kms.expose("compare"));
        self.record.lock().key_service = Some(kept);
        Ok(())
    }

    async fn init(&self, _node: &LockedNode, _request: &InitRequest) -> Result<(), PortError> {
        self.record.lock().initialized += 1;
        Ok(())
    }

    async fn kubeconfig(&self) -> Result<SecretBytes, PortError> {
        Ok(SecretBytes::new(b"kubeconfig".to_vec()))
    }
}

#[async_trait]
impl ClusterJoiner for MemoryNode {
    async fn prepare(&self, _ticket: &JoinTicket) -> Result<(), PortError> {
        self.prepared()
    }

    async fn write_files(&self, _node: &LockedNode, ticket: &JoinTicket) -> Result<(), PortError> {
        let names = ticket.files.iter().map(|(file, _)| file.as_str().to_owned());
        self.record.lock().files = names.collect();
        Ok(())
    }

    async fn join(&self, _node: &LockedNode, _ticket: &JoinTicket) -> Result<(), PortError> {
        self.record.lock().joined += 1;
        Ok(())
    }
}

#[async_trait]
impl MappedDisk for MemoryNode {
    async fn map(&self, _key: &SecretBytes) -> Result<NodeState, PortError> {
        let state = self.record.lock().state;
        state.ok_or_else(|| PortError::new(PortErrorKind::NotFound, "read the node's state"))
    }
}

#[async_trait]
impl Pause for MemoryNode {
    fn failed(&self, _step: &dyn fmt::Debug, _error: &PortError) {}

    async fn pause(&self, _doublings: u32) {}
}
