use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Place;
use crate::port::AuditEvent;
use crate::store::Store;
use crate::testing;
use crate::testing::{Faulty, SeededEntropy};

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
    testing::clock_log(make).await;
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
    testing::clock_log(make).await;
    let read = async |store: &Faulty<Store>| events(store.inner());
    testing::audit_sink(make, read).await;
    testing::audited_changes(make, read).await;
}
