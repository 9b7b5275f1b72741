use super::{at_once, kind, ok};
use crate::id::ResourcePath;
use crate::port::{
    AkRegistry, BeginOutcome, CancelOutcome, DiskKeys, MachineRegistry, PortErrorKind, SecretStore,
    UnclaimedLimit,
};
use crate::rotation::{Confirmation, Confirmed, Forget, KeyMark, Keys};
use crate::testing::sample;

/// Checks the contract of [`DiskKeys`]; `make` returns a store without machines or keys.
///
/// # Panics
/// If the contract is broken.
pub async fn disk_keys<S>(make: impl AsyncFn() -> S)
where
    S: DiskKeys + SecretStore + MachineRegistry + AkRegistry,
{
    what_has_no_key_is_not_rotated(&make().await).await;
    each_step_may_be_repeated_and_the_old_key_stays_until_the_end(&filled(&make).await).await;
    one_of_many_at_once_begins(&filled(&make).await).await;
    a_canceled_rotation_leaves_the_released_key(&filled(&make).await).await;
    the_previous_key_is_forgotten_only_by_its_name(&filled(&make).await).await;
    no_key_of_a_rotation_outlives_the_current_one(&filled(&make).await).await;
}

/// A store with one machine in service, whose disk key is sample secret 1.
async fn filled<S>(make: &impl AsyncFn() -> S) -> S
where
    S: SecretStore + MachineRegistry + AkRegistry,
{
    let store = make().await;
    let machine = sample::machine(1);
    ok(MachineRegistry::create(&store, &machine, UnclaimedLimit::Unlimited).await);
    ok(store.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    ok(store.put_new(&sample::secret_path(1), &sample::secret(1), &sample::line()).await);
    store
}

fn mark(number: u64) -> KeyMark {
    KeyMark::of(&sample::secret(number))
}

async fn begin(keys: &dyn DiskKeys, number: u64) -> BeginOutcome {
    ok(keys.begin(&sample::machine_id(1), &sample::secret(number), &sample::line()).await)
}

async fn confirm(keys: &dyn DiskKeys, step: Confirmation, number: u64) -> Confirmed<KeyMark> {
    ok(keys.confirm(&sample::machine_id(1), step, &mark(number), &sample::line()).await)
}

async fn cancel(keys: &dyn DiskKeys, forget: Forget) -> CancelOutcome {
    ok(keys.cancel(&sample::machine_id(1), forget, &sample::line()).await)
}

/// Whether these are exactly the keys of machine 1: current, pending, previous.
async fn holds(store: &dyn SecretStore, keys: [Option<u64>; 3]) -> bool {
    let paths = [ResourcePath::luks_root, ResourcePath::luks_pending, ResourcePath::luks_previous];
    for (path, key) in paths.iter().zip(keys) {
        let found = ok(store.find(&path(&sample::machine_id(1))).await);
        if found.as_ref().map(KeyMark::of) != key.map(mark) {
            return false;
        }
    }
    true
}

async fn what_has_no_key_is_not_rotated<S: DiskKeys + MachineRegistry>(store: &S) {
    for _ in ["no machine", "no key"] {
        let id = sample::machine_id(1);
        assert_eq!(ok(store.rotation(&id).await), None);
        let begun = store.begin(&id, &sample::secret(2), &sample::line()).await;
        assert_eq!(kind(begun), PortErrorKind::NotFound);
        for step in [Confirmation::Staged, Confirmation::Removed] {
            let confirmed = store.confirm(&id, step, &mark(2), &sample::line()).await;
            assert_eq!(kind(confirmed), PortErrorKind::NotFound);
        }
        for forget in [Forget::Pending, Forget::DangerouslyPrevious] {
            let canceled = store.cancel(&id, forget, &sample::line()).await;
            assert_eq!(kind(canceled), PortErrorKind::NotFound);
        }
        ok(store.create(&sample::machine(1), UnclaimedLimit::Unlimited).await);
    }
}

async fn each_step_may_be_repeated_and_the_old_key_stays_until_the_end<S>(store: &S)
where
    S: DiskKeys + SecretStore,
{
    let id = sample::machine_id(1);
    assert_eq!(ok(store.rotation(&id).await), Some(Keys::Settled { current: mark(1) }));

    assert_eq!(begin(store, 2).await, BeginOutcome::Begun(mark(2)));
    let pending = Keys::Pending { current: mark(1), pending: mark(2) };
    assert_eq!(begin(store, 3).await, BeginOutcome::UnderWay(pending.clone()));
    assert_eq!(confirm(store, Confirmation::Staged, 3).await, Confirmed::Unknown);
    assert_eq!(confirm(store, Confirmation::Removed, 2).await, Confirmed::Unknown);
    assert_eq!(ok(store.rotation(&id).await), Some(pending));
    assert!(holds(store, [Some(1), Some(2), None]).await);

    let promoted = Keys::Promoted { current: mark(2), previous: mark(1) };
    let staged = confirm(store, Confirmation::Staged, 2).await;
    assert_eq!(staged, Confirmed::Changed(promoted.clone()));
    assert_eq!(confirm(store, Confirmation::Staged, 2).await, Confirmed::Already);
    assert_eq!(confirm(store, Confirmation::Removed, 1).await, Confirmed::Unknown);
    assert_eq!(begin(store, 3).await, BeginOutcome::UnderWay(promoted.clone()));
    assert_eq!(ok(store.rotation(&id).await), Some(promoted));
    assert!(holds(store, [Some(2), None, Some(1)]).await, "the old key stays");

    let settled = Keys::Settled { current: mark(2) };
    let removed = confirm(store, Confirmation::Removed, 2).await;
    assert_eq!(removed, Confirmed::Changed(settled.clone()));
    assert_eq!(confirm(store, Confirmation::Removed, 2).await, Confirmed::Already);
    assert_eq!(ok(store.rotation(&id).await), Some(settled));
    assert!(holds(store, [Some(2), None, None]).await);
}

async fn one_of_many_at_once_begins<S: DiskKeys + SecretStore>(store: &S) {
    let (id, line) = (sample::machine_id(1), sample::line());
    let secrets: Vec<_> = (2..=9).map(sample::secret).collect();
    let calls = secrets.iter().map(|secret| store.begin(&id, secret, &line)).collect();
    let answers = at_once(calls).await.into_iter().map(ok);
    let begun: Vec<_> = answers
        .filter_map(|answer| match answer {
            BeginOutcome::Begun(mark) => Some(mark),
            BeginOutcome::UnderWay(_) => None,
        })
        .collect();
    assert_eq!(begun.len(), 1);
    let kept = ok(store.rotation(&id).await);
    let expected =
        begun.first().map(|pending| Keys::Pending { current: mark(1), pending: *pending });
    assert_eq!(kept, expected);
}

async fn a_canceled_rotation_leaves_the_released_key<S: DiskKeys + SecretStore>(store: &S) {
    let settled = Keys::Settled { current: mark(1) };
    let unchanged = CancelOutcome::Unchanged(settled.clone());
    assert_eq!(cancel(store, Forget::Pending).await, unchanged);
    begin(store, 2).await;
    let pending = Keys::Pending { current: mark(1), pending: mark(2) };
    let kept = CancelOutcome::Unchanged(pending);
    assert_eq!(cancel(store, Forget::DangerouslyPrevious).await, kept);
    assert_eq!(cancel(store, Forget::Pending).await, CancelOutcome::Canceled(settled));
    assert_eq!(cancel(store, Forget::Pending).await, unchanged);
    assert!(holds(store, [Some(1), None, None]).await);
    assert_eq!(confirm(store, Confirmation::Staged, 2).await, Confirmed::Unknown, "late");
    assert_eq!(begin(store, 3).await, BeginOutcome::Begun(mark(3)));
    assert_eq!(confirm(store, Confirmation::Staged, 2).await, Confirmed::Unknown, "later");
    assert!(holds(store, [Some(1), Some(3), None]).await);
}

async fn the_previous_key_is_forgotten_only_by_its_name<S: DiskKeys + SecretStore>(store: &S) {
    begin(store, 2).await;
    confirm(store, Confirmation::Staged, 2).await;
    let promoted = Keys::Promoted { current: mark(2), previous: mark(1) };
    let unchanged = CancelOutcome::Unchanged(promoted);
    assert_eq!(cancel(store, Forget::Pending).await, unchanged);
    assert!(holds(store, [Some(2), None, Some(1)]).await);
    let settled = Keys::Settled { current: mark(2) };
    let canceled = cancel(store, Forget::DangerouslyPrevious).await;
    assert_eq!(canceled, CancelOutcome::Canceled(settled));
    assert!(holds(store, [Some(2), None, None]).await);
    assert_eq!(confirm(store, Confirmation::Removed, 2).await, Confirmed::Already, "late");
}

async fn no_key_of_a_rotation_outlives_the_current_one<S>(store: &S)
where
    S: DiskKeys + SecretStore,
{
    begin(store, 2).await;
    ok(store.remove(&sample::secret_path(1)).await);
    assert!(holds(store, [None, None, None]).await);
    assert_eq!(ok(store.rotation(&sample::machine_id(1)).await), None);
}
