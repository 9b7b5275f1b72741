//! Benchmarks as ratios to a baseline that is measured in the same run.
//!
//! *What it is*: the measuring part that the suites in `benches/` share. Each suite compares one
//! piece of ours with the least that could be done instead, such as hashing the same bytes once.
//!
//! *What it is not*: a gate. Nothing fails because it was slow.
//!
//! ```text
//! Suite::compare ─┬─ rounds: ours, baseline, ours, baseline, … ─► medians ─► target/bench/ratios.json
//!                 └─ criterion over the same two closures ────────► distributions, changes
//! ```
//! Absolute times differ between machines, and between two minutes on one machine; the ratio of
//! two neighboring rounds hardly does. So the ratio is the median over pairs of rounds, not the
//! quotient of two means.

mod ratio;

use std::ffi::OsString;
use std::fmt;
use std::hint::black_box;
use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context as _;
use anyhow::Result;
use criterion::Criterion;

pub use self::ratio::Ratio;

/// File of the ratios, below the target directory.
const RATIOS: &str = "bench/ratios.json";
/// Pairs of rounds of one comparison; odd, so that the median is one of them.
const ROUNDS: usize = 41;
/// What one round shall take: long against the clock's resolution, short against what else goes
/// on in the machine.
const ROUND: Duration = Duration::from_millis(20);
/// Warm-up of one closure in criterion.
const WARM_UP: Duration = Duration::from_millis(300);
/// Measurement of one closure in criterion.
const MEASUREMENT: Duration = Duration::from_millis(1500);
/// Samples of one closure in criterion; 10 is its least.
const SAMPLES: usize = 20;

/// One suite: criterion, and the file of ratios.
pub struct Suite {
    criterion: Criterion,
    arguments: Arguments,
    target_dir: PathBuf,
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("arguments", &self.arguments)
            .field("target_dir", &self.target_dir)
            .finish_non_exhaustive()
    }
}

/// What of the command line concerns the ratios.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Arguments {
    filter: Option<String>,
    /// `--test` and `--list` run nothing that could be measured.
    measures_nothing: bool,
}

impl Arguments {
    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut parsed = Self::default();
        for argument in arguments {
            match argument.to_str() {
                Some("--test" | "--list") => parsed.measures_nothing = true,
                Some(flag) if flag.starts_with('-') => {}
                Some(filter) if parsed.filter.is_none() => parsed.filter = Some(filter.to_owned()),
                _ => {}
            }
        }
        parsed
    }

    fn wants(&self, name: &str) -> bool {
        let fits = self
            .filter
            .as_ref()
            .is_none_or(|filter| name.contains(filter));
        fits && !self.measures_nothing
    }
}

impl Suite {
    /// A suite with the arguments of the command line. `target_tmp` is what cargo tells benchmarks
    /// as `CARGO_TARGET_TMPDIR`; it lies in the target directory.
    pub fn new(target_tmp: &str) -> Self {
        let criterion = Criterion::default()
            .warm_up_time(WARM_UP)
            .measurement_time(MEASUREMENT)
            .sample_size(SAMPLES)
            .configure_from_args();
        let target_tmp = Path::new(target_tmp);
        Self {
            criterion,
            arguments: Arguments::parse(std::env::args_os().skip(1)),
            target_dir: target_tmp.parent().unwrap_or(target_tmp).to_path_buf(),
        }
    }

    /// Compares two closures that each do one operation.
    ///
    /// # Errors
    /// When the file of ratios cannot be written.
    pub fn compare<A, B>(
        &mut self,
        name: &str,
        note: &str,
        mut ours: impl FnMut() -> A,
        mut baseline: impl FnMut() -> B,
    ) -> Result<()> {
        let ours = move |times| repeat(times, &mut ours);
        let baseline = move |times| repeat(times, &mut baseline);
        self.compare_timed(name, |_| note.to_owned(), ours, baseline)
    }

    /// Compares two closures that do as many operations as they are told and return the time that
    /// took. `note` is made from the result.
    ///
    /// # Errors
    /// When the file of ratios cannot be written.
    pub fn compare_timed(
        &mut self,
        name: &str,
        note: impl FnOnce(&Ratio) -> String,
        mut ours: impl FnMut(u64) -> Duration,
        mut baseline: impl FnMut(u64) -> Duration,
    ) -> Result<()> {
        if self.arguments.wants(name) {
            let mut ratio = Ratio::of_rounds(name, &rounds(&mut ours, &mut baseline));
            ratio.note = note(&ratio);
            writeln!(std::io::stdout(), "{ratio}").context("cannot print the ratio")?;
            ratio.save(&self.target_dir.join(RATIOS))?;
        }
        let mut group = self.criterion.benchmark_group(name);
        group.bench_function("ours", |bencher| bencher.iter_custom(&mut ours));
        group.bench_function("baseline", |bencher| bencher.iter_custom(&mut baseline));
        group.finish();
        Ok(())
    }

    /// Prints criterion's summary.
    pub fn finish(self) {
        self.criterion.final_summary();
    }
}

fn repeat<T>(times: u64, work: &mut impl FnMut() -> T) -> Duration {
    let begin = Instant::now();
    for _ in 0..times {
        black_box(work());
    }
    begin.elapsed()
}

/// Nanoseconds per operation of both sides, in alternating rounds. Which side begins alternates,
/// too, so that a clock frequency that drifts favors neither.
fn rounds(
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

fn per_operation(work: &mut impl FnMut(u64) -> Duration, times: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "far below 2^52 operations in one round"
    )]
    let times_as_float = times as f64;
    work(times).as_secs_f64() * 1e9 / times_as_float
}

/// How many operations make a round; also warms up.
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

    fn arguments(list: &[&str]) -> Arguments {
        Arguments::parse(list.iter().map(OsString::from))
    }

    #[test]
    fn the_first_word_is_the_filter() {
        assert!(arguments(&["--bench"]).wants("quote"));
        assert!(arguments(&["quo", "--bench"]).wants("quote"));
        assert!(!arguments(&["event", "--bench"]).wants("quote"));
        assert!(!arguments(&["--test"]).wants("quote"));
    }

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
        let pairs = rounds(&mut side('o', 3000), &mut side('b', 1000));
        assert_eq!(pairs.len(), ROUNDS);
        for (ours, baseline) in pairs {
            assert!((ours - 3000.0).abs() < 1.0 && (baseline - 1000.0).abs() < 1.0);
        }
        let measured: String = order.iter().rev().take(4).collect();
        // Backwards from the last round, which is an even one.
        assert_eq!(measured, "boob");
    }
}
