use super::{at_once, kind, ok};
use crate::id::MachineId;
use crate::machine::{Machine, MachineChange, MachineState, RegisteredBy};
use crate::port::{CreateOutcome, MachineRegistry, PortErrorKind, UnclaimedLimit};
use crate::testing::sample;

/// Checks the contract of [`MachineRegistry`]; `make` returns an empty registry.
///
/// # Panics
/// If the contract is broken.
pub async fn machine_registry<R: MachineRegistry>(make: impl AsyncFn() -> R) {
    create_happens_once(&make().await).await;
    limit_counts_the_unclaimed(&make().await).await;
    limit_holds_for_many_at_once(&make().await).await;
    list_pages_in_order(&make().await).await;
    revoke_marks_and_repeats(&make().await).await;
    a_quarantine_is_lifted_and_what_is_final_stays(&make().await).await;
    remove_repeats(&make().await).await;
    only_strays_expire(&make().await).await;
}

async fn create_happens_once(registry: &dyn MachineRegistry) {
    let machine = sample::machine(1);
    assert_eq!(ok(registry.find(&machine.id).await), None);
    let create = |machine| registry.create(machine, UnclaimedLimit::Unlimited);
    assert_eq!(ok(create(&machine).await), CreateOutcome::Created);
    assert_eq!(ok(registry.find(&machine.id).await), Some(machine.clone()));
    let other = Machine::unclaimed(machine.id, RegisteredBy::Admin, sample::time(99));
    assert_eq!(ok(create(&other).await), CreateOutcome::Existed);
    assert_eq!(ok(registry.find(&machine.id).await), Some(machine));
    assert_eq!(ok(registry.find(&sample::machine_id(2)).await), None);
}

async fn limit_counts_the_unclaimed(registry: &dyn MachineRegistry) {
    let limit = UnclaimedLimit::AtMost(2);
    for number in [1, 2] {
        ok(registry.create(&sample::machine(number), limit).await);
    }
    let third = sample::machine(3);
    assert_eq!(kind(registry.create(&third, limit).await), PortErrorKind::Denied);
    assert_eq!(ok(registry.find(&third.id).await), None, "nothing was kept");
    let again = registry.create(&sample::machine(1), limit).await;
    assert_eq!(ok(again), CreateOutcome::Existed, "a known machine needs no room");
    ok(registry.create(&third, UnclaimedLimit::Unlimited).await);
    ok(registry.remove(&third.id).await);
    ok(registry.revoke(&sample::machine_id(2), &sample::line()).await);
    assert_eq!(ok(registry.create(&third, limit).await), CreateOutcome::Created);
    let none = UnclaimedLimit::AtMost(0);
    assert_eq!(kind(registry.create(&sample::machine(4), none).await), PortErrorKind::Denied);
}

async fn limit_holds_for_many_at_once(registry: &dyn MachineRegistry) {
    let machines: Vec<_> = (1..=8).map(sample::machine).collect();
    let create = |machine| registry.create(machine, UnclaimedLimit::AtMost(3));
    let answers = at_once(machines.iter().map(create).collect()).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (3, 5), "check and insert are one step");
    for answer in refused {
        assert_eq!(kind(answer), PortErrorKind::Denied);
    }
    assert_eq!(ok(registry.list(None, 100).await).len(), 3);
}

async fn list_pages_in_order(registry: &dyn MachineRegistry) {
    // Numbers that sort differently as text, and ids that differ in the first and in the last byte.
    let ids = [5, 300, 2, 70_000, 40, u64::MAX];
    for number in ids {
        ok(registry.create(&sample::machine(number), UnclaimedLimit::Unlimited).await);
    }
    let mut expected: Vec<_> = ids.into_iter().map(sample::machine_id).collect();
    expected.sort_unstable();
    let mut seen: Vec<MachineId> = Vec::new();
    loop {
        let after = seen.last().copied();
        let page = ok(registry.list(after, 4).await);
        assert!(page.len() <= 4, "a page is bounded");
        let ids: Vec<_> = page.into_iter().map(|machine| machine.id).collect();
        let Some(first) = ids.first() else { break };
        // A list that starts over would never end.
        assert!(after.is_none_or(|after| *first > after), "a page begins behind `after`");
        seen.extend(ids);
    }
    assert_eq!(seen, expected);
    assert!(ok(registry.list(None, 0).await).is_empty());
    let rest = ok(registry.list(Some(sample::machine_id(41)), 100).await);
    assert_eq!(rest.len(), 3, "`after` need not exist");
}

