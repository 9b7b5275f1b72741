//! Alternating rounds of two closures.
//!
//! Time is this thread's processor time: what other programs use in between does not count, so that a busy
//! machine gives the same ratios as an idle one. Files are warm and nothing waits for a network, so on an
//! idle machine it equals elapsed time.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Pairs of rounds of one comparison; odd, so that the median is one of them.
pub(crate) const ROUNDS: usize = 41;
/// Target duration of one round: long compared with the clock's resolution, short compared with bursts of
/// other activity on the machine.
const ROUND: Duration = Duration::from_millis(10);
/// Maximum number of rounds of one figure.
const FIGURE_ROUNDS: usize = 7;
/// Longest time for all rounds of one figure; at least one round is always done.
const FIGURE: Duration = Duration::from_millis(1500);

pub(crate) fn repeat<T>(times: u64, work: &mut impl FnMut() -> T) -> Duration {
    let begin = processor_time();
    for _ in 0..times {
        black_box(work());
    }
    processor_time().saturating_sub(begin)
}

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds)
        + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// Elapsed time, for work that is not done by one thread.
pub(crate) fn repeat_on_the_clock<T>(times: u64, work: &mut impl FnMut() -> T) -> Duration {
    let begin = Instant::now();
    for _ in 0..times {
        black_box(work());
    }
    begin.elapsed()
}

/// Nanoseconds per operation of both sides, in alternating rounds. Which side begins alternates too, so that
/// a drifting clock frequency favors neither.
pub(crate) fn pairs(
    ours: &mut impl FnMut(u64) -> Duration,
    baseline: &mut impl FnMut(u64) -> Duration,
) -> Vec<(f64, f64)> {
    let (our_times, baseline_times) = (calibrate(ours), calibrate(baseline));
    let mut pairs = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let pair = if round % 2 == 0 {
            let first = per_operation(ours, our_times);
            (first, per_operation(baseline, baseline_times))
        } else {
            let first = per_operation(baseline, baseline_times);
            (per_operation(ours, our_times), first)
        };
        pairs.push(pair);
    }
    pairs
}

/// Nanoseconds per operation in the fastest of a few rounds: for figures, which have no neighbor to compare
/// with.
pub(crate) fn fastest(work: &mut impl FnMut(u64) -> Duration) -> f64 {
    let begin = Instant::now();
    let times = calibrate(work);
    let mut fastest = f64::INFINITY;
    for round in 0..FIGURE_ROUNDS {
        if round > 0 && begin.elapsed() > FIGURE {
            break;
        }
        fastest = fastest.min(per_operation(work, times));
    }
    fastest
}

fn per_operation(work: &mut impl FnMut(u64) -> Duration, times: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 operations in one round")]
    let times_as_float = times as f64;
    work(times).as_secs_f64() * 1e9 / times_as_float
}

/// Number of operations in a round; also warms up.
fn calibrate(work: &mut impl FnMut(u64) -> Duration) -> u64 {
    let mut times = 1;
    loop {
        let took = work(times).max(Duration::from_nanos(1));
        if took >= ROUND / 2 {
            let scaled = u128::from(times) * ROUND.as_nanos() / took.as_nanos();
            return u64::try_from(scaled).unwrap_or(times).max(1);
        }
        times *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_calibrated_and_alternate() {
        let mut order = Vec::new();
        let cell = std::cell::RefCell::new(&mut order);
        let side = |name: char, nanos: u64| {
            let cell = &cell;
            move |times: u64| {
                cell.borrow_mut().push(name);
                Duration::from_nanos(nanos * times)
            }
        };
        let pairs = pairs(&mut side('o', 3000), &mut side('b', 1000));
        assert_eq!(pairs.len(), ROUNDS);
        for (ours, baseline) in pairs {
            assert!((ours - 3000.0).abs() < 1.0 && (baseline - 1000.0).abs() < 1.0);
        }
        let measured: String = order.iter().rev().take(4).collect();
        // Backwards from the last round, which has an even number.
        assert_eq!(measured, "boob");
    }
}
