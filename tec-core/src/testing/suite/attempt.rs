use super::ok;
use crate::attest::Attempt;
use crate::boot::BootState;
use crate::explain::Gate;
use crate::id::AttemptId;
use crate::port::AttemptLog;
use crate::testing::sample;

/// Minimum number of attempts kept for each machine, see [`AttemptLog`].
const KEPT: u64 = 16;
/// More attempts than any bounded log keeps for one machine.
const MANY: u64 = 500;

/// Checks the contract of [`AttemptLog`]; `make` returns an empty log.
///
/// # Panics
/// If the contract is broken.
pub async fn attempt_log<L: AttemptLog>(make: impl AsyncFn() -> L) {
    record_stores_and_replaces(&make().await).await;
    latest_comes_first(&make().await).await;
    the_last_of_each_machine_are_kept(&make().await).await;
    the_log_is_bounded(&make().await).await;
    what_anybody_can_send_pushes_nothing_out(&make().await).await;
    many_attempts_in_one_boot_push_out_no_earlier_boot(&make().await).await;
    a_refusal_in_the_same_boot_hides_nothing_and_is_not_hidden(&make().await).await;
    unsigned_evidence_takes_no_place_of_signed(&make().await).await;
}

fn ids(attempts: Vec<Attempt>) -> Vec<AttemptId> {
    attempts.into_iter().map(|attempt| attempt.id).collect()
}

async fn record_stores_and_replaces(log: &dyn AttemptLog) {
    let mut attempt = sample::attempt(1, None);
    assert_eq!(ok(log.find(&attempt.id).await), None);
    ok(log.record(&attempt).await);
    assert_eq!(ok(log.find(&attempt.id).await), Some(attempt.clone()));
    attempt.machine = Some(sample::machine_id(1));
    attempt.ladder.fail(Gate::Key, "later");
    attempt.booted = Some(BootState::whole([sample::image_name(1)], []));
    for _ in 0..2 {
        ok(log.record(&attempt).await);
        assert_eq!(ok(log.find(&attempt.id).await), Some(attempt.clone()));
    }
    assert_eq!(ok(log.latest(None, 10).await), [attempt.clone()]);
    assert_eq!(ok(log.latest(attempt.machine, 10).await), [attempt]);
}

async fn latest_comes_first(log: &dyn AttemptLog) {
    for (number, machine) in [(1, Some(1)), (2, None), (3, Some(2)), (4, Some(1))] {
        ok(log.record(&sample::attempt(number, machine)).await);
    }
    let all = ids(ok(log.latest(None, 10).await));
    assert_eq!(all, [4, 3, 2, 1].map(sample::attempt_id), "of all, known machine or not");
    let first = Some(sample::machine_id(1));
    assert_eq!(ids(ok(log.latest(first, 10).await)), [4, 1].map(sample::attempt_id));
    assert_eq!(ids(ok(log.latest(first, 1).await)), [sample::attempt_id(4)]);
    assert!(ok(log.latest(None, 0).await).is_empty());
    assert!(ok(log.latest(Some(sample::machine_id(9)), 10).await).is_empty());
}

async fn the_last_of_each_machine_are_kept(log: &dyn AttemptLog) {
    for number in 1..=KEPT {
        ok(log.record(&sample::attempt(number, Some(1))).await);
    }
    for number in 101..=200 {
        ok(log.record(&sample::attempt(number, Some(2))).await);
    }
    let first = ids(ok(log.latest(Some(sample::machine_id(1)), 100).await));
    let expected: Vec<_> = (1..=KEPT).rev().map(sample::attempt_id).collect();
    assert_eq!(first, expected, "another machine's attempts push none out");
    let second = ids(ok(log.latest(Some(sample::machine_id(2)), 16).await));
    let expected: Vec<_> = (185..=200).rev().map(sample::attempt_id).collect();
    assert_eq!(second, expected);
}

async fn the_log_is_bounded(log: &dyn AttemptLog) {
    for number in 1..=MANY {
        ok(log.record(&sample::attempt(number, Some(1))).await);
    }
    let kept = ok(log.latest(None, usize::MAX).await).len();
    assert!(u64::try_from(kept).is_ok_and(|kept| kept < MANY), "{kept} attempts are kept");
    assert_eq!(ok(log.find(&sample::attempt_id(1)).await), None, "the oldest goes first");
    assert!(ok(log.find(&sample::attempt_id(MANY)).await).is_some());
}

