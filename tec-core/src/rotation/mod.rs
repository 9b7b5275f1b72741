//! Rotation of a machine's disk key: the states of a server and of a node, and nothing else. Pure.
//!
//! *What it is*: which keys a server keeps, and what a node does next. *What it is not*: storage, network or
//! LUKS; a port that keeps the state.
//!
//! ```text
//! server   Settled ── begin ──► Pending ── "staged" ──► Promoted ── "removed" ──► Settled
//! releases current             current                 the new key              the new key
//! keeps                        + pending               + previous
//! node              add a slot for the pending key ─┘  └─ remove the slots of the previous key
//!
//! cancel   Pending ──► Settled { current }
//! ```
//! At every moment the current key, which is all that a boot asks for, opens a slot of the disk, and the
//! server keeps every key that a slot needs, except keys of canceled rotations, which are never released
//! again. Confirmations name the key, not the step, so one that is lost, repeated or late changes nothing that
//! it should not.

mod mark;
mod node;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::mark::KeyMark;
pub use self::node::{NodeStep, Slots, next_step};

/// The keys that a server keeps for a machine. `K` is a key, or anything that stands for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "phase")]
pub enum Keys<K> {
    /// No rotation is under way.
    Settled {
        /// The key that is released.
        current: K,
    },
    /// A new key waits until the disk has a slot for it.
    Pending {
        /// The key that is released.
        current: K,
        /// The new key.
        pending: K,
    },
    /// The new key is released, and the slots of the old one are yet to be removed.
    Promoted {
        /// The key that is released: the new one.
        current: K,
        /// The old one.
        previous: K,
    },
}

/// What a node confirms about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confirmation {
    /// Every disk of the machine has a slot that was tried and opens with this key.
    Staged,
    /// No disk of the machine has a slot left that opens with the key before this one.
    Removed,
}

/// The key that a canceled rotation leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// The pending one. No disk needs it: the current key opens them all.
    Pending,
    /// The previous one. A disk that was detached while the others got their new slot opens with nothing else.
    DangerouslyPrevious,
}

/// Effect of a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed<K> {
    /// The server keeps these keys from now on.
    Changed(Keys<K>),
    /// It was confirmed before.
    Already,
    /// It is about a key that this server does not keep in this place.
    Unknown,
}

impl<K> Keys<K> {
    /// The same state, with something else in place of each key.
    pub fn map<T>(&self, of: impl Fn(&K) -> T) -> Keys<T> {
        match self {
            Self::Settled { current } => Keys::Settled { current: of(current) },
            Self::Pending { current, pending } => {
                Keys::Pending { current: of(current), pending: of(pending) }
            }
            Self::Promoted { current, previous } => {
                Keys::Promoted { current: of(current), previous: of(previous) }
            }
        }
    }
}

impl<K: PartialEq> Keys<K> {
    /// The key that is released to a boot.
    pub fn current(&self) -> &K {
        match self {
            Self::Settled { current }
            | Self::Pending { current, .. }
            | Self::Promoted { current, .. } => current,
        }
    }

    /// Whether this is one of the keys.
    pub fn has(&self, key: &K) -> bool {
        match self {
            Self::Settled { current } => current == key,
            Self::Pending { current, pending: other }
            | Self::Promoted { current, previous: other } => current == key || other == key,
        }
    }

    /// Begins a rotation to `new`.
    ///
    /// # Errors
    /// The keys, unchanged, if a rotation is under way: there is at most one.
    pub fn begin(self, new: K) -> Result<Self, Self> {
        match self {
            Self::Settled { current } => Ok(Self::Pending { current, pending: new }),
            under_way => Err(under_way),
        }
    }

    /// Cancels a rotation: the current key alone is kept.
    ///
    /// # Errors
    /// The keys, unchanged, if they are in another state than `forget` is about.
    ///
    /// # Security
    /// A confirmation of a forgotten key that arrives later is [`Confirmed::Unknown`].
    pub fn cancel(self, forget: Forget) -> Result<Self, Self> {
        match (self, forget) {
            (Self::Pending { current, .. }, Forget::Pending)
            | (Self::Promoted { current, .. }, Forget::DangerouslyPrevious) => {
                Ok(Self::Settled { current })
            }
            (unchanged, _) => Err(unchanged),
        }
    }

    /// Whether no rotation is under way.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Settled { .. })
    }
}

impl<K: PartialEq + Clone> Keys<K> {
    /// Takes a confirmation about `key`.
    ///
    /// # Security
    /// `Removed` makes the server forget a key. It counts only for the key that is released now, so a late
    /// confirmation of an earlier rotation never ends this one.
    pub fn confirm(&self, confirmation: Confirmation, key: &K) -> Confirmed<K> {
        match (self, confirmation) {
            (Self::Pending { current, pending }, Confirmation::Staged) if pending == key => {
                let (current, previous) = (pending.clone(), current.clone());
                Confirmed::Changed(Self::Promoted { current, previous })
            }
            (Self::Promoted { current, .. }, Confirmation::Removed) if current == key => {
                Confirmed::Changed(Self::Settled { current: current.clone() })
            }
            (keys, _) if keys.current() == key => Confirmed::Already,
            _ => Confirmed::Unknown,
        }
    }
}
