use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Place;
use crate::port::{AuditEvent, MachineRegistry, PlatformLog as _, PlatformOutcome};
use crate::store::Store;
use crate::testing;
use crate::testing::{Faulty, PlatformBoot, SeededEntropy, sample};

/// Stores in separate directories below one place.
struct Stores {
    place: Place,
    made: AtomicU64,
}

impl Stores {
    fn new() -> Self {
        Self { place: Place::new(), made: AtomicU64::new(0) }
    }

    fn next(&self) -> Store {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let dir = self.place.file(&number.to_string());
        Store::open(&dir, &SeededEntropy::new(number)).unwrap()
    }
}

fn events(store: &Store) -> Vec<AuditEvent> {
    let entries = store.audit_events(0, usize::MAX).unwrap();
    entries.into_iter().map(|entry| entry.event).collect()
}

#[tokio::test]
async fn the_store_conforms() {
    let stores = Stores::new();
    let make = async || stores.next();
    testing::machine_registry(make).await;
    testing::ak_registry(make).await;
    testing::image_registry(make).await;
    testing::secret_store(make).await;
    testing::disk_keys(make).await;
    testing::clock_log(make).await;
    testing::platform_log(make).await;
    testing::audit_sink(make, async |store: &Store| events(store)).await;
    testing::audited_changes(make, async |store: &Store| events(store)).await;
    testing::attempt_log(make).await;
    testing::trust_anchor(make).await;
}

#[tokio::test]
async fn the_store_in_a_healthy_fault_wrapper_conforms() {
    let stores = Stores::new();
    let make = async || Faulty::healthy(Arc::new(stores.next()));
    testing::machine_registry(make).await;
    testing::ak_registry(make).await;
    testing::image_registry(make).await;
    testing::secret_store(make).await;
    testing::disk_keys(make).await;
    testing::clock_log(make).await;
    testing::platform_log(make).await;
    let read = async |store: &Faulty<Store>| events(store.inner());
    testing::audit_sink(make, read).await;
    testing::audited_changes(make, read).await;
}

#[tokio::test]
async fn machines_of_one_model_share_what_is_stored_and_nothing_is_left_behind() {
    let place = Place::new();
    let store = place.open();
    let parts = || -> i64 {
        let count = "SELECT count(*) FROM platform_part";
        place.raw().query_row(count, (), |row| row.get(0)).unwrap()
    };
    let admit = async |number: u64, boot: &PlatformBoot| {
        let (key, machine) = (sample::public_key(number).fingerprint(), sample::machine_id(number));
        store.admit(&key, machine, &boot.platform(), sample::time(5)).await.unwrap()
    };
    let (old, new) = (PlatformBoot::new(), PlatformBoot::new().firmware("2.0"));
    for number in 1..=10 {
        admit(number, &old).await;
    }
    assert_eq!(parts(), 2, "the firmware, and what is recorded");
    admit(1, &new).await;
    assert_eq!(parts(), 3);
    let key = sample::public_key(1).fingerprint();
    store.approve(&key, &new.platform(), &sample::line()).await.unwrap();
    for number in 1..=10 {
        assert_eq!(admit(number, &new).await, PlatformOutcome::Moved);
    }
    assert_eq!(parts(), 2);
    for number in 1..=10 {
        let removed = MachineRegistry::remove(&store, &sample::machine_id(number)).await;
        removed.unwrap();
    }
    assert_eq!(parts(), 0);
}