async fn revoke_marks_and_repeats(registry: &dyn MachineRegistry) {
    let id = sample::machine_id(1);
    assert_eq!(kind(registry.revoke(&id, &sample::line()).await), PortErrorKind::NotFound);
    ok(registry.create(&sample::machine(1), UnclaimedLimit::Unlimited).await);
    for _ in 0..2 {
        ok(registry.revoke(&id, &sample::line()).await);
        let state = ok(registry.find(&id).await).map(|machine| machine.state);
        assert_eq!(state, Some(MachineState::Revoked));
    }
    let again = registry.create(&sample::machine(1), UnclaimedLimit::Unlimited).await;
    assert_eq!(ok(again), CreateOutcome::Existed, "registering does not undo a revocation");
    let state = ok(registry.find(&id).await).map(|machine| machine.state);
    assert_eq!(state, Some(MachineState::Revoked));
}

async fn a_quarantine_is_lifted_and_what_is_final_stays(registry: &dyn MachineRegistry) {
    use MachineChange::{Quarantine, Release, Retire};
    let line = &sample::line();
    let (id, other) = (sample::machine_id(1), sample::machine_id(2));
    let state = async |id| ok(registry.find(&id).await).map(|machine| machine.state);
    for change in [Quarantine, Release, Retire] {
        let refused = registry.change(&id, change, line).await;
        assert_eq!(kind(refused), PortErrorKind::NotFound);
    }
    for number in [1, 2] {
        ok(registry.create(&sample::machine(number), UnclaimedLimit::Unlimited).await);
    }
    for _ in 0..2 {
        ok(registry.change(&id, Quarantine, line).await);
        assert_eq!(state(id).await, Some(MachineState::Quarantined));
    }
    assert_eq!(ok(registry.expire_unclaimed(sample::time(i64::MAX / 2)).await), 1, "it stays");
    let none = UnclaimedLimit::AtMost(1);
    let made = registry.create(&sample::machine(2), none).await;
    assert_eq!(ok(made), CreateOutcome::Created, "it is not unclaimed");
    for _ in 0..2 {
        ok(registry.change(&id, Release, line).await);
        assert_eq!(state(id).await, Some(MachineState::Unclaimed));
    }
    ok(registry.change(&other, Quarantine, line).await);
    for id in [id, other] {
        for _ in 0..2 {
            ok(registry.change(&id, Retire, line).await);
            assert_eq!(state(id).await, Some(MachineState::Retired));
        }
    }
    ok(registry.revoke(&other, line).await);
    assert_eq!(state(other).await, Some(MachineState::Revoked), "a revocation overrides all");
    for (id, change) in
        [(id, Quarantine), (id, Release), (other, Quarantine), (other, Release), (other, Retire)]
    {
        assert_eq!(kind(registry.change(&id, change, line).await), PortErrorKind::Conflict);
    }
    assert_eq!(state(id).await, Some(MachineState::Retired));
    assert_eq!(state(other).await, Some(MachineState::Revoked));
}

async fn remove_repeats(registry: &dyn MachineRegistry) {
    ok(registry.create(&sample::machine(1), UnclaimedLimit::Unlimited).await);
    ok(registry.create(&sample::machine(2), UnclaimedLimit::Unlimited).await);
    for _ in 0..2 {
        ok(registry.remove(&sample::machine_id(1)).await);
        assert_eq!(ok(registry.find(&sample::machine_id(1)).await), None);
    }
    assert_eq!(ok(registry.list(None, 10).await), [sample::machine(2)]);
}

async fn only_strays_expire(registry: &dyn MachineRegistry) {
    let machine =
        |number, by, at| Machine::unclaimed(sample::machine_id(number), by, sample::time(at));
    let machines = [
        machine(1, RegisteredBy::FirstBoot, 0),
        machine(2, RegisteredBy::FirstBoot, 10),
        machine(3, RegisteredBy::Admin, 0),
        machine(4, RegisteredBy::FirstBoot, 0),
        machine(5, RegisteredBy::FirstBoot, 9),
    ];
    for machine in &machines {
        ok(registry.create(machine, UnclaimedLimit::Unlimited).await);
    }
    ok(registry.revoke(&sample::machine_id(4), &sample::line()).await);
    assert_eq!(ok(registry.expire_unclaimed(sample::time(10)).await), 2);
    assert_eq!(ok(registry.expire_unclaimed(sample::time(10)).await), 0);
    let left: Vec<_> = ok(registry.list(None, 10).await).into_iter().map(|m| m.id).collect();
    assert_eq!(left, [2, 3, 4].map(sample::machine_id), "younger, by admin, revoked");
}
