use super::{Place, fill};
use crate::code::Code;
use crate::flow;
use crate::id::ResourcePath;
use crate::machine::MachineChange;
use crate::migrate::TrustAnchor;
use crate::port::{
    AuditAction, BeginOutcome, CancelOutcome, DiskKeys, MachineRegistry, PortErrorKind, SecretStore,
};
use crate::rotation::{Confirmation, Confirmed, Forget, KeyMark, Keys};
use crate::store::Store;
use crate::testing::{ManualClock, sample};

async fn holds(store: &Store, path: ResourcePath, number: Option<u64>) -> bool {
    let found = SecretStore::find(store, &path).await.unwrap();
    match (found, number) {
        (Some(found), Some(number)) => found.ct_eq(&sample::secret(number)),
        (found, number) => found.is_none() && number.is_none(),
    }
}

/// Whether the store holds exactly these keys of machine 1: current, pending, previous.
async fn keeps(store: &Store, keys: [Option<u64>; 3]) -> bool {
    let id = sample::machine_id(1);
    let paths = [ResourcePath::luks_root, ResourcePath::luks_pending, ResourcePath::luks_previous];
    for (path, key) in paths.iter().zip(keys) {
        if !holds(store, path(&id), key).await {
            return false;
        }
    }
    true
}

fn mark(number: u64) -> KeyMark {
    KeyMark::of(&sample::secret(number))
}

async fn begin(store: &Store, number: u64) -> BeginOutcome {
    let id = sample::machine_id(1);
    store.begin(&id, &sample::secret(number), &sample::line()).await.unwrap()
}

async fn confirm(store: &Store, step: Confirmation, number: u64) -> Confirmed<KeyMark> {
    let id = sample::machine_id(1);
    store.confirm(&id, step, &mark(number), &sample::line()).await.unwrap()
}

#[tokio::test]
async fn every_step_of_a_rotation_survives_a_restart_and_may_be_repeated() {
    let place = Place::new();
    fill(&place.open()).await;
    let store = place.open();
    assert_eq!(begin(&store, 2).await, BeginOutcome::Begun(mark(2)));
    drop(store);

    let store = place.open();
    assert!(keeps(&store, [Some(1), Some(2), None]).await);
    let pending = Keys::Pending { current: mark(1), pending: mark(2) };
    assert_eq!(begin(&store, 3).await, BeginOutcome::UnderWay(pending));
    assert_eq!(confirm(&store, Confirmation::Removed, 2).await, Confirmed::Unknown);
    let promoted = Keys::Promoted { current: mark(2), previous: mark(1) };
    let staged = confirm(&store, Confirmation::Staged, 2).await;
    assert_eq!(staged, Confirmed::Changed(promoted.clone()));
    drop(store);

    let store = place.open();
    assert!(keeps(&store, [Some(2), None, Some(1)]).await);
    assert_eq!(confirm(&store, Confirmation::Staged, 2).await, Confirmed::Already);
    assert_eq!(begin(&store, 3).await, BeginOutcome::UnderWay(promoted));
    assert_eq!(confirm(&store, Confirmation::Removed, 1).await, Confirmed::Unknown);
    assert!(keeps(&store, [Some(2), None, Some(1)]).await, "the old key stays");
    let settled = Keys::Settled { current: mark(2) };
    let removed = confirm(&store, Confirmation::Removed, 2).await;
    assert_eq!(removed, Confirmed::Changed(settled.clone()));
    drop(store);

    let store = place.open();
    assert!(keeps(&store, [Some(2), None, None]).await);
    assert_eq!(confirm(&store, Confirmation::Removed, 2).await, Confirmed::Already);
    assert_eq!(store.rotation(&sample::machine_id(1)).await.unwrap(), Some(settled));
}

