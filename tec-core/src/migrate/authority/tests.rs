use uuid::Uuid;

use super::*;
use crate::code::Code;

fn anchor(number: u128) -> Authority {
    Authority::founded(AnchorId::from(Uuid::from_u128(number)))
}

#[expect(clippy::large_types_passed_by_value, reason = "what a transition gives goes right in")]
fn moved(change: Result<Transition, Refused>) -> Authority {
    *change.unwrap().to()
}

/// The source is active at 0, the target is on standby.
fn pair() -> (Authority, Authority) {
    let source = anchor(1);
    (source, moved(anchor(2).stand_by(&source)))
}

/// The source gave up at 1, the target took.
fn cut_over() -> (Authority, Authority) {
    let (source, target) = pair();
    let source = moved(source.yield_to(&target, Epoch::new(1)));
    let target = moved(target.listen(&source));
    (source, moved(target.take(&source.grant().unwrap())))
}

#[test]
fn authority_moves_from_one_to_the_other() {
    let (source, target) = cut_over();
    assert_eq!((source.role(), target.role()), (Role::ServeOnly, Role::Active));
    assert_eq!(target.domain(), source.anchor());
    assert!(source.permit(Deed::Release).is_ok() && target.permit(Deed::Admit).is_ok());
    let refused = source.permit(Deed::Admit).unwrap_err();
    assert_eq!(refused.code(), Code::AuthorityElsewhere);
    assert_eq!(refused.peer, Some(target.anchor()));
}

#[test]
fn a_grant_is_void_once_its_taker_gave_up_too() {
    let (source, target) = pair();
    let source = moved(source.yield_to(&target, Epoch::new(1)));
    let grant = source.grant().unwrap();
    let listening = moved(target.listen(&source));
    let fenced = moved(listening.yield_to(&source, Epoch::new(2)));
    assert_eq!(fenced.role(), Role::Standby);
    assert!(matches!(fenced.take(&grant), Err(Refused::Epoch { .. })));
    assert!(source.listen(&fenced).is_err(), "it never had the authority");
    let source = moved(source.take(&fenced.grant().unwrap()));
    assert_eq!((source.role(), source.epoch()), (Role::Active, Epoch::new(2)));
}

#[test]
fn nothing_is_taken_without_a_copy_of_that_epoch() {
    let (source, target) = pair();
    let source = moved(source.yield_to(&target, Epoch::new(1)));
    assert!(target.take(&source.grant().unwrap()).is_err());
    let early = moved(target.listen(&source));
    let target = moved(early.listen(&source));
    assert!(target.admits(early.intake().unwrap()).is_err(), "a late page");
    assert!(target.admits(target.intake().unwrap()).is_ok());
}

#[test]
fn an_anchor_that_gave_up_cannot_give_it_to_somebody_else() {
    let (source, target) = pair();
    let source = moved(source.yield_to(&target, Epoch::new(1)));
    let third = moved(anchor(3).stand_by(&source));
    let refused = source.yield_to(&third, Epoch::new(2)).unwrap_err();
    assert!(matches!(refused, Refused::Peer { .. }), "{refused}");
    assert_eq!(refused.code(), Code::TrustForeign);
}

#[test]
fn the_grant_of_another_trust_is_refused() {
    let (_, target) = pair();
    let other = anchor(7);
    let stranger = moved(anchor(8).stand_by(&other));
    let other = moved(other.yield_to(&stranger, Epoch::new(1)));
    let refused = target.take(&other.grant().unwrap()).unwrap_err();
    assert_eq!(refused.code(), Code::TrustForeign);
}

#[test]
fn who_serves_nobody_says_who_does_and_comes_back_for_nothing() {
    let (source, target) = cut_over();
    assert!(source.retire().is_err(), "it still serves");
    let source = moved(source.forward(&target));
    let refused = source.permit(Deed::Release).unwrap_err();
    assert_eq!(refused.code(), Code::AnchorReplaced);
    assert!(refused.to_string().contains(&target.anchor().to_string()));
    let source = moved(source.retire());
    assert!(source.listen(&target).is_err());
    let still = moved(source.yield_to(&target, Epoch::new(9)));
    assert_eq!(still.role(), Role::Retired);
}

#[test]
fn an_anchor_that_stands_by_serves_nobody_and_makes_nothing() {
    let (_, target) = pair();
    for deed in [Deed::Admit, Deed::Release] {
        let refused = target.permit(deed).unwrap_err();
        assert_eq!(refused.code(), Code::AnchorStandsBy);
    }
    assert!(target.permit(Deed::ShutOut).is_err());
}

#[test]
fn a_target_belongs_to_one_migration() {
    let (_, target) = pair();
    assert!(target.stand_by(&anchor(9)).is_err());
    let own = anchor(1);
    assert!(own.stand_by(&own).is_err());
}

#[test]
fn an_older_transfer_is_not_taken_after_a_later_one() {
    let (source, target) = pair();
    let first = *source.count_transfer().to();
    let second = *first.count_transfer().to();
    let target = moved(target.listen_to_transfer(&second));
    let again = moved(target.listen_to_transfer(&second));
    let refused = again.listen_to_transfer(&first).unwrap_err();
    assert_eq!(refused.code(), Code::TransferReplayed);
    let taken = moved(again.dangerous_seize());
    assert_eq!(taken.listen_to_transfer(&second), Err(Refused::Replayed));
}

#[test]
fn records_are_read_back_as_they_were_written() {
    let (source, target) = cut_over();
    for record in [source, target] {
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Authority>(&text).unwrap(), record);
    }
}
