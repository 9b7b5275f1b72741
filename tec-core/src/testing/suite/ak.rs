use super::{at_once, kind, ok};
use crate::ak::{AkRecord, AkState, ApprovedAk, Fingerprint, MAX_WAITING, SourceNetwork};
use crate::machine::{LastBinding, MachineChange, MachineState};
use crate::port::{
    AkRegistry, BindOutcome, CreateOutcome, MachineRegistry, PortErrorKind, UnclaimedLimit,
};
use crate::testing::sample;

/// Checks the contract of [`AkRegistry`]; `make` returns an empty registry of machines and keys.
///
/// # Panics
/// If the contract is broken.
pub async fn ak_registry<R: MachineRegistry + AkRegistry>(make: impl AsyncFn() -> R) {
    submit_keeps_a_waiting_key_once(&with_machines(&make).await).await;
    waiting_keys_are_bounded_per_machine(&with_machines(&make).await).await;
    bind_claims_the_machine_and_repeats(&with_machines(&make).await).await;
    bind_makes_a_waiting_key_bound(&with_machines(&make).await).await;
    first_key_of_a_machine_wins(&with_machines(&make).await).await;
    a_key_serves_one_machine(&with_machines(&make).await).await;
    bind_needs_a_machine_that_is_not_revoked(&with_machines(&make).await).await;
    a_quarantined_machine_keeps_its_key_and_binds_no_other(&with_machines(&make).await).await;
    one_of_many_at_once_wins(&with_machines(&make).await).await;
    one_machine_of_many_at_once_wins(&with_machines(&make).await).await;
    a_revoked_key_stays_known_and_frees_the_machine(&with_machines(&make).await).await;
    a_machine_remembers_its_last_binding(&with_machines(&make).await).await;
    claims_are_bound_keys_with_a_source(&with_machines(&make).await).await;
    keys_go_with_their_machine(&with_machines(&make).await).await;
    a_key_is_found_with_its_machine_as_it_is_now(&with_machines(&make).await).await;
    a_claimed_machine_does_not_expire(&with_machines(&make).await).await;
    list_tells_all_or_those_of_a_machine(&with_machines(&make).await).await;
}

/// A registry that knows the machines 1 to 8.
async fn with_machines<R: MachineRegistry>(make: &impl AsyncFn() -> R) -> R {
    let registry = make().await;
    for number in 1..=8 {
        ok(registry.create(&sample::machine(number), UnclaimedLimit::Unlimited).await);
    }
    registry
}

fn key(number: u64) -> Fingerprint {
    sample::public_key(number).fingerprint()
}

async fn state_of(registry: &impl MachineRegistry, machine: u64) -> Option<MachineState> {
    let found = MachineRegistry::find(registry, &sample::machine_id(machine)).await;
    ok(found).map(|machine| machine.state)
}

async fn bound_key(registry: &dyn AkRegistry, machine: u64) -> Option<Fingerprint> {
    let bound = ok(registry.bound_to(&sample::machine_id(machine)).await);
    bound.map(|record| {
        assert_eq!(record.state, AkState::Bound);
        assert_eq!(record.machine, sample::machine_id(machine));
        record.fingerprint()
    })
}

async fn submit_keeps_a_waiting_key_once<R: MachineRegistry + AkRegistry>(registry: &R) {
    let aks: &dyn AkRegistry = registry;
    let mut record = sample::ak(1, 1);
    record.ek = Some(key(77));
    assert_eq!(ok(aks.find(&key(1)).await), None);
    assert_eq!(ok(aks.submit(&record, &sample::line()).await), CreateOutcome::Created);
    assert_eq!(ok(aks.find(&key(1)).await), Some(record.clone()));
    let mut again = sample::ak(1, 2);
    again.submitted_at = sample::time(50);
    assert_eq!(ok(aks.submit(&again, &sample::line()).await), CreateOutcome::Existed);
    assert_eq!(ok(aks.find(&key(1)).await), Some(record), "left as it was");
    assert_eq!(bound_key(aks, 1).await, None);
    assert_eq!(state_of(registry, 1).await, Some(MachineState::Unclaimed));
    let mut bold = sample::ak(2, 1);
    bold.state = AkState::Bound;
    ok(aks.submit(&bold, &sample::line()).await);
    let kept = ok(aks.find(&key(2)).await).map(|record| record.state);
    assert_eq!(kept, Some(AkState::Pending), "submitting binds nothing");
}