#[tokio::test]
async fn only_what_changed_is_in_the_audit_log() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    let lines = || store.audit_events(0, 99).unwrap().len();
    let before = lines();
    begin(&store, 2).await;
    begin(&store, 3).await;
    for step in [Confirmation::Staged, Confirmation::Removed] {
        confirm(&store, step, 9).await;
        confirm(&store, step, 2).await;
        confirm(&store, step, 2).await;
    }
    assert_eq!(lines() - before, 3);
}

#[tokio::test]
async fn a_machine_without_a_key_or_out_of_service_gets_no_new_one() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    let new = sample::secret(2);
    let no_key = store.begin(&sample::machine_id(2), &new, &sample::line()).await;
    assert_eq!(no_key.unwrap_err().kind(), PortErrorKind::NotFound);
    let id = sample::machine_id(1);
    store.change(&id, MachineChange::Quarantine, &sample::line()).await.unwrap();
    let away = store.begin(&id, &new, &sample::line()).await;
    assert_eq!(away.unwrap_err().kind(), PortErrorKind::NotFound);
    assert!(keeps(&store, [Some(1), None, None]).await);
}

#[tokio::test]
async fn nothing_is_exported_while_a_rotation_is_under_way() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    begin(&store, 2).await;
    for _ in 0..2 {
        let error = store.export(None, 9).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::RotationUnderWay));
        assert_eq!(error.kind(), PortErrorKind::Conflict);
        confirm(&store, Confirmation::Staged, 2).await;
    }
    confirm(&store, Confirmation::Removed, 2).await;
    assert!(!store.export(None, 9).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_rotation_of_a_machine_that_does_not_come_back_is_canceled_and_no_longer_blocks_exports()
 {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    let id = sample::machine_id(1);
    begin(&store, 2).await;
    MachineRegistry::revoke(&store, &id, &sample::line()).await.unwrap();
    let lines = || store.audit_events(0, 99).unwrap();
    let before = lines().len();
    let clock = ManualClock::new(sample::line().at);
    let cancel = async |forget| flow::cancel_rotation(&store, &clock, id, forget).await.unwrap();
    let previous = cancel(Forget::DangerouslyPrevious).await;
    assert!(matches!(previous, CancelOutcome::Unchanged(_)), "{previous:?}");
    for _ in 0..2 {
        cancel(Forget::Pending).await;
    }
    let added = lines().split_off(before);
    let [line] = added.as_slice() else { panic!("{added:?}") };
    assert_eq!(line.event.action, AuditAction::RotationCanceled);
    assert_eq!(line.event.subject, ResourcePath::luks_pending(&id).as_str());
    assert!(!store.export(None, 9).await.unwrap().is_empty());
    drop(store);
    assert!(keeps(&place.open(), [Some(1), None, None]).await);
}

#[tokio::test]
async fn rotations_are_found_by_an_index_of_their_own() {
    let place = Place::new();
    drop(place.open());
    let plan = format!("EXPLAIN QUERY PLAN {}", crate::store::rotation::ROTATING);
    let plan: String = place.raw().query_row(&plan, (), |row| row.get("detail")).unwrap();
    assert!(plan.contains("secret_rotating"), "{plan}");
}

#[tokio::test]
async fn a_machine_takes_the_keys_of_its_rotation_with_it() {
    for staged in [None, Some(Confirmation::Staged)] {
        let place = Place::new();
        let store = place.open();
        fill(&store).await;
        begin(&store, 2).await;
        if let Some(step) = staged {
            confirm(&store, step, 2).await;
        }
        SecretStore::remove(&store, &sample::secret_path(1)).await.unwrap();
        assert!(keeps(&store, [None, None, None]).await);
    }
}

#[tokio::test]
async fn a_key_is_sealed_to_its_place() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    begin(&store, 2).await;
    drop(store);
    let id = sample::machine_id(1);
    let swap = format!(
        "UPDATE secret SET path = 'default/{id}/previous' WHERE path = 'default/{id}/pending'"
    );
    place.raw().execute_batch(&swap).unwrap();
    let error = place.open().rotation(&id).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::KeySealed));
}
