//! The point of no return: a node belongs to one cluster, once.
//!
//! ```text
//!   Unlocked ── intent about to be written ──► Reserved ── the cluster's caller ──► Locking
//!      ▲                                        │
//!      └── it could not be written ─────────────┘
//!   Locking ── marker set or found set ──► Locked
//!      └── the TPM failed, or the caller went away ──► Undecided: only the same cluster may
//!          try again
//! ```
//!
//! This cannot be undone. The marker in the TPM keeps the state across restarts of the process,
//! until the machine reboots; see [`BootstrapMarker`].

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tec_core::digest::Sha256Digest;
use tec_core::port::PortError;

use super::derive::ClusterId;

/// State of the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerState {
    /// The register has its initial value: the node belongs to no cluster.
    Unset,
    /// The register has this value.
    Set(Sha256Digest),
}

impl MarkerState {
    /// The state that a value of the register stands for.
    pub fn of(value: Sha256Digest) -> Self {
        if value == Sha256Digest::ZERO { Self::Unset } else { Self::Set(value) }
    }

    /// Whether the marker was set by an event of this cluster, and by nothing else.
    pub fn is_of(&self, cluster: &ClusterId) -> bool {
        *self == Self::Set(cluster.marker())
    }
}

/// The register that records which cluster a node belongs to: PCR 15, extended by one event of the
/// cluster ID.
///
/// *Contract*: `set` extends once per call; callers read first. Once set, it stays until the
/// machine reboots. *Implemented by* the TPM of `tec-tpm` (feature `tss`).
#[async_trait]
pub trait BootstrapMarker: fmt::Debug + Send + Sync {
    /// Reads the register.
    async fn read(&self) -> Result<MarkerState, PortError>;

    /// Extends the register with the event of a cluster.
    async fn set(&self, cluster: &ClusterId) -> Result<(), PortError>;
}

/// Proof that this process holds the lock and that the marker is the cluster's. Init and join
/// accept nothing else.
#[derive(Debug, PartialEq, Eq)]
pub struct LockedNode {
    cluster: ClusterId,
}

impl LockedNode {
    /// The cluster.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }
}

/// Outcome of an attempt to lock.
#[derive(Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The caller won.
    Locked(LockedNode),
    /// Another caller holds the lock, or is about to.
    Taken,
}

/// The lock could not be decided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The TPM did not answer. The node is undecided: the same cluster may be retried, another only
    /// after a reboot.
    #[error("the TPM's marker cannot be used; try again for the same cluster, or reboot")]
    Marker(#[source] PortError),
    /// The marker belongs to another cluster, or something else extended the register.
    #[error("the TPM's marker is {0}, not that of this cluster; reboot to start over")]
    OtherCluster(Sha256Digest),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Unlocked,
    /// Number of callers that reserved the journal, and for which cluster.
    Reserved(ClusterId, u32),
    Locking,
    Undecided(ClusterId),
    Locked,
}

/// The lock that init and join share. One per process.
#[derive(Debug)]
pub struct NodeLock {
    state: Mutex<State>,
    marker: Arc<dyn BootstrapMarker>,
}

impl NodeLock {
    /// Creates a lock over this marker.
    pub fn new(marker: Arc<dyn BootstrapMarker>) -> Self {
        Self { state: Mutex::new(State::Unlocked), marker }
    }

    /// The marker under the lock.
    pub fn marker(&self) -> &dyn BootstrapMarker {
        &*self.marker
    }

    /// Reserves the journal for a cluster: only a caller that will lock writes the intent. May be
    /// repeated for the same cluster. Returns false if another cluster has it.
    #[must_use]
    pub fn reserve(&self, cluster: ClusterId) -> bool {
        let mut state = self.state.lock();
        match *state {
            State::Unlocked => {
                *state = State::Reserved(cluster, 1);
                true
            }
            State::Reserved(other, callers) if other == cluster => {
                *state = State::Reserved(cluster, callers.saturating_add(1));
                true
            }
            State::Undecided(other) => other == cluster,
            State::Reserved(..) | State::Locking | State::Locked => false,
        }
    }

    /// Gives up the journal: the intent was not written. Another caller that reserved it for the
    /// same cluster may have written, and keeps it.
    pub fn release(&self) {
        let mut state = self.state.lock();
        *state = match *state {
            State::Reserved(cluster, callers @ 2..) => State::Reserved(cluster, callers - 1),
            State::Reserved(..) => State::Unlocked,
            other => other,
        };
    }

    /// Tries to lock the node for a cluster. If a process that died already set the marker for this
    /// cluster, it is not extended again.
    ///
    /// # Errors
    /// [`LockError`]; the node is undecided then.
    ///
    /// # Cancel safety
    /// A dropped attempt leaves the node undecided: the marker may or may not be set.
    pub async fn lock(&self, cluster: ClusterId) -> Result<LockOutcome, LockError> {
        let Some(attempt) = Attempt::begin(self, cluster) else {
            return Ok(LockOutcome::Taken);
        };
        match self.marker.read().await.map_err(LockError::Marker)? {
            MarkerState::Unset => {
                self.marker.set(&cluster).await.map_err(LockError::Marker)?;
                self.confirm(cluster).await?;
            }
            state if state.is_of(&cluster) => {}
            MarkerState::Set(found) => return Err(LockError::OtherCluster(found)),
        }
        attempt.win();
        Ok(LockOutcome::Locked(LockedNode { cluster }))
    }

