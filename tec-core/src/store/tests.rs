//! The store against the contracts of the ports, against a model, and against a hostile world.

mod attempt;
mod audit;
mod conformance;
mod damage;
mod full;
mod model;
mod reseal;
mod rotation;
mod seal;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use tempfile::TempDir;

use super::{Store, StoreError};
use crate::ak::ApprovedAk;
use crate::port::{
    AkRegistry, AttemptLog, AuditSink, BindOutcome, ImageRegistry, MachineRegistry, SecretStore,
    UnclaimedLimit,
};
use crate::testing::{SeededEntropy, sample};

/// A state directory that is removed after the test.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let closed = Permissions::from_mode(0o700);
        Self(tempfile::Builder::new().permissions(closed).tempdir().unwrap())
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn try_open(&self) -> Result<Store, StoreError> {
        Store::open(self.dir(), &SeededEntropy::new(1))
    }

    fn open(&self) -> Store {
        self.try_open().unwrap()
    }

    /// The database, opened without the store, as someone with a shell would.
    fn raw(&self) -> Connection {
        Connection::open(self.file("tec.db")).unwrap()
    }
}

/// One of everything.
async fn fill(store: &Store) {
    for number in 1..=3 {
        let machine = sample::machine(number);
        store.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
        store.append(&sample::audit_event(number)).await.unwrap();
    }
    store.bind(&sample::approved_ak(1, 1), &sample::line()).await.unwrap();
    store.submit(&sample::ak(2, 2), &sample::line()).await.unwrap();
    store.put(&sample::image(1)).await.unwrap();
    store.put_new(&sample::secret_path(1), &sample::secret(1), &sample::line()).await.unwrap();
    store.record(&sample::attempt(1, Some(1))).await.unwrap();
}

async fn assert_filled(store: &Store) {
    assert_eq!(MachineRegistry::list(store, None, 10).await.unwrap().len(), 3);
    let bound = store.bound_to(&sample::machine_id(1)).await.unwrap().unwrap();
    assert_eq!(bound.public, sample::public_key(1));
    assert_eq!(AkRegistry::list(store, None).await.unwrap().len(), 2);
    assert_eq!(ImageRegistry::list(store).await.unwrap(), [sample::image(1)]);
    let secret = SecretStore::find(store, &sample::secret_path(1)).await.unwrap().unwrap();
    assert!(secret.ct_eq(&sample::secret(1)));
    assert_eq!(store.latest(None, 10).await.unwrap(), [sample::attempt(1, Some(1))]);
    let events: Vec<_> = store.audit_events(0, 10).unwrap();
    let changes = std::iter::repeat_n(sample::line(), 3);
    let expected: Vec<_> = (1..=3).map(sample::audit_event).chain(changes).collect();
    let mut latest = store.audit_latest(u64::MAX, 2).unwrap();
    let before = latest.last().unwrap().sequence;
    latest.extend(store.audit_latest(before, usize::MAX).unwrap());
    assert!(latest.iter().rev().eq(&events), "the same, backward");
    assert_eq!(events.into_iter().map(|entry| entry.event).collect::<Vec<_>>(), expected);
}

async fn assert_machines(store: &Store, count: usize) {
    let machines = MachineRegistry::list(store, None, usize::MAX).await.unwrap();
    assert_eq!(machines.len(), count);
}

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let place = Place::new();
    fill(&place.open()).await;
    for _ in 0..2 {
        let store = place.open();
        assert_filled(&store).await;
        store.health().unwrap();
    }
}

#[tokio::test]
async fn everything_is_there_after_a_crash_without_closing() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    // A copy of the files while the store is open equals what a killed process leaves.
    let copy = Place::new();
    for name in ["tec.db", "tec.db-wal", "seal.key"] {
        std::fs::copy(place.file(name), copy.file(name)).unwrap();
    }
    assert_filled(&copy.open()).await;
    assert_filled(&store).await;
}

#[tokio::test]
async fn two_stores_on_one_directory_take_turns() {
    let place = Place::new();
    let stores = [place.open(), place.open()];
    for number in 1..=20 {
        for store in &stores {
            store.append(&sample::audit_event(number)).await.unwrap();
        }
    }
    let machine = sample::machine(1);
    stores[0].create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    let first = stores[1].bind(&sample::approved_ak(1, 1), &sample::line()).await.unwrap();
    let second = stores[0].bind(&sample::approved_ak(2, 1), &sample::line()).await.unwrap();
    assert_eq!((first, second), (BindOutcome::Bound, BindOutcome::MachineTaken));
    for store in &stores {
        assert_eq!(audit::intact(store), 41, "one of them was bound");
    }
}