async fn waiting_keys_are_bounded_per_machine(aks: &dyn AkRegistry) {
    for number in 1..=MAX_WAITING {
        ok(aks.submit(&sample::ak(number, 1), &sample::line()).await);
    }
    assert_eq!(kind(aks.submit(&sample::ak(9, 1), &sample::line()).await), PortErrorKind::Denied);
    assert_eq!(ok(aks.find(&key(9)).await), None);
    assert_eq!(ok(aks.submit(&sample::ak(1, 1), &sample::line()).await), CreateOutcome::Existed);
    assert_eq!(ok(aks.submit(&sample::ak(9, 2), &sample::line()).await), CreateOutcome::Created);
    ok(aks.revoke(&key(2), &sample::line()).await);
    let freed = aks.submit(&sample::ak(10, 1), &sample::line()).await;
    assert_eq!(ok(freed), CreateOutcome::Created, "a revoked key does not wait");
    let many: Vec<_> = (20..28).map(|number| sample::ak(number, 3)).collect();
    let line = sample::line();
    let submit = |record| aks.submit(record, &line);
    let answers = at_once(many.iter().map(submit).collect()).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
}

async fn bind_claims_the_machine_and_repeats<R: MachineRegistry + AkRegistry>(registry: &R) {
    let approved = sample::approved_ak(1, 1);
    assert_eq!(ok(registry.bind(&approved, &sample::line()).await), BindOutcome::Bound);
    assert_eq!(bound_key(registry, 1).await, Some(key(1)));
    assert_eq!(state_of(registry, 1).await, Some(MachineState::Active));
    assert_eq!(ok(registry.bind(&approved, &sample::line()).await), BindOutcome::AlreadyBound);
    assert_eq!(bound_key(registry, 1).await, Some(key(1)));
    assert_eq!(state_of(registry, 2).await, Some(MachineState::Unclaimed));
    let again = ok(registry.submit(&sample::ak(1, 1), &sample::line()).await);
    assert_eq!(again, CreateOutcome::Existed);
    assert_eq!(bound_key(registry, 1).await, Some(key(1)), "submitting unbinds nothing");
}

async fn bind_makes_a_waiting_key_bound(aks: &dyn AkRegistry) {
    let waiting = sample::ak(1, 1);
    ok(aks.submit(&waiting, &sample::line()).await);
    let mut later = sample::ak(1, 1);
    later.submitted_at = sample::time(60);
    later.ek = Some(key(77));
    let approved = ApprovedAk::dangerous_assume_approved(later);
    assert_eq!(ok(aks.bind(&approved, &sample::line()).await), BindOutcome::Bound);
    let expected = AkRecord { state: AkState::Bound, ek: Some(key(77)), ..waiting };
    assert_eq!(ok(aks.find(&key(1)).await), Some(expected), "one record, first submission kept");
}

