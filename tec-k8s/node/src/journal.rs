//! The journal: what a node is about to do, written to disk before the point of no return.

use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;

use super::derive::ClusterId;
use super::lock::MarkerState;

/// How far a bootstrap got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Phase {
    /// Everything was checked; the lock comes next.
    Intended,
    /// The node is a member.
    Done,
}

/// The intent: which cluster, and by which request. Neither is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Intent {
    /// ID of the cluster, in hexadecimal.
    #[serde(with = "hex_id")]
    pub cluster: ClusterId,
    /// SHA-256 over the request; for a join, over what the node asked for.
    pub request: Sha256Digest,
    /// How far the bootstrap got.
    pub phase: Phase,
}

impl Intent {
    /// An intent before the lock.
    pub fn new(cluster: ClusterId, request: Sha256Digest) -> Self {
        Self { cluster, request, phase: Phase::Intended }
    }

    /// Whether this request began here, on a node whose register is in this state.
    pub(crate) fn began(&self, request: Sha256Digest, state: MarkerState) -> bool {
        self.request == request && self.phase == Phase::Intended && state.is_of(&self.cluster)
    }

    /// Marks the node as a member.
    pub fn done(mut self) -> Self {
        self.phase = Phase::Done;
        self
    }
}

mod hex_id {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::ClusterId;

    pub(super) fn serialize<S: Serializer>(id: &ClusterId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ClusterId, D::Error> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(String::deserialize(from)?, &mut bytes).map_err(D::Error::custom)?;
        Ok(ClusterId::new(bytes))
    }
}
