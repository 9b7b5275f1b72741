//! Other authorities, while the controller dies or fails at every step. The world checks all the time that
//! everyone can verify every certificate.

use proptest::prelude::{ProptestConfig, any};
use proptest::proptest;
use tec_core::testing::{Mishap, run_plan, seeded_mishaps};

use super::super::{SetupEnd, Stage};
use super::world::Controller;
use super::{LIMIT, controller};

const HOUR: i64 = 3600;

fn healthy(world: &mut Controller) {
    run_plan(world, LIMIT, |_| Mishap::None);
}

/// How far it has come, and what everyone trusts.
fn ended(world: &Controller) -> (Stage, String) {
    match world.end.as_ref().unwrap() {
        SetupEnd::Ready { stage, trusted, .. } => (*stage, trusted.replace('\n', " ")),
        end => panic!("{end:?}"),
    }
}

const FIRST: &str = "<tec-intermediate> <tec-root> ";
const SECOND: &str = "<tec-intermediate-2> <tec-root-2> ";

/// A vault in use, and a request for other authorities.
fn requested() -> Controller {
    let mut world = controller();
    healthy(&mut world);
    assert_eq!(ended(&world), (Stage::Stable, FIRST.to_owned()));
    world.now += 30 * 24 * HOUR;
    world.wish = true;
    world
}

/// The same, after these stages, with the overlap between them elapsed.
fn after(stages: usize) -> Controller {
    let mut world = requested();
    for _ in 0..stages {
        healthy(&mut world);
        world.now += 25 * HOUR;
    }
    world
}

#[test]
fn other_authorities_are_trusted_before_they_sign_and_the_old_ones_until_their_last_signature_ends()
{
    let mut world = requested();
    healthy(&mut world);
    assert_eq!(ended(&world), (Stage::Published, format!("{FIRST}{SECOND}")));
    assert!(!world.wish);
    world.now += 24 * HOUR;
    healthy(&mut world);
    assert_eq!(ended(&world).0, Stage::Published, "mounts and clocks may lag");
    world.now += HOUR;
    healthy(&mut world);
    assert_eq!(ended(&world), (Stage::Switched, format!("{SECOND}{FIRST}")));
    assert!(world.vault.issuers().into_values().all(|issuer| issuer == "tec-intermediate-2"));
    world.now += 25 * HOUR;
    healthy(&mut world);
    assert_eq!(ended(&world), (Stage::Stable, SECOND.to_owned()));
    world.now += 25 * HOUR;
    healthy(&mut world);
    assert_eq!(ended(&world).0, Stage::Stable, "nobody asked again");
}

#[test]
fn a_crash_at_each_step_of_each_stage_leads_to_the_same_end() {
    for (stages, end) in [(0, Stage::Published), (1, Stage::Switched), (2, Stage::Stable)] {
        let begin = after(stages);
        let steps = run_plan(&mut begin.again(), LIMIT, |_| Mishap::None).effects;
        // What comes before it is the same in each round, and tested elsewhere.
        let first = steps.iter().position(|step| step.ends_with("/authorities")).unwrap();
        // One mishap per step, each in its turn; the proptest below draws others.
        let mishaps = Mishap::ALL.into_iter().cycle().skip(stages);
        for (step, mishap) in (first..steps.len()).zip(mishaps) {
            let mut world = begin.again();
            run_plan(&mut world, LIMIT, |now| if now == step { mishap } else { Mishap::None });
            healthy(&mut world);
            assert_eq!(ended(&world).0, end, "{step} {mishap:?}");
        }
    }
}

proptest! {
    // Each case is a dozen rounds.
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn whatever_happens_everyone_can_verify_every_certificate(
        seed in any::<u64>(), per_mille in 0..300u32, rounds in 8..16u64
    ) {
        let mut world = requested();
        for round in 0..rounds {
            run_plan(&mut world, LIMIT, seeded_mishaps(seed ^ round, per_mille, 200));
            world.now += 7 * HOUR;
        }
        for _ in 0..3 {
            healthy(&mut world);
            world.now += 25 * HOUR;
        }
        assert_eq!(ended(&world), (Stage::Stable, SECOND.to_owned()));
    }
}

#[test]
fn nothing_new_signs_while_a_component_may_not_have_its_certificate() {
    let mut world = after(0);
    world.is_copy_stuck = true;
    for _ in 0..4 {
        healthy(&mut world);
        world.now += 25 * HOUR;
    }
    assert_eq!(ended(&world), (Stage::Stable, FIRST.to_owned()));
    world.is_copy_stuck = false;
    healthy(&mut world);
    world.is_copy_stuck = true;
    world.now += 25 * HOUR;
    healthy(&mut world);
    assert_eq!(ended(&world).0, Stage::Published);
}

#[test]
fn a_request_in_the_meantime_waits_for_its_turn() {
    let mut world = after(1);
    world.wish = true;
    healthy(&mut world);
    assert!(world.wish && ended(&world).0 == Stage::Switched);
    world.now += 25 * HOUR;
    healthy(&mut world);
    assert_eq!(
        ended(&world),
        (Stage::Published, format!("{SECOND}<tec-intermediate-3> <tec-root-3> "))
    );
    assert!(!world.wish);
}
