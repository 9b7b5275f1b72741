use super::{at_once, ok};
use crate::ak::{AkState, ClockReading, Fingerprint, Successor, TpmClock};
use crate::machine::MachineChange;
use crate::port::{
    AkRegistry, AkSuccession, BindOutcome, ClockLog, ClockOutcome, CreateOutcome, MachineRegistry,
    NameOutcome, PlatformLog, PromoteOutcome, UnclaimedLimit,
};
use crate::testing::{PlatformBoot, sample};

/// Checks the contract of [`AkSuccession`]; `make` returns registries without machines or keys.
///
/// # Panics
/// If the contract is broken.
pub async fn ak_succession<R>(make: impl AsyncFn() -> R)
where
    R: AkSuccession + AkRegistry + MachineRegistry + ClockLog + PlatformLog,
{
    a_successor_takes_over_all_that_its_predecessor_was(&filled(&make).await).await;
    an_unused_successor_is_replaced(&filled(&make).await).await;
    only_the_key_of_a_machine_in_service_names_one(&filled(&make).await).await;
    a_known_key_is_nobodys_successor(&filled(&make).await).await;
    a_revoked_key_leaves_no_heir(&filled(&make).await).await;
    a_machine_out_of_service_promotes_nothing(&filled(&make).await).await;
    a_successor_is_promoted_once(&filled(&make).await).await;
}

/// Machines 1 and 2, bound to keys 1 and 2, and machine 3 without one.
async fn filled<R: AkRegistry + MachineRegistry>(make: &impl AsyncFn() -> R) -> R {
    let registry = make().await;
    for number in 1..=3 {
        let machine = sample::machine(number);
        ok(registry.create(&machine, UnclaimedLimit::Unlimited).await);
    }
    for number in 1..=2 {
        let mut record = sample::ak(number, number);
        record.ek = Some(key(70 + number));
        let approved = crate::ak::ApprovedAk::dangerous_assume_approved(record);
        ok(registry.bind(&approved, &sample::line()).await);
    }
    registry
}

fn key(number: u64) -> Fingerprint {
    sample::public_key(number).fingerprint()
}

async fn name(aks: &dyn AkSuccession, bound: u64, successor: u64) -> NameOutcome {
    let public = sample::public_key(successor);
    ok(aks.name_successor(&key(bound), &public, &sample::line()).await)
}

async fn promote(aks: &dyn AkSuccession, successor: u64) -> PromoteOutcome {
    ok(aks.promote_successor(&key(successor), &sample::line()).await)
}

async fn found(aks: &dyn AkSuccession, successor: u64) -> Option<Fingerprint> {
    let found: Option<Successor> = ok(aks.find_successor(&key(successor)).await);
    found.map(|found| {
        assert_eq!(found.public, sample::public_key(successor));
        found.predecessor
    })
}

async fn state(aks: &dyn AkRegistry, number: u64) -> Option<AkState> {
    ok(aks.find(&key(number)).await).map(|record| record.state)
}

async fn a_successor_takes_over_all_that_its_predecessor_was<R>(registry: &R)
where
    R: AkSuccession + AkRegistry + MachineRegistry + ClockLog + PlatformLog,
{
    let (id, at) = (sample::machine_id(1), sample::time(5));
    let reading = |reset_count| {
        let clock = TpmClock { clock_ms: 9, reset_count, restart_count: 0, safe: true };
        ClockReading::new(clock, at, at)
    };
    ok(registry.advance(&key(1), id, &reading(7)).await);
    let seen = PlatformBoot::new().platform();
    ok(registry.admit(&key(1), id, &seen, at).await);
    let before = ok(AkRegistry::find(registry, &key(1)).await);
    assert_eq!(name(registry, 1, 11).await, NameOutcome::Named);
    assert_eq!(found(registry, 11).await, Some(key(1)));
    assert_eq!(state(registry, 11).await, None, "it is not bound, and does not wait");
    assert_eq!(state(registry, 1).await, Some(AkState::Bound), "until it is used");
    assert_eq!(promote(registry, 11).await, PromoteOutcome::Promoted);
    assert_eq!(found(registry, 11).await, None);
    assert_eq!(state(registry, 1).await, Some(AkState::Revoked));
    let after = ok(registry.bound_to(&id).await);
    assert_eq!(after.as_ref().map(|record| record.public.clone()), Some(sample::public_key(11)));
    let facts = |record: Option<crate::ak::AkRecord>| {
        record.map(|record| (record.machine, record.ek, record.submitted_at, record.source))
    };
    assert_eq!(facts(after), facts(before));
    let machine = ok(MachineRegistry::find(registry, &id).await);
    let binding = machine.and_then(|machine| machine.binding);
    assert_eq!(binding.map(|last| (last.ak, last.ek)), Some((key(11), Some(key(71)))));
    let earlier = ok(registry.advance(&key(11), id, &reading(6)).await);
    assert!(matches!(earlier, ClockOutcome::Refused(_)), "its TPM is the same");
    let platform = ok(PlatformLog::find(registry, &key(11)).await);
    assert_eq!(platform.map(|platform| platform.baseline), Some(seen));
    assert_eq!(ok(PlatformLog::find(registry, &key(1)).await), None);
}

