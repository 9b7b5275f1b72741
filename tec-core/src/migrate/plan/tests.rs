//! Two anchors, two admins, nodes, and a network that loses and delays messages but never invents
//! or repeats any: whatever happens, the invariants of the module hold.

mod world;

use proptest::prelude::*;

use self::world::{Mishap, Step, World};
use crate::migrate::{Goal, MigrateOutcome, Role, Side};

fn goal() -> impl Strategy<Value = Goal> {
    prop_oneof![
        2 => Just(Goal::Copy),
        6 => Just(Goal::Cutover),
        3 => Just(Goal::Rollback),
        1 => Just(Goal::Retire),
    ]
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Source), Just(Side::Target)]
}

fn mishap() -> impl Strategy<Value = Mishap> {
    prop_oneof![
        12 => Just(Mishap::None),
        1 => Just(Mishap::Fails),
        1 => Just(Mishap::LostAck),
        1 => Just(Mishap::Crash),
        2 => Just(Mishap::Delayed),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let machine = || 0..8_usize;
    prop_oneof![
        3 => (0..2_usize, goal()).prop_map(|(admin, goal)| Step::Begin(admin, goal)),
        40 => (0..2_usize, mishap()).prop_map(|(admin, mishap)| Step::Go(admin, mishap)),
        4 => (0..16_usize).prop_map(Step::Late),
        3 => side().prop_map(Step::Register),
        2 => (side(), machine()).prop_map(|(side, machine)| Step::Revoke(side, machine)),
        1 => (side(), machine()).prop_map(|(side, machine)| Step::Remove(side, machine)),
        3 => (side(), machine()).prop_map(|(side, machine)| Step::Escrow(side, machine)),
        1 => side().prop_map(Step::Approve),
    ]
}

proptest! {
    // The long form: PROPTEST_CASES=100000.
    #[test]
    fn whatever_happens_there_is_one_authority_and_no_key_is_lost(
        foreign in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(foreign);
        for step in steps {
            world.perform(&step);
            world.check();
        }
        world.late_ones_arrive();
        world.ends_well();
    }
}

#[test]
fn a_cutover_without_mishaps_moves_everything_and_a_rollback_brings_it_back() {
    let mut world = World::new(true);
    for _ in 0..5 {
        world.perform(&Step::Register(Side::Source));
    }
    assert_eq!(world.run(Goal::Cutover), MigrateOutcome::Reached);
    assert_eq!(world.roles(), [Role::ServeOnly, Role::Active]);
    world.perform(&Step::Register(Side::Target));
    world.check();
    assert_eq!(world.run(Goal::Rollback), MigrateOutcome::Reached);
    assert_eq!(world.roles(), [Role::Active, Role::ServeOnly]);
    world.check();
    assert_eq!(world.run(Goal::Cutover), MigrateOutcome::Reached);
    assert_eq!(world.run(Goal::Retire), MigrateOutcome::Reached);
    assert_eq!(world.roles(), [Role::Retired, Role::Active]);
    world.check();
}

#[test]
fn recovery_keys_are_carried_there_and_back_before_the_source_is_shredded() {
    let mut world = World::new(false);
    world.perform(&Step::Register(Side::Source));
    world.perform(&Step::Escrow(Side::Source, 0));
    assert_eq!(world.run(Goal::Cutover), MigrateOutcome::Reached);
    assert!(world.has_escrow(Side::Target, 0, 1));
    world.perform(&Step::Escrow(Side::Target, 0));
    assert_eq!(world.run(Goal::Retire), MigrateOutcome::Reached);
    for number in [1, 2] {
        assert!(world.has_escrow(Side::Target, 0, number));
        assert!(!world.has_escrow(Side::Source, 0, number));
    }
}

#[test]
fn a_source_is_not_retired_while_the_target_lacks_a_recovery_key() {
    let mut world = World::new(false);
    world.perform(&Step::Register(Side::Source));
    world.perform(&Step::Escrow(Side::Source, 0));
    assert_eq!(world.run(Goal::Cutover), MigrateOutcome::Reached);
    world.escrows_stayed_behind();
    assert_eq!(world.run(Goal::Retire), MigrateOutcome::NotTheSame);
    assert!(world.has_escrow(Side::Source, 0, 1), "it is still there");
    // The way forward that the documentation names.
    assert_eq!(world.run(Goal::Rollback), MigrateOutcome::Reached);
    assert_eq!(world.run(Goal::Cutover), MigrateOutcome::Reached);
    assert_eq!(world.run(Goal::Retire), MigrateOutcome::Reached);
    assert!(world.has_escrow(Side::Target, 0, 1));
}

#[test]
fn what_stands_in_the_way_leaves_the_authority_where_it_was() {
    let mut world = World::new(false);
    world.perform(&Step::Register(Side::Source));
    world.clash();
    assert_eq!(world.run(Goal::Cutover), MigrateOutcome::Conflicts);
    assert_eq!(world.roles(), [Role::Active, Role::Standby]);
}

#[test]
fn a_source_is_not_retired_before_it_was_cut_over() {
    let mut world = World::new(false);
    world.perform(&Step::Register(Side::Source));
    assert!(matches!(world.run(Goal::Retire), MigrateOutcome::Refused(_)));
    assert_eq!(world.roles(), [Role::Active, Role::Active]);
}

#[test]
fn every_step_of_a_cutover_may_be_the_last_of_an_admin() {
    // More steps than a cutover of these few units takes.
    for number in 0..40 {
        for mishap in [Mishap::Fails, Mishap::LostAck, Mishap::Crash, Mishap::Delayed] {
            let mut world = World::new(true);
            for _ in 0..3 {
                world.perform(&Step::Register(Side::Source));
            }
            world.perform(&Step::Begin(0, Goal::Cutover));
            for at in 0..40 {
                let mishap = if at == number { mishap } else { Mishap::None };
                world.perform(&Step::Go(0, mishap));
                world.check();
            }
            world.late_ones_arrive();
            world.ends_well();
        }
    }
}
