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
    /// ID of the cluster.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A node must understand the journal that an earlier program wrote.
    #[test]
    fn the_form_of_the_journal_does_not_change() {
        let intent = Intent::new(ClusterId::new([0xab; 32]), Sha256Digest::new([0xcd; 32]));
        let (cluster, request) = ("ab".repeat(32), "cd".repeat(32));
        let text = format!(r#"{{"cluster":"{cluster}","request":"{request}","phase":"intended"}}"#);
        assert_eq!(serde_json::to_string(&intent).unwrap(), text);
        assert_eq!(serde_json::from_str::<Intent>(&text).unwrap(), intent);
        let short = text.replacen("ab", "", 1);
        assert!(serde_json::from_str::<Intent>(&short).is_err());
    }
}
