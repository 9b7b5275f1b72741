//! The point of no return over a real TPM 2.0 implementation: `swtpm` must be installed; `cargo
//! xtask tools` reports if it is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tec_core::pcr::PcrIndex;
use tec_core::port::PortError;
use tec_node::TpmMarker;
use tec_node::derive::ClusterId;
use tec_node::lock::{BootstrapMarker, LockOutcome, MarkerState, NodeLock};
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::Tpm;
use tokio::task::JoinSet;

/// Counts the extensions.
#[derive(Debug)]
struct Counting(TpmMarker, AtomicUsize);

#[async_trait]
impl BootstrapMarker for Counting {
    async fn read(&self) -> Result<MarkerState, PortError> {
        self.0.read().await
    }

    async fn set(&self, cluster: &ClusterId) -> Result<(), PortError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.set(cluster).await
    }
}

fn marker(tpm: &Arc<Tpm>) -> Arc<Counting> {
    Arc::new(Counting(TpmMarker::new(Arc::clone(tpm)), AtomicUsize::new(0)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousandfold_race_has_one_winner_and_one_extension() {
    let swtpm = Swtpm::start().unwrap();
    let tpm = Arc::new(Tpm::open(&swtpm.tcti()).unwrap());
    let marker = marker(&tpm);
    let lock = Arc::new(NodeLock::new(Arc::clone(&marker) as Arc<_>));
    let mut attempts = JoinSet::new();
    for number in 0_u32..1000 {
        let lock = Arc::clone(&lock);
        attempts.spawn(async move {
            // One in two is a join of the same cluster, the others are inits of clusters of theirs.
            let mut id = [0; 32];
            id[..4].copy_from_slice(&(number / 2 * 2).to_be_bytes());
            lock.lock(ClusterId::new(id)).await.unwrap()
        });
    }
    let outcomes = attempts.join_all().await;
    let mut winners = outcomes.into_iter().filter_map(|outcome| match outcome {
        LockOutcome::Locked(node) => Some(node),
        LockOutcome::Taken => None,
    });
    let winner = winners.next().unwrap();
    assert_eq!(winners.next(), None);
    assert_eq!(marker.1.load(Ordering::SeqCst), 1);
    let values = tpm.pcr_read().unwrap();
    assert_eq!(values.value(PcrIndex::CLUSTER), &winner.cluster().marker());
}