async fn first_key_of_a_machine_wins(aks: &dyn AkRegistry) {
    ok(aks.submit(&sample::ak(3, 1), &sample::line()).await);
    ok(aks.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    for second in [2, 3] {
        let outcome = ok(aks.bind(&sample::approved_ak(second, 1), &sample::line()).await);
        assert_eq!(outcome, BindOutcome::MachineTaken);
    }
    assert_eq!(bound_key(aks, 1).await, Some(key(1)));
    assert_eq!(ok(aks.find(&key(2)).await), None, "a refused key is not kept");
    assert_eq!(ok(aks.find(&key(3)).await), Some(sample::ak(3, 1)));
}

async fn a_key_serves_one_machine<R: MachineRegistry + AkRegistry>(registry: &R) {
    ok(registry.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    let outcome = ok(registry.bind(&sample::approved_ak(1, 2), &sample::line()).await);
    assert_eq!(outcome, BindOutcome::KeyTaken);
    assert_eq!(bound_key(registry, 1).await, Some(key(1)));
    assert_eq!(bound_key(registry, 2).await, None);
    assert_eq!(state_of(registry, 2).await, Some(MachineState::Unclaimed));
}

async fn bind_needs_a_machine_that_is_not_revoked<R>(registry: &R)
where
    R: MachineRegistry + AkRegistry,
{
    let outcome = ok(registry.bind(&sample::approved_ak(1, 99), &sample::line()).await);
    assert_eq!(outcome, BindOutcome::NoMachine);
    assert_eq!(ok(AkRegistry::find(registry, &key(1)).await), None);
    ok(MachineRegistry::revoke(registry, &sample::machine_id(1), &sample::line()).await);
    let outcome = ok(registry.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    assert_eq!(outcome, BindOutcome::NoMachine);
    assert_eq!(state_of(registry, 1).await, Some(MachineState::Revoked));
    ok(registry.bind(&sample::approved_ak(2, 2), &sample::line()).await);
    ok(MachineRegistry::revoke(registry, &sample::machine_id(2), &sample::line()).await);
    let again = ok(registry.bind(&sample::approved_ak(2, 2), &sample::line()).await);
    assert_eq!(again, BindOutcome::NoMachine, "also for the key that was bound");
    assert_eq!(state_of(registry, 2).await, Some(MachineState::Revoked));
}

async fn a_quarantined_machine_keeps_its_key_and_binds_no_other<R>(registry: &R)
where
    R: MachineRegistry + AkRegistry,
{
    let line = &sample::line();
    let change = async |number, change| {
        ok(registry.change(&sample::machine_id(number), change, line).await);
    };
    ok(registry.bind(&sample::approved_ak(1, 1), line).await);
    change(1, MachineChange::Quarantine).await;
    change(2, MachineChange::Quarantine).await;
    let outcome = ok(registry.bind(&sample::approved_ak(2, 2), line).await);
    assert_eq!(outcome, BindOutcome::NoMachine);
    let submitted = registry.submit(&sample::ak(2, 2), line).await;
    assert_eq!(kind(submitted), PortErrorKind::NotFound);
    assert_eq!(bound_key(registry, 1).await, Some(key(1)), "it may attest with its key");
    change(1, MachineChange::Release).await;
    change(2, MachineChange::Release).await;
    assert_eq!(state_of(registry, 1).await, Some(MachineState::Active), "it was bound before");
    let outcome = ok(registry.bind(&sample::approved_ak(2, 2), line).await);
    assert_eq!(outcome, BindOutcome::Bound);
    change(1, MachineChange::Retire).await;
    let outcome = ok(registry.bind(&sample::approved_ak(3, 1), line).await);
    assert_eq!(outcome, BindOutcome::NoMachine);
}

async fn one_of_many_at_once_wins(aks: &dyn AkRegistry) {
    let keys: Vec<_> = (1..=8).map(|number| sample::approved_ak(number, 1)).collect();
    let line = sample::line();
    let answers = at_once(keys.iter().map(|ak| aks.bind(ak, &line)).collect()).await;
    let outcomes: Vec<_> = answers.into_iter().map(ok).collect();
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert_eq!((count(BindOutcome::Bound), count(BindOutcome::MachineTaken)), (1, 7));
    let winner = outcomes.iter().position(|outcome| *outcome == BindOutcome::Bound);
    let winner = winner.and_then(|index| keys.get(index)).map(|ak| ak.record().fingerprint());
    assert_eq!(bound_key(aks, 1).await, winner);
}

async fn one_machine_of_many_at_once_wins(aks: &dyn AkRegistry) {
    let keys: Vec<_> = (1..=8).map(|machine| sample::approved_ak(1, machine)).collect();
    let line = sample::line();
    let answers = at_once(keys.iter().map(|ak| aks.bind(ak, &line)).collect()).await;
    let outcomes: Vec<_> = answers.into_iter().map(ok).collect();
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert_eq!((count(BindOutcome::Bound), count(BindOutcome::KeyTaken)), (1, 7));
    assert_eq!(ok(aks.list(None).await).len(), 1);
}

async fn a_revoked_key_stays_known_and_frees_the_machine(aks: &dyn AkRegistry) {
    assert_eq!(kind(aks.revoke(&key(1), &sample::line()).await), PortErrorKind::NotFound);
    ok(aks.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    for _ in 0..2 {
        ok(aks.revoke(&key(1), &sample::line()).await);
        let state = ok(aks.find(&key(1)).await).map(|record| record.state);
        assert_eq!(state, Some(AkState::Revoked));
    }
    assert_eq!(bound_key(aks, 1).await, None);
    for machine in [1, 2] {
        let outcome = ok(aks.bind(&sample::approved_ak(1, machine), &sample::line()).await);
        assert_eq!(outcome, BindOutcome::KeyTaken, "a revoked key does not come back");
    }
    assert_eq!(ok(aks.submit(&sample::ak(1, 1), &sample::line()).await), CreateOutcome::Existed);
    assert_eq!(ok(aks.bind(&sample::approved_ak(2, 1), &sample::line()).await), BindOutcome::Bound);
    assert_eq!(bound_key(aks, 1).await, Some(key(2)));
}

async fn a_machine_remembers_its_last_binding<R>(registry: &R)
where
    R: MachineRegistry + AkRegistry,
{
    let binding = async || {
        let found = MachineRegistry::find(registry, &sample::machine_id(1)).await;
        ok(found).and_then(|machine| machine.binding)
    };
    assert_eq!(binding().await, None);
    let mut first = sample::ak(1, 1);
    first.ek = Some(key(77));
    ok(registry.submit(&first, &sample::line()).await);
    assert_eq!(binding().await, None, "a key that waits is no binding");
    let approved = ApprovedAk::dangerous_assume_approved(sample::ak(1, 1));
    ok(registry.bind(&approved, &sample::line()).await);
    let last = LastBinding::new(key(1), Some(key(77)));
    assert_eq!(binding().await, Some(last));
    ok(AkRegistry::revoke(registry, &key(1), &sample::line()).await);
    assert_eq!(binding().await, Some(last), "also when the key is revoked");
    let mut second = sample::ak(2, 1);
    second.ek = Some(key(78));
    ok(registry.submit(&second, &sample::line()).await);
    ok(AkRegistry::revoke(registry, &key(2), &sample::line()).await);
    assert_eq!(binding().await, Some(last), "a key that was refused is none");
    ok(registry.bind(&sample::approved_ak(3, 1), &sample::line()).await);
    assert_eq!(binding().await, Some(LastBinding::new(key(3), None)));
}

async fn claims_are_bound_keys_with_a_source(aks: &dyn AkRegistry) {
    let network = |last| SourceNetwork::of([192, 0, 2, last].into());
    for (number, source) in [(1, Some(1)), (2, Some(1)), (3, Some(2)), (4, None)] {
        let mut record = sample::ak(number, number);
        record.source = source.map(network);
        let approved = ApprovedAk::dangerous_assume_approved(record);
        ok(aks.bind(&approved, &sample::line()).await);
    }
    let mut waiting = sample::ak(5, 5);
    waiting.source = Some(network(1));
    ok(aks.submit(&waiting, &sample::line()).await);
    let found = ok(aks.find(&key(5)).await).and_then(|record| record.source);
    assert_eq!(found, Some(network(1)), "an admin sees where it came from");
    let count = async |source| {
        let claims = ok(aks.claims(&source).await);
        (claims.total, claims.of_source)
    };
    assert_eq!(count(network(1)).await, (3, 2));
    assert_eq!(count(network(2)).await, (3, 1));
    assert_eq!(count(network(9)).await, (3, 0));
    ok(aks.bind(&sample::approved_ak(5, 5), &sample::line()).await);
    assert_eq!(count(network(1)).await, (3, 2), "bound by an admin");
}

async fn keys_go_with_their_machine<R: MachineRegistry + AkRegistry>(registry: &R) {
    ok(registry.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    ok(registry.submit(&sample::ak(2, 1), &sample::line()).await);
    ok(registry.submit(&sample::ak(3, 2), &sample::line()).await);
    ok(registry.remove(&sample::machine_id(1)).await);
    assert_eq!(ok(AkRegistry::list(registry, None).await), [sample::ak(3, 2)]);
    assert_eq!(bound_key(registry, 1).await, None);
    ok(registry.expire_unclaimed(sample::time(1)).await);
    let left = ok(AkRegistry::find(registry, &key(3)).await);
    assert_eq!(left, None, "also when the machine expires");
}

async fn a_key_is_found_with_its_machine_as_it_is_now<R: MachineRegistry + AkRegistry>(
    registry: &R,
) {
    ok(registry.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    ok(registry.submit(&sample::ak(2, 2), &sample::line()).await);
    for (number, state) in [(1, MachineState::Active), (2, MachineState::Unclaimed)] {
        let record = ok(AkRegistry::find(registry, &key(number)).await);
        let machine = ok(MachineRegistry::find(registry, &sample::machine_id(number)).await);
        let found = ok(registry.find_with_machine(&key(number)).await);
        assert_eq!(machine.as_ref().map(|machine| machine.state), Some(state));
        assert_eq!(found, record.map(|record| (record, machine)));
    }
    ok(MachineRegistry::revoke(registry, &sample::machine_id(1), &sample::line()).await);
    let found = ok(registry.find_with_machine(&key(1)).await);
    let state = found.and_then(|(_, machine)| machine).map(|machine| machine.state);
    assert_eq!(state, Some(MachineState::Revoked));
    assert_eq!(ok(registry.find_with_machine(&key(3)).await), None);
}

async fn a_claimed_machine_does_not_expire<R: MachineRegistry + AkRegistry>(registry: &R) {
    ok(registry.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    ok(registry.bind(&sample::approved_ak(2, 2), &sample::line()).await);
    ok(AkRegistry::revoke(registry, &key(2), &sample::line()).await);
    assert_eq!(ok(registry.expire_unclaimed(sample::time(100)).await), 6);
    assert_eq!(state_of(registry, 1).await, Some(MachineState::Active));
    assert!(state_of(registry, 2).await.is_some(), "it was claimed once");
}

async fn list_tells_all_or_those_of_a_machine(aks: &dyn AkRegistry) {
    ok(aks.bind(&sample::approved_ak(1, 1), &sample::line()).await);
    ok(aks.submit(&sample::ak(2, 1), &sample::line()).await);
    ok(aks.submit(&sample::ak(3, 2), &sample::line()).await);
    let names = |records: Vec<AkRecord>| {
        let mut names: Vec<_> = records.iter().map(AkRecord::fingerprint).collect();
        names.sort_unstable();
        names
    };
    let sorted = |mut names: Vec<Fingerprint>| {
        names.sort_unstable();
        names
    };
    assert_eq!(names(ok(aks.list(None).await)), sorted([1, 2, 3].map(key).into()));
    let of_first = ok(aks.list(Some(sample::machine_id(1))).await);
    assert_eq!(names(of_first), sorted([1, 2].map(key).into()));
    assert!(ok(aks.list(Some(sample::machine_id(8))).await).is_empty());
}
