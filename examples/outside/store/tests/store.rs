//! The rules in tec-core's suites, and the main job: trust on first use over this store.

use outside_store::FileStore;
use tec_core::ak::{AkCandidate, TofuMatcher};
use tec_core::flow;
use tec_core::flow::{AkOutcome, AkPorts};
use tec_core::port::{AkRegistry, MachineRegistry, UnclaimedLimit};
use tec_core::system::SystemClock;
use tec_core::testing;
use tec_core::testing::sample;
use tempfile::TempDir;

fn empty() -> FileStore {
    // The operating system removes what is left of it.
    FileStore::open(&TempDir::new().unwrap().keep()).unwrap()
}

#[tokio::test]
async fn it_keeps_the_rules() {
    testing::machine_registry(async || empty()).await;
    testing::ak_registry(async || empty()).await;
}

#[tokio::test]
async fn the_first_key_is_bound_another_is_not_and_that_stays_so() {
    let directory = TempDir::new().unwrap();
    let store = FileStore::open(directory.path()).unwrap();
    let machine = sample::machine(1);
    store.create(&machine, UnclaimedLimit::AtMost(10)).await.unwrap();
    assert!(matches!(claim(&store, 1).await, AkOutcome::Bound(_)));
    drop(store);

    let again = FileStore::open(directory.path()).unwrap();
    assert!(!matches!(claim(&again, 2).await, AkOutcome::Bound(_)), "a stranger's key");
    let bound = again.bound_to(&machine.id).await.unwrap().unwrap();
    assert_eq!(bound.public, sample::public_key(1));
    assert!(!again.audit().is_empty());
}

/// A node requests that machine 1 get its key.
async fn claim(store: &FileStore, key: u64) -> AkOutcome {
    let ports = AkPorts::new(store, store, &TofuMatcher, store, &SystemClock);
    let candidate = AkCandidate::from_node(sample::public_key(key), None);
    flow::approve(ports, sample::machine_id(1), candidate).await.unwrap()
}
