use std::sync::Arc;

use super::{kind, ok};
use crate::ak::ApprovedAk;
use crate::code::Code;
use crate::id::ResourcePath;
use crate::machine::{LastBinding, MachineChange, MachineState};
use crate::migrate::{
    AdoptPage, Adopted, Authority, Clash, Epoch, Role, SwapOutcome, Transition, TrustAnchor,
    TrustUnit, UnitName,
};
use crate::port::{
    AkRegistry, ImageRegistry, MachineRegistry, PortError, PortErrorKind, SecretStore,
    UnclaimedLimit,
};
use crate::testing::sample;

/// Checks the contract of [`TrustAnchor`], and that the other ports obey the record of authority;
/// `make` returns an empty anchor, a different one each time.
///
/// # Panics
/// If the contract is broken.
pub async fn trust_anchor<A>(make: impl AsyncFn() -> A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    a_new_anchor_is_its_own_authority(&make().await).await;
    a_swap_is_made_once(&make().await, &make().await).await;
    export_is_in_order_and_in_pages(&make().await).await;
    what_is_adopted_is_what_was_exported(&make().await, &make().await).await;
    a_machine_whose_key_is_gone_is_not_free_again(&make().await, &make().await).await;
    pages_of_an_earlier_pass_are_refused(&make().await, &make().await).await;
    what_contradicts_is_left_as_it_is(&make().await, &make().await).await;
    what_is_gone_at_the_other_goes_here(&make().await, &make().await).await;
    each_role_does_what_it_may(&make().await, &make().await).await;
    what_is_out_of_service_stays_so(&make().await, &make().await).await;
    recovery_keys_go_with_their_machine(&make().await, &make().await).await;
}

async fn fill<A>(anchor: &A, machines: std::ops::RangeInclusive<u64>)
where
    A: MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    let line = &sample::line();
    for number in machines {
        let machine = sample::machine(number);
        ok(anchor.create(&machine, UnclaimedLimit::Unlimited).await);
        ok(anchor.bind(&sample::approved_ak(number, number), line).await);
        let path = ResourcePath::luks_root(&machine.id);
        ok(anchor.put_new(&path, &sample::secret(number), line).await);
        ok(anchor.put(&sample::image(number)).await);
    }
}

async fn all(anchor: &dyn TrustAnchor) -> Vec<TrustUnit> {
    ok(anchor.export(None, usize::MAX).await)
}

fn names(units: &[TrustUnit]) -> Vec<UnitName> {
    units.iter().map(TrustUnit::name).collect()
}

async fn swapped<E: std::fmt::Debug>(
    anchor: &dyn TrustAnchor,
    change: impl FnOnce(&Authority) -> Result<Transition, E>,
) -> Authority {
    let now = ok(anchor.authority().await);
    let change = change(&now);
    let change = change.unwrap_or_else(|refused| unreachable!("refused: {refused:?}"));
    let outcome = ok(anchor.swap(&change, &sample::line()).await);
    assert_eq!(outcome, SwapOutcome::Swapped);
    *change.to()
}

/// Puts `target` on standby for `source`, listening.
async fn pair(source: &dyn TrustAnchor, target: &dyn TrustAnchor) -> (Authority, Authority) {
    let source = ok(source.authority().await);
    swapped(target, |now| now.stand_by(&source)).await;
    (source, swapped(target, |now| now.listen(&source)).await)
}

async fn adopt(
    anchor: &dyn TrustAnchor,
    pass: &Authority,
    units: impl Into<Arc<[TrustUnit]>>,
) -> Result<Vec<Adopted>, PortError> {
    let intake = pass.intake();
    let page = AdoptPage {
        intake: intake.unwrap_or_else(|| unreachable!("it listens")),
        after: None,
        units: units.into(),
        more: false,
        at: sample::time(9),
    };
    anchor.adopt(&page).await
}

async fn a_new_anchor_is_its_own_authority(anchor: &dyn TrustAnchor) {
    let record = ok(anchor.authority().await);
    assert!(record.is_alone());
    assert_eq!(record.domain(), record.anchor());
    assert_eq!(ok(anchor.authority().await), record, "the same each time");
}