async fn an_unused_successor_is_replaced<R: AkSuccession + AkRegistry>(registry: &R) {
    for successor in [11, 12, 12] {
        assert_eq!(name(registry, 1, successor).await, NameOutcome::Named);
    }
    assert_eq!((found(registry, 11).await, found(registry, 12).await), (None, Some(key(1))));
    assert_eq!(promote(registry, 11).await, PromoteOutcome::Lost);
    assert_eq!(name(registry, 1, 11).await, NameOutcome::Named, "it was never used");
    assert_eq!(promote(registry, 11).await, PromoteOutcome::Promoted);
    assert_eq!(name(registry, 11, 13).await, NameOutcome::Named, "again");
    assert_eq!(promote(registry, 13).await, PromoteOutcome::Promoted);
}

async fn only_the_key_of_a_machine_in_service_names_one<R>(registry: &R)
where
    R: AkSuccession + AkRegistry + MachineRegistry,
{
    assert_eq!(name(registry, 9, 11).await, NameOutcome::NotBound, "unknown");
    ok(registry.submit(&sample::ak(3, 3), &sample::line()).await);
    assert_eq!(name(registry, 3, 11).await, NameOutcome::NotBound, "waiting");
    ok(AkRegistry::revoke(registry, &key(1), &sample::line()).await);
    assert_eq!(name(registry, 1, 11).await, NameOutcome::NotBound, "revoked");
    let id = sample::machine_id(2);
    ok(registry.change(&id, MachineChange::Quarantine, &sample::line()).await);
    assert_eq!(name(registry, 2, 11).await, NameOutcome::NotBound, "quarantined");
    assert_eq!(found(registry, 11).await, None);
}

async fn a_known_key_is_nobodys_successor<R: AkSuccession + AkRegistry>(registry: &R) {
    ok(registry.submit(&sample::ak(3, 3), &sample::line()).await);
    for taken in [1, 2, 3] {
        assert_eq!(name(registry, 1, taken).await, NameOutcome::KeyTaken);
    }
    ok(registry.revoke(&key(3), &sample::line()).await);
    assert_eq!(name(registry, 1, 3).await, NameOutcome::KeyTaken, "revoked");
    name(registry, 1, 11).await;
    assert_eq!(name(registry, 2, 11).await, NameOutcome::KeyTaken, "of another machine");
    let outcome = ok(registry.bind(&sample::approved_ak(11, 3), &sample::line()).await);
    assert_eq!(outcome, BindOutcome::KeyTaken);
    let outcome = ok(registry.submit(&sample::ak(11, 3), &sample::line()).await);
    assert_eq!(outcome, CreateOutcome::Existed);
    assert_eq!(state(registry, 11).await, None);
    assert_eq!(promote(registry, 11).await, PromoteOutcome::Promoted);
}

async fn a_revoked_key_leaves_no_heir<R: AkSuccession + AkRegistry>(registry: &R) {
    name(registry, 1, 11).await;
    ok(registry.revoke(&key(1), &sample::line()).await);
    assert_eq!(found(registry, 11).await, None);
    assert_eq!(promote(registry, 11).await, PromoteOutcome::Lost);
    assert_eq!(ok(registry.bound_to(&sample::machine_id(1)).await), None);
    let waits = ok(registry.submit(&sample::ak(11, 1), &sample::line()).await);
    assert_eq!(waits, CreateOutcome::Created, "an admin may approve it like any other");
    assert_eq!(promote(registry, 11).await, PromoteOutcome::Lost);
}

async fn a_machine_out_of_service_promotes_nothing<R>(registry: &R)
where
    R: AkSuccession + AkRegistry + MachineRegistry,
{
    name(registry, 1, 11).await;
    let id = sample::machine_id(1);
    for (change, outcome) in [
        (MachineChange::Quarantine, PromoteOutcome::Lost),
        (MachineChange::Release, PromoteOutcome::Promoted),
    ] {
        ok(registry.change(&id, change, &sample::line()).await);
        assert_eq!(promote(registry, 11).await, outcome);
    }
    name(registry, 2, 12).await;
    ok(MachineRegistry::revoke(registry, &sample::machine_id(2), &sample::line()).await);
    assert_eq!(promote(registry, 12).await, PromoteOutcome::Lost);
    ok(registry.remove(&sample::machine_id(2)).await);
    assert_eq!(promote(registry, 12).await, PromoteOutcome::Lost);
    let anew = ok(registry.bind(&sample::approved_ak(2, 3), &sample::line()).await);
    assert_eq!(anew, BindOutcome::Bound);
    assert_eq!(promote(registry, 12).await, PromoteOutcome::Lost, "of the removed machine");
}

async fn a_successor_is_promoted_once<R: AkSuccession>(registry: &R) {
    name(registry, 1, 11).await;
    let (successor, line) = (key(11), sample::line());
    let calls = (0..4).map(|_| registry.promote_successor(&successor, &line)).collect();
    let outcomes: Vec<_> = at_once(calls).await.into_iter().map(ok).collect();
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    let counts = (count(PromoteOutcome::Promoted), count(PromoteOutcome::AlreadyBound));
    assert_eq!(counts, (1, 3));
}