    /// The register must hold what was set: something else may have extended it in between.
    async fn confirm(&self, cluster: ClusterId) -> Result<(), LockError> {
        match self.marker.read().await.map_err(LockError::Marker)? {
            state if state.is_of(&cluster) => Ok(()),
            MarkerState::Set(found) => Err(LockError::OtherCluster(found)),
            MarkerState::Unset => Err(LockError::OtherCluster(Sha256Digest::ZERO)),
        }
    }
}

/// An attempt that excludes all others while it lasts. Unless it wins, the node is undecided.
struct Attempt<'l> {
    lock: &'l NodeLock,
    cluster: ClusterId,
    won: bool,
}

impl<'l> Attempt<'l> {
    fn begin(lock: &'l NodeLock, cluster: ClusterId) -> Option<Self> {
        let mut state = lock.state.lock();
        match *state {
            State::Unlocked => {}
            State::Reserved(other, _) | State::Undecided(other) if other == cluster => {}
            State::Reserved(..) | State::Undecided(_) | State::Locking | State::Locked => {
                return None;
            }
        }
        *state = State::Locking;
        drop(state);
        Some(Self { lock, cluster, won: false })
    }

    fn win(mut self) {
        self.won = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        *self.lock.state.lock() =
            if self.won { State::Locked } else { State::Undecided(self.cluster) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use tec_core::port::PortErrorKind;

    /// A register that fails on demand.
    #[derive(Debug, Default)]
    struct Register {
        value: Mutex<Sha256Digest>,
        extended: AtomicUsize,
        fail_after_set: AtomicUsize,
    }

    #[async_trait]
    impl BootstrapMarker for Register {
        async fn read(&self) -> Result<MarkerState, PortError> {
            tokio::task::yield_now().await;
            Ok(MarkerState::of(*self.value.lock()))
        }

        async fn set(&self, cluster: &ClusterId) -> Result<(), PortError> {
            tokio::task::yield_now().await;
            let mut value = self.value.lock();
            *value = value.extended(&Sha256Digest::of(cluster.as_bytes()));
            self.extended.fetch_add(1, Ordering::SeqCst);
            let fails = self.fail_after_set.load(Ordering::SeqCst) > 0;
            if fails {
                self.fail_after_set.fetch_sub(1, Ordering::SeqCst);
                return Err(PortError::new(PortErrorKind::Unavailable, "extend"));
            }
            Ok(())
        }
    }

    fn cluster(number: u8) -> ClusterId {
        ClusterId::new([number; 32])
    }

    #[tokio::test]
    async fn a_lost_answer_is_found_and_nothing_is_extended_twice() {
        let register = Arc::new(Register::default());
        register.fail_after_set.store(1, Ordering::SeqCst);
        let lock = NodeLock::new(Arc::clone(&register) as Arc<_>);
        assert!(matches!(lock.lock(cluster(1)).await, Err(LockError::Marker(_))));
        assert_eq!(lock.lock(cluster(2)).await.unwrap(), LockOutcome::Taken);
        let LockOutcome::Locked(node) = lock.lock(cluster(1)).await.unwrap() else {
            panic!("taken");
        };
        assert_eq!(node.cluster(), &cluster(1));
        assert_eq!(register.extended.load(Ordering::SeqCst), 1);
        assert_eq!(lock.lock(cluster(1)).await.unwrap(), LockOutcome::Taken);
    }

    #[tokio::test]
    async fn a_marker_of_another_cluster_locks_nothing() {
        let register = Arc::new(Register::default());
        register.set(&cluster(9)).await.unwrap();
        let lock = NodeLock::new(Arc::clone(&register) as Arc<_>);
        assert!(matches!(lock.lock(cluster(1)).await, Err(LockError::OtherCluster(_))));
        assert_eq!(register.extended.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn of_two_clusters_only_the_one_that_reserved_the_journal_locks() {
        let lock = NodeLock::new(Arc::new(Register::default()));
        assert!(lock.reserve(cluster(1)) && lock.reserve(cluster(1)));
        assert!(!lock.reserve(cluster(2)));
        assert_eq!(lock.lock(cluster(2)).await.unwrap(), LockOutcome::Taken);
        // One caller could not write its intent; the other did.
        lock.release();
        assert!(!lock.reserve(cluster(2)), "the journal names the first");
        lock.release();
        assert!(lock.reserve(cluster(2)));
        let locked = lock.lock(cluster(2)).await.unwrap();
        assert!(matches!(locked, LockOutcome::Locked(_)));
        lock.release();
        assert!(!lock.reserve(cluster(2)), "a member's journal is kept");
    }
}