async fn a_swap_is_made_once(one: &dyn TrustAnchor, two: &dyn TrustAnchor) {
    let (source, target) = pair(one, two).await;
    let change = source.yield_to(&target, Epoch::new(1));
    let change = change.unwrap_or_else(|refused| unreachable!("{refused}"));
    let line = &sample::line();
    assert_eq!(ok(one.swap(&change, line).await), SwapOutcome::Swapped);
    let again = ok(one.swap(&change, line).await);
    assert_eq!(again, SwapOutcome::Lost(*change.to()));
    assert_eq!(ok(one.authority().await), *change.to());
}

async fn export_is_in_order_and_in_pages<A>(anchor: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(anchor, 1..=3).await;
    let whole = names(&all(anchor).await);
    assert_eq!(whole.len(), 6);
    assert!(whole.is_sorted());
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = names(&ok(anchor.export(after.as_ref(), 2).await));
        let Some(first) = page.first() else { break };
        // An export that starts over would never end.
        assert!(after.is_none_or(|after| *first > after), "a page begins behind `after`");
        after = page.last().cloned();
        paged.extend(page);
    }
    assert_eq!(paged, whole);
}

async fn a_machine_whose_key_is_gone_is_not_free_again<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(source, 1..=1).await;
    let key = sample::public_key(1).fingerprint();
    ok(AkRegistry::revoke(source, &key, &sample::line()).await);
    let (_, pass) = pair(source, target).await;
    let mut units = all(source).await;
    // If keys are objects, someone may have removed it.
    for unit in &mut units {
        if let TrustUnit::Machine(unit) = unit {
            unit.keys.clear();
        }
    }
    ok(adopt(target, &pass, units).await);
    let free = ok(MachineRegistry::find(target, &sample::machine_id(1)).await);
    let binding = free.and_then(|machine| machine.binding);
    let last = binding.map(|last| last.ak);
    assert_eq!(last, Some(key), "the next key is no first use");
}

async fn what_is_adopted_is_what_was_exported<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(source, 1..=3).await;
    ok(source.create(&sample::machine(4), UnclaimedLimit::Unlimited).await);
    let mut proven = sample::ak(4, 4);
    proven.ek = Some(sample::public_key(77).fingerprint());
    let last = LastBinding::new(proven.fingerprint(), proven.ek);
    let proven = ApprovedAk::dangerous_assume_approved(proven);
    ok(source.bind(&proven, &sample::line()).await);
    for key in [2, 4] {
        let key = sample::public_key(key).fingerprint();
        ok(AkRegistry::revoke(source, &key, &sample::line()).await);
    }
    let (_, pass) = pair(source, target).await;
    let units: Arc<[TrustUnit]> = all(source).await.into();
    let adopted = ok(adopt(target, &pass, Arc::clone(&units)).await);
    assert!(adopted.iter().all(|one| *one == Adopted::Created));
    let again = ok(adopt(target, &pass, Arc::clone(&units)).await);
    assert!(again.iter().all(|one| *one == Adopted::Same));
    assert!(ok(target.weigh(&units).await).iter().all(|one| *one == Adopted::Same));
    let differ = ok(crate::migrate::verify(source, target, &[1; 32]).await);
    assert_eq!(differ, [], "all that counts is there");
    let machine = ok(MachineRegistry::find(target, &sample::machine_id(1)).await);
    assert!(machine.is_some_and(|machine| machine.state == MachineState::Active));
    let free = ok(MachineRegistry::find(target, &sample::machine_id(4)).await);
    let free = free.and_then(|machine| machine.binding);
    assert_eq!(free, Some(last), "it is known that it had a key, and which");
    ok(MachineRegistry::revoke(source, &sample::machine_id(1), &sample::line()).await);
    let later = ok(adopt(target, &pass, all(source).await).await);
    assert_eq!(later.iter().filter(|one| **one == Adopted::Updated).count(), 1);
}