async fn what_anybody_can_send_pushes_nothing_out(log: &dyn AttemptLog) {
    let mut signed = Vec::new();
    for (number, machine) in [(1, Some(1)), (2, Some(1)), (3, None)] {
        let attempt = sample::attempt(number, machine);
        ok(log.record(&attempt).await);
        signed.push(attempt);
    }
    for number in 1000..1000 + MANY * 4 {
        let mut unsigned = sample::attempt(number, (number % 2 == 0).then_some(1));
        unsigned.unsigned = true;
        ok(log.record(&unsigned).await);
        assert_eq!(ok(log.find(&unsigned.id).await), Some(unsigned));
    }
    for attempt in &signed {
        let found = ok(log.find(&attempt.id).await);
        assert_eq!(found.as_ref(), Some(attempt), "pushed out by unsigned ones");
    }
    let of_machine = ok(log.latest(Some(sample::machine_id(1)), usize::MAX).await);
    let unsigned = of_machine.iter().filter(|attempt| attempt.unsigned).count();
    assert!((1..=16).contains(&unsigned), "{unsigned} of them are kept");
    assert_eq!(of_machine.len(), unsigned + 2);
    let all = ok(log.latest(None, usize::MAX).await);
    let unsigned = all.iter().filter(|attempt| attempt.unsigned).count();
    assert!(unsigned < 500, "{unsigned} of them are kept");
}

async fn many_attempts_in_one_boot_push_out_no_earlier_boot(log: &dyn AttemptLog) {
    let machine = Some(sample::machine_id(1));
    for boot in 1..=3 {
        ok(log.record(&sample::attempt_in_boot(u64::from(boot), boot)).await);
    }
    for number in 101..=140 {
        // A replica may record an attempt again, and as known as it was.
        for _ in 0..2 {
            ok(log.record(&sample::attempt_in_boot(number, 4)).await);
        }
    }
    let kept = ok(log.latest(machine, usize::MAX).await);
    assert_eq!(
        kept.iter().map(|one| one.id).collect::<Vec<_>>(),
        [140, 3, 2, 1].map(sample::attempt_id)
    );
    let repeats = kept.first().and_then(|last| last.repeats);
    let seen = repeats.map(|repeats| (repeats.first, repeats.count));
    assert_eq!(seen, Some((sample::time(101), 40)), "first seen, and how often");
    assert_eq!(ok(log.find(&sample::attempt_id(140)).await).as_ref(), kept.first());
    let of_console = ok(log.find(&sample::attempt_id(135)).await);
    assert_eq!(of_console.as_ref(), kept.first(), "the console showed it shortly before");
    assert_eq!(ok(log.find(&sample::attempt_id(101)).await), None, "another one took its place");
    ok(log.record(&sample::attempt(141, Some(2))).await);
    ok(log.record(&sample::attempt_in_boot(142, 4)).await);
    let all = ids(ok(log.latest(None, 2).await));
    assert_eq!(all, [142, 141].map(sample::attempt_id), "the latest of all machines");
}

async fn a_refusal_in_the_same_boot_hides_nothing_and_is_not_hidden(log: &dyn AttemptLog) {
    for number in 1..=9 {
        let mut attempt = sample::attempt_in_boot(number, 1);
        if (4..=6).contains(&number) {
            attempt.ladder.fail(Gate::Pcrs, format!("differs at {number}"));
        }
        ok(log.record(&attempt).await);
    }
    let kept = ok(log.latest(Some(sample::machine_id(1)), usize::MAX).await);
    let refused: Vec<_> = kept.iter().map(|one| (one.id, one.ladder.code.is_some())).collect();
    let expected = [(9, false), (6, true), (3, false)];
    assert_eq!(refused, expected.map(|(number, refused)| (sample::attempt_id(number), refused)));
    let counts: Vec<_> = kept.iter().filter_map(|one| one.repeats.map(|all| all.count)).collect();
    assert_eq!(counts, [3, 3, 3]);
}

async fn unsigned_evidence_takes_no_place_of_signed(log: &dyn AttemptLog) {
    ok(log.record(&sample::attempt_in_boot(1, 1)).await);
    let mut unsigned = sample::attempt_in_boot(2, 1);
    unsigned.unsigned = true;
    ok(log.record(&unsigned).await);
    ok(log.record(&sample::attempt_in_boot(3, 1)).await);
    let kept = ok(log.latest(Some(sample::machine_id(1)), usize::MAX).await);
    let kept: Vec<_> = kept.iter().map(|one| (one.id, one.unsigned)).collect();
    assert!(kept.contains(&(sample::attempt_id(2), true)), "{kept:?}");
    assert!(kept.contains(&(sample::attempt_id(3), false)), "{kept:?}");
    assert_eq!(kept.len(), 2, "the two signed ones are one");
}
