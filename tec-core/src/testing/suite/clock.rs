use super::{at_once, kind, ok};
use crate::ak::{ClockFault, ClockReading, Fingerprint, TpmClock};
use crate::attest::Tee;
use crate::port::{ClockLog, ClockOutcome, PortErrorKind};
use crate::testing::sample;

/// Checks the contract of [`ClockLog`]; `make` returns an empty log.
///
/// # Panics
/// If the contract is broken.
pub async fn clock_log<L: ClockLog>(make: impl AsyncFn() -> L) {
    a_tpm_goes_on_and_not_back(&make().await).await;
    the_same_reading_follows_itself(&make().await).await;
    keys_do_not_mix(&make().await).await;
    of_two_copies_at_once_one_is_the_second(&make().await).await;
    what_is_forgotten_begins_anew(&make().await).await;
    evidence_never_proves_less_than_before(&make().await).await;
    an_initramfs_is_remembered(&make().await).await;
    a_new_key_is_no_new_machine(&make().await).await;
}

/// A quote after this many resets, at the second with that number.
fn after(resets: u32) -> ClockReading {
    let clock = TpmClock {
        clock_ms: u64::from(resets) * 1_000,
        reset_count: resets,
        restart_count: 0,
        safe: true,
    };
    let at = sample::time(i64::from(resets));
    ClockReading::new(clock, at, at)
}

fn key(number: u64) -> Fingerprint {
    sample::ak(number, 1).fingerprint()
}

async fn advance(log: &dyn ClockLog, number: u64, resets: u32) -> ClockOutcome {
    let (key, machine) = (key(number), sample::machine_id(number));
    ok(log.advance(&key, machine, &after(resets)).await)
}

fn refused(fewer: u32, last: u32) -> ClockOutcome {
    let last = sample::time(i64::from(last));
    ClockOutcome::Refused(ClockFault::Resets { fewer, last })
}

async fn a_tpm_goes_on_and_not_back(log: &dyn ClockLog) {
    for resets in [5, 6, 20] {
        assert_eq!(advance(log, 1, resets).await, ClockOutcome::Follows);
    }
    for _ in 0..2 {
        assert_eq!(advance(log, 1, 19).await, refused(1, 20));
    }
    assert_eq!(
        advance(log, 1, 21).await,
        ClockOutcome::Follows,
        "what was refused left nothing behind"
    );
}

async fn the_same_reading_follows_itself(log: &dyn ClockLog) {
    for _ in 0..3 {
        assert_eq!(advance(log, 1, 5).await, ClockOutcome::Follows);
    }
}

async fn keys_do_not_mix(log: &dyn ClockLog) {
    assert_eq!(advance(log, 1, 9).await, ClockOutcome::Follows);
    assert_eq!(advance(log, 2, 3).await, ClockOutcome::Follows);
    assert_eq!(advance(log, 1, 8).await, refused(1, 9));
}

/// Both were reset equally often, with an hour of work between them.
async fn of_two_copies_at_once_one_is_the_second(log: &dyn ClockLog) {
    let (one, mut other) = (after(5), after(5));
    other.clock.clock_ms += 3_600_000;
    let (key, machine) = (key(1), sample::machine_id(1));
    let calls = [&one, &other].map(|reading| log.advance(&key, machine, reading));
    let answers = at_once(calls.into()).await;
    let follows = answers.into_iter().map(ok).filter(|outcome| *outcome == ClockOutcome::Follows);
    assert_eq!(follows.count(), 1);
}

async fn what_is_forgotten_begins_anew(log: &dyn ClockLog) {
    assert_eq!(advance(log, 1, 9).await, ClockOutcome::Follows);
    assert_eq!(advance(log, 2, 9).await, ClockOutcome::Follows);
    ok(log.forget(&sample::machine_id(1), &sample::line()).await);
    let again = log.forget(&sample::machine_id(1), &sample::line()).await;
    assert_eq!(kind(again), PortErrorKind::NotFound);
    assert_eq!(advance(log, 1, 3).await, ClockOutcome::Follows);
    assert_eq!(advance(log, 2, 3).await, refused(6, 9), "of its machine only");
}

async fn an_initramfs_is_remembered(log: &dyn ClockLog) {
    let (key, machine) = (key(1), sample::machine_id(1));
    assert_eq!(ok(log.last(&key).await), None);
    for (resets, is_running, remembered) in
        [(5, false, false), (6, true, true), (6, false, true), (9, false, true)]
    {
        let reading = after(resets).with_initramfs(is_running);
        assert_eq!(ok(log.advance(&key, machine, &reading).await), ClockOutcome::Follows);
        let last = ok(log.last(&key).await);
        assert_eq!(
            last.map(|last| (last.clock, last.in_initramfs)),
            Some((reading.clock, remembered))
        );
    }
}

async fn a_new_key_is_no_new_machine(log: &dyn ClockLog) {
    let machine = sample::machine_id(1);
    for (number, resets, is_running) in [(1, 9, true), (2, 3, false)] {
        let reading = after(resets).with_initramfs(is_running);
        let outcome = ok(log.advance(&key(number), machine, &reading).await);
        assert_eq!(outcome, ClockOutcome::Follows);
    }
    let last = ok(log.last(&key(2)).await);
    assert!(last.is_some_and(|last| last.is_bound_to_initramfs()), "{last:?}");
    ok(log.advance(&key(3), sample::machine_id(2), &after(3)).await);
    let other = ok(log.last(&key(3)).await);
    assert!(other.is_some_and(|other| other.in_first_boot), "of its machine only: {other:?}");
}

async fn evidence_never_proves_less_than_before(log: &dyn ClockLog) {
    let (key, machine) = (key(1), sample::machine_id(1));
    let with = |resets, tee| after(resets).with_tee(tee);
    for (resets, tee) in [(5, Tee::Tpm), (6, Tee::AzSnpVtpm), (7, Tee::AzSnpVtpm)] {
        let reading = with(resets, tee);
        let outcome = ok(log.advance(&key, machine, &reading).await);
        assert_eq!(outcome, ClockOutcome::Follows);
    }
    let fault =
        ClockFault::LessEvidence { was: Tee::AzSnpVtpm, is: Tee::Tpm, last: sample::time(7) };
    let outcome = ok(log.advance(&key, machine, &with(8, Tee::Tpm)).await);
    assert_eq!(outcome, ClockOutcome::Refused(fault));
}
