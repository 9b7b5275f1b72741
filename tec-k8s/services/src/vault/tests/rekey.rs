//! Another key of the vault, while the controller dies or fails at every step.

use proptest::prelude::any;
use proptest::proptest;
use tec_core::testing::{Mishap, run_plan, seeded_mishaps};

use super::super::{Ordinal, Outcome, Peers, Wish};
use super::world::{Pod, Rekeyer};
use super::{LIMIT, assert_up, healthy, up};
use crate::Fatal;

/// Runs the plan; `schedule` decides what happens to each effect. Returns how many there were.
fn rekey(pod: Pod, schedule: impl FnMut(usize) -> Mishap) -> (Pod, usize) {
    let mut world = Rekeyer(pod);
    let run = run_plan(&mut world, LIMIT, schedule);
    (world.0, run.effects.len())
}

fn requested() -> Pod {
    let mut pod = up();
    pod.rekey = Wish::Next;
    pod
}

/// The vault starts again, and opens with the file.
fn assert_opens(pod: &mut Pod) {
    pod.vault.restart();
    healthy(pod);
    assert_up(pod);
}

#[test]
fn another_key_is_taken_in_use_once_and_opens_the_vault() {
    let old = up().vault.key;
    let (mut pod, _) = rekey(requested(), |_| Mishap::None);
    assert_eq!(pod.rekey, Wish::None);
    assert_ne!(pod.vault.key, old);
    assert_opens(&mut pod);
    let (new, file) = (pod.vault.key.clone(), pod.file.clone());
    let (pod, _) = rekey(pod, |_| Mishap::None);
    assert_eq!((pod.vault.key, pod.file), (new, file), "nobody asked again");
}

#[test]
fn after_a_crash_or_a_failure_at_each_step_the_file_opens_the_vault_and_the_next_round_ends_it() {
    let (_, steps) = rekey(requested(), |_| Mishap::None);
    assert!(steps > 8, "{steps}");
    for step in 0..steps {
        for mishap in Mishap::ALL {
            let schedule = |now| if now == step { mishap } else { Mishap::None };
            // The vault starts again at the worst time, or it stays.
            for restarts in [true, false] {
                let (mut pod, _) = rekey(requested(), schedule);
                if restarts {
                    assert_opens(&mut pod);
                }
                let (mut pod, _) = rekey(pod, |_| Mishap::None);
                assert_eq!(pod.rekey, Wish::None, "{step} {mishap:?}");
                assert_opens(&mut pod);
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_file_opens_the_vault(
        seed in any::<u64>(), per_mille in 0..400u32, rounds in 1..6u64
    ) {
        let mut pod = requested();
        for round in 0..rounds {
            pod = rekey(pod, seeded_mishaps(seed ^ round, per_mille, 50)).0;
            if (seed >> round) & 1 == 1 {
                assert_opens(&mut pod);
            }
            // Wrapped anew in the meantime, with whatever keys there are.
            pod.rotate = (seed >> round) & 2 == 2;
            healthy(&mut pod);
        }
        assert_opens(&mut pod);
    }
}

#[test]
fn a_key_that_somebody_replaced_by_hand_is_reported_while_the_vault_serves() {
    let mut pod = requested();
    let file = pod.file.clone();
    pod.vault.key = Some("by-hand".to_owned());
    let (pod, _) = rekey(pod, |_| Mishap::None);
    assert_eq!(pod.end, Some(Ok(Outcome::WithoutKey(Fatal::UnsealRefused))));
    assert_eq!((pod.file, pod.vault.key.as_deref()), (file, Some("by-hand")));
}

#[test]
fn the_new_key_is_in_use_only_after_every_pod_has_it() {
    let mut first = requested();
    first.platform.peers = Peers::Raft;
    let old = first.vault.key.clone();
    let mut follower = Pod::new();
    follower.ordinal = Ordinal::Follower;
    follower.platform.peers = Peers::Raft;
    follower.secret = first.secret.clone();
    follower.file = first.file.clone();
    follower.vault = first.vault.clone();

    for told in [follower.file.clone(), None] {
        first.peer = told;
        (first, _) = rekey(first, |_| Mishap::None);
        assert_eq!((&first.vault.key, first.rekey), (&old, Wish::Next), "a pod lacks it");
    }
    follower.rekey = Wish::Next;
    follower.peer = first.file.clone();
    healthy(&mut follower);
    assert_eq!(follower.file, first.file);

    first.peer = follower.file.clone();
    (first, _) = rekey(first, |_| Mishap::None);
    assert!(first.vault.key != old && first.rekey == Wish::None);

    // The follower opens with what it has, even before it learns that the old key is gone.
    follower.rekey = Wish::None;
    follower.vault = first.vault.clone();
    follower.vault.restart();
    follower.peer = None;
    healthy(&mut follower);
    assert_eq!(follower.end, Some(Ok(Outcome::Up)));
    follower.peer = first.file.clone();
    healthy(&mut follower);
    assert_eq!(follower.file, first.file);

    // One that was away all the time asks its peer.
    follower.file = up().file;
    follower.vault.restart();
    healthy(&mut follower);
    assert_eq!((follower.end, &follower.file), (Some(Ok(Outcome::Up)), &first.file));
}
