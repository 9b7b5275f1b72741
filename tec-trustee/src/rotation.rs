//! How a node replaces its disk key; see [`tec_core::rotation`].
//!
//! ```text
//! GET rotation              ─► after an attestation: which keys the server keeps, by their names
//! GET resource/…/root?key=pending ─► the new key, released as the current one is; in a running system to who
//!                              shows a key with the header `tec-key-mark`
//! PUT rotation              ─► after an attestation: a slot for the key was added, or those of the old one
//!                              were removed
//! ```
//! Trustee has no such path.

use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;
use tec_core::id::ResourcePath;
use tec_core::rotation::{Confirmation, Keys};

/// Name of the path, below the base path.
pub const PLACE: &str = "rotation";
/// Largest body in bytes.
pub const MAX_BODY: usize = 1024;

/// Header with the [mark](tec_core::rotation::KeyMark) of a key of the machine, in hexadecimal digits: with it, its running system
/// gets the others.
pub const MARK: &str = "tec-key-mark";

/// Which of a machine's disk keys a node asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one that boots ask for.
    Current,
    /// The new one.
    Pending,
    /// The old one.
    Previous,
}

impl Which {
    /// The query of the request, with its question mark; empty for the current key.
    pub fn query(self) -> &'static str {
        match self {
            Self::Current => "",
            Self::Pending => "?key=pending",
            Self::Previous => "?key=previous",
        }
    }

    /// What a query asks for; anything else means the current key, as before.
    pub fn of_query(query: &str) -> Self {
        match query {
            "key=pending" => Self::Pending,
            "key=previous" => Self::Previous,
            _ => Self::Current,
        }
    }

    /// Where the key is stored, given the path of the current one.
    pub fn stored_at(self, path: &ResourcePath) -> ResourcePath {
        match (self, path.machine()) {
            (Self::Pending, Some(machine)) => ResourcePath::luks_pending(&machine),
            (Self::Previous, Some(machine)) => ResourcePath::luks_previous(&machine),
            _ => path.clone(),
        }
    }
}

/// Reply to `GET` and `PUT rotation`: the names of the keys that the server keeps, see
/// [`KeyMark::name`](tec_core::rotation::KeyMark::name).
pub type Kept = Keys<Sha256Digest>;

/// Body of `PUT rotation`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// What is confirmed.
    pub step: Confirmation,
    /// Mark of the new key, which proves that the sender has it.
    pub sha256: Sha256Digest,
}