async fn what_is_out_of_service_stays_so<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    use MachineChange::{Quarantine, Release, Retire};
    use MachineState::{Active, Quarantined, Retired, Revoked};
    fill(source, 1..=4).await;
    let line = &sample::line();
    let change = async |number, change| {
        ok(source.change(&sample::machine_id(number), change, line).await);
    };
    change(1, Quarantine).await;
    change(2, Retire).await;
    let (_, pass) = pair(source, target).await;
    ok(adopt(target, &pass, all(source).await).await);
    let states = async || {
        let machines = ok(MachineRegistry::list(target, None, 10).await);
        machines.into_iter().map(|machine| machine.state).collect::<Vec<_>>()
    };
    assert_eq!(states().await, [Quarantined, Retired, Active, Active]);
    assert_eq!(ok(crate::migrate::verify(source, target, &[1; 32]).await), []);
    // The same holds for changes at the source during the copy.
    change(3, Quarantine).await;
    change(4, Retire).await;
    let differ = ok(crate::migrate::verify(source, target, &[2; 32]).await);
    assert!(differ.len() == 2 && differ.iter().all(|one| one.difference.is_loss()), "{differ:?}");
    ok(adopt(target, &pass, all(source).await).await);
    assert_eq!(states().await, [Quarantined, Retired, Quarantined, Retired]);
    // A release is not copied: an admin must lift the quarantine at the target as well.
    change(1, Release).await;
    ok(MachineRegistry::revoke(source, &sample::machine_id(3), line).await);
    ok(adopt(target, &pass, all(source).await).await);
    assert_eq!(states().await, [Quarantined, Retired, Revoked, Retired]);
}

async fn recovery_keys_go_with_their_machine<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(source, 1..=2).await;
    let line = &sample::line();
    let path = sample::recovery_path;
    for number in 1..=2 {
        let key = sample::sealed(60 + u64::from(number));
        ok(source.put_new(&path(number), &key, line).await);
    }
    let (_, pass) = pair(source, target).await;
    ok(adopt(target, &pass, all(source).await).await);
    assert!(ok(target.exists(&path(1)).await) && ok(target.exists(&path(2)).await));
    let differ = async || ok(crate::migrate::verify(source, target, &[1; 32]).await);
    assert_eq!(differ().await, [], "the recovery keys are the same");
    // A key deposited later is missed until it arrives as well.
    ok(source.put_new(&path(3), &sample::sealed(63), line).await);
    let lost = differ().await;
    assert!(lost.iter().any(|mismatch| mismatch.difference.is_loss()));
    let adopted = ok(adopt(target, &pass, all(source).await).await);
    let updated = adopted.iter().filter(|one| **one == Adopted::Updated);
    assert_eq!(updated.count(), 1);
    assert_eq!(differ().await, []);
    ok(MachineRegistry::remove(source, &sample::machine_id(1)).await);
    ok(adopt(target, &pass, all(source).await).await);
    for number in 1..=3 {
        assert!(!ok(target.exists(&path(number)).await), "it goes with it");
    }
}

async fn pages_of_an_earlier_pass_are_refused<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(source, 1..=1).await;
    let (_, pass) = pair(source, target).await;
    let units: Arc<[TrustUnit]> = all(source).await.into();
    let record = ok(source.authority().await);
    swapped(target, |now| now.listen(&record)).await;
    for anchor in [target as &dyn TrustAnchor, source] {
        let late = adopt(anchor, &pass, Arc::clone(&units)).await;
        assert_eq!(kind(late), PortErrorKind::Conflict);
    }
    assert!(all(target).await.is_empty());
}

async fn what_contradicts_is_left_as_it_is<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(source, 1..=2).await;
    let line = &sample::line();
    ok(target.create(&sample::machine(1), UnclaimedLimit::Unlimited).await);
    ok(target.put_new(&sample::secret_path(1), &sample::secret(8), line).await);
    let (_, pass) = pair(source, target).await;
    let adopted = ok(adopt(target, &pass, all(source).await).await);
    let clash = Adopted::Clash(Clash::DiskKey);
    assert_eq!(adopted, [Adopted::Created, Adopted::Created, clash, Adopted::Created]);
    let units = all(target).await;
    let kept = units.iter().any(|unit| match unit {
        TrustUnit::Machine(unit) => {
            let key = unit.secret.as_ref();
            key.is_some_and(|key| key.ct_eq(&sample::secret(8)))
        }
        TrustUnit::Image(_) => false,
    });
    assert!(kept, "the key that was there is there");
}

