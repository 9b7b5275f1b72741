//! The point of no return over a real TPM 2.0 implementation: `swtpm` must be installed; `cargo
//! xtask tools` reports if it is missing.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tec_core::pcr::PcrIndex;
use tec_core::port::PortError;
use tec_node::TpmMarker;
use tec_node::derive::{ClusterId, MeasurementSalt, MeasurementSecret};
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

/// A cluster with known secrets.
fn cluster() -> ClusterId {
    let from = |first: u8| std::array::from_fn(|at| first + u8::try_from(at).unwrap());
    // HKDF of master key 40..5f with salt 60..7f, "key-measurementSecret".
    let mut secret = [0; 32];
    let text = "4790578891f3fe6cc22cb661ecdc1b7e33121b1287546a52ba33a9136719c213";
    hex::decode_to_slice(text, &mut secret).unwrap();
    MeasurementSecret::new(secret).cluster_id(&MeasurementSalt::new(from(0x20)))
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

#[tokio::test]
async fn the_marker_survives_the_process_and_ends_with_a_boot() {
    let mut swtpm = Swtpm::start().unwrap();
    let tpm = Arc::new(Tpm::open(&swtpm.tcti()).unwrap());
    let first = NodeLock::new(marker(&tpm) as Arc<_>);
    assert_ne!(first.lock(cluster()).await.unwrap(), LockOutcome::Taken);
    assert_eq!(
        tpm.pcr_read().unwrap().value(PcrIndex::CLUSTER).to_string(),
        "8cbed04bc5c36a7612da8f7659e78d17113175a922cc9925f266a2fc96eaa0ba"
    );

    // Another process, the same boot: the same cluster goes on, without a second extension.
    let again = marker(&tpm);
    let second = NodeLock::new(Arc::clone(&again) as Arc<_>);
    assert_ne!(second.lock(cluster()).await.unwrap(), LockOutcome::Taken);
    assert_eq!(again.1.load(Ordering::SeqCst), 0);

    drop((first, second, again, tpm));
    swtpm.restart().unwrap();
    let tpm = Arc::new(Tpm::open(&swtpm.tcti()).unwrap());
    assert_eq!(marker(&tpm).read().await.unwrap(), MarkerState::Unset);
}