#[test]
fn many_first_starts_at_once_make_one_store() {
    for _ in 0..5 {
        let place = Place::new();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let dir = place.dir();
                scope.spawn(move || {
                    let entropy = SeededEntropy::new(number);
                    let store = Store::open(dir, &entropy).unwrap();
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let (path, secret) = (sample::secret_path(number), sample::secret(number));
                    runtime.block_on(store.put_new(&path, &secret, &sample::line())).unwrap();
                });
            }
        });
        let store = place.open();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for number in 0..8 {
            let path = sample::secret_path(number);
            let secret = runtime.block_on(SecretStore::find(&store, &path)).unwrap().unwrap();
            assert!(secret.ct_eq(&sample::secret(number)));
        }
    }
}

/// Size of the write-ahead log in bytes; each commit adds whole pages.
fn log_length(place: &Place) -> u64 {
    std::fs::metadata(place.file("tec.db-wal")).unwrap().len()
}

#[tokio::test]
async fn calls_that_wait_share_a_commit() {
    let place = Place::new();
    let store = place.open();
    let events: Vec<_> = (0..100).map(sample::audit_event).collect();
    let start = log_length(&place);
    for event in &events {
        store.append(event).await.unwrap();
    }
    let one_by_one = log_length(&place) - start;

    let other = place.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut appends: Vec<_> = events.iter().map(|event| store.append(event)).collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for append in &mut appends {
        assert!(append.as_mut().poll(&mut context).is_pending());
    }
    other.execute_batch("ROLLBACK").unwrap();
    for append in appends {
        append.await.unwrap();
    }
    let together = log_length(&place) - start - one_by_one;
    assert!(together * 4 < one_by_one, "{together} bytes against {one_by_one}");
    assert_eq!(audit::intact(&store), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_tasks_that_bind_at_once_exactly_one_wins() {
    let place = Place::new();
    let stores = [Arc::new(place.open()), Arc::new(place.open())];
    let machine = sample::machine(1);
    stores[0].create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..64 {
        let store = stores[number % 2].clone();
        let key: ApprovedAk = sample::approved_ak(number as u64, 1);
        tasks.spawn(
            async move { (number as u64, store.bind(&key, &sample::line()).await.unwrap()) },
        );
    }
    let outcomes = tasks.join_all().await;
    let winners: Vec<_> = outcomes
        .iter()
        .filter(|(_, outcome)| *outcome == BindOutcome::Bound)
        .map(|(number, _)| sample::public_key(*number))
        .collect();
    let bound = stores[1].bound_to(&sample::machine_id(1)).await.unwrap().unwrap();
    assert_eq!(winners, [bound.public]);
    let taken = outcomes.iter().filter(|(_, outcome)| *outcome == BindOutcome::MachineTaken);
    assert_eq!(taken.count(), 63);
    assert_eq!(AkRegistry::list(&*stores[0], None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_index_refuses_a_second_bound_key_even_from_a_shell() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    let second = place.raw().execute(
        "INSERT INTO ak SELECT 'other', public, machine, state, ek, submitted_at FROM ak \
         WHERE state = 'bound'",
        (),
    );
    assert!(second.is_err());
}

#[tokio::test]
async fn a_dropped_write_leaves_a_store_that_works() {
    let place = Place::new();
    let store = place.open();
    for number in 0..50 {
        let event = sample::audit_event(number);
        let mut append = store.append(&event);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _queued = append.as_mut().poll(&mut context);
    }
    store.append(&sample::audit_event(99)).await.unwrap();
    assert_eq!(audit::intact(&store), 51, "what was queued was written");
}

#[tokio::test]
async fn a_writer_that_died_is_reported() {
    let place = Place::new();
    let store = place.open();
    let died = store.write("append", |_| -> Result<(), _> { panic!("on purpose") }).await;
    let error = died.unwrap_err();
    assert_eq!(error.code(), Some(crate::code::Code::StoreUnavailable));
    assert!(error.is_retryable());
    let next = store.append(&sample::audit_event(1)).await.unwrap_err();
    assert_eq!(next.code(), Some(crate::code::Code::StoreUnavailable));
    while store.writer.is_running() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(store.health(), Err(StoreError::Stopped)));
}