async fn what_is_gone_at_the_other_goes_here<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(source, 1..=2).await;
    ok(target.create(&sample::machine(9), UnclaimedLimit::Unlimited).await);
    let (_, pass) = pair(source, target).await;
    ok(adopt(target, &pass, all(source).await).await);
    ok(MachineRegistry::remove(source, &sample::machine_id(1)).await);
    ok(adopt(target, &pass, all(source).await).await);
    let left = names(&all(target).await);
    assert!(!left.contains(&UnitName::Machine(sample::machine_id(1))));
    assert!(left.contains(&UnitName::Machine(sample::machine_id(2))));
    assert!(left.contains(&UnitName::Machine(sample::machine_id(9))), "its own stays");
    assert!(!ok(target.exists(&sample::secret_path(1)).await));
}

async fn each_role_does_what_it_may<A>(source: &A, target: &A)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    fill(source, 1..=2).await;
    ok(source.put_new(&sample::recovery_path(1), &sample::sealed(1), &sample::line()).await);
    let (_, standby) = pair(source, target).await;
    approves_nothing(target, Code::AnchorStandsBy).await;
    let early = MachineRegistry::revoke(target, &sample::machine_id(1), &sample::line()).await;
    assert_eq!(code(early), Some(Code::AnchorStandsBy), "the authority revokes");
    let gave_up = swapped(source, |now| now.yield_to(&standby, Epoch::new(1))).await;
    approves_nothing(source, Code::AuthorityElsewhere).await;
    let released = ok(SecretStore::find(source, &sample::secret_path(1)).await);
    assert!(released.is_some(), "serve-only serves");
    ok(AkRegistry::revoke(source, &sample::ak(2, 2).fingerprint(), &sample::line()).await);
    assert_eq!(
        kind(MachineRegistry::remove(source, &sample::machine_id(1)).await),
        PortErrorKind::Denied
    );
    let shred = source.shred(&sample::line()).await;
    assert_eq!(kind(shred), PortErrorKind::Conflict, "it still serves");
    let pass = swapped(target, |now| now.listen(&gave_up)).await;
    ok(adopt(target, &pass, all(source).await).await);
    let grant = gave_up.grant();
    let grant = grant.unwrap_or_else(|| unreachable!("it gave up"));
    let active = swapped(target, |now| now.take(&grant)).await;
    fill(target, 3..=3).await;
    let forward = swapped(source, |now| now.forward(&active)).await;
    assert_eq!(forward.role(), Role::Forward);
    approves_nothing(source, Code::AnchorReplaced).await;
    let refused = SecretStore::find(source, &sample::secret_path(1)).await;
    assert_eq!(code(refused), Some(Code::AnchorReplaced));
    assert_eq!(ok(source.shred(&sample::line()).await), 3);
    assert_eq!(ok(source.shred(&sample::line()).await), 0);
}

fn code<T>(answer: Result<T, PortError>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

async fn approves_nothing<A>(anchor: &A, why: Code)
where
    A: TrustAnchor + MachineRegistry + AkRegistry + ImageRegistry + SecretStore,
{
    let line = &sample::line();
    let (machine, path) = (&sample::machine(50), &sample::secret_path(50));
    let registered = anchor.create(machine, UnclaimedLimit::Unlimited).await;
    assert_eq!(code(registered), Some(why));
    assert_eq!(code(anchor.put(&sample::image(50)).await), Some(why));
    let made = anchor.put_new(path, &sample::secret(50), line).await;
    assert_eq!(code(made), Some(why));
    assert!(!ok(anchor.exists(path).await));
    // For an existing machine; on standby there may be none.
    if ok(MachineRegistry::find(anchor, &sample::machine_id(2)).await).is_some() {
        assert_eq!(code(anchor.submit(&sample::ak(51, 2), line).await), Some(why));
        assert_eq!(code(anchor.bind(&sample::approved_ak(51, 2), line).await), Some(why));
    }
}
