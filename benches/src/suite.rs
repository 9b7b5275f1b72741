//! The functions that a suite calls: measurements by name, if the command line requests them.

use std::ffi::OsString;
use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use criterion::Criterion;

use crate::report::{Figure, REPORT, Ratio, Report};
use crate::rounds;
use crate::rounds::{repeat, repeat_on_the_clock};

/// Warm-up of one closure in criterion.
const WARM_UP: Duration = Duration::from_millis(300);
/// Measurement of one closure in criterion.
const MEASUREMENT: Duration = Duration::from_millis(1500);
/// Samples of one closure in criterion; 10 is the minimum.
const SAMPLES: usize = 20;

/// One suite: criterion, and the report.
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

/// The parts of the command line that do not only concern criterion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Arguments {
    filter: Option<String>,
    /// Whether nothing is measured, as with `--test` and `--list`.
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
        let fits = self.filter.as_ref().is_none_or(|filter| name.contains(filter));
        fits && !self.measures_nothing
    }
}

impl Suite {
    /// A suite with the arguments of the command line. `target_tmp` is the value of `CARGO_TARGET_TMPDIR`,
    /// which cargo sets for benchmarks; it is in the target directory.
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

    /// Whether a measurement with this name was requested; otherwise its inputs need not be created.
    pub fn wants(&self, name: &str) -> bool {
        self.arguments.wants(name)
    }

    /// Compares two closures that each do one operation.
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

    /// Compares two closures that do the given number of operations and return the time that took. `note` is
    /// derived from the result.
    pub fn compare_timed(
        &mut self,
        name: &str,
        note: impl FnOnce(&Ratio) -> String,
        mut ours: impl FnMut(u64) -> Duration,
        mut baseline: impl FnMut(u64) -> Duration,
    ) -> Result<()> {
        self.measure(name, note, &mut ours, &mut baseline)?;
        let mut group = self.criterion.benchmark_group(name);
        group.bench_function("ours", |bencher| bencher.iter_custom(&mut ours));
        group.bench_function("baseline", |bencher| bencher.iter_custom(&mut baseline));
        group.finish();
        Ok(())
    }

    /// Like [`compare`](Self::compare) without criterion: for one of many cases.
    pub fn ratio<A, B>(
        &self,
        name: &str,
        note: &str,
        mut ours: impl FnMut() -> A,
        mut baseline: impl FnMut() -> B,
    ) -> Result<()> {
        let ours = |times| repeat(times, &mut ours);
        let baseline = |times| repeat(times, &mut baseline);
        self.ratio_timed(name, |_| note.to_owned(), ours, baseline)
    }

    /// Like [`ratio`](Self::ratio) for closures that do the given number of operations and return the time
    /// that took. `note` is derived from the result.
    pub fn ratio_timed(
        &self,
        name: &str,
        note: impl FnOnce(&Ratio) -> String,
        mut ours: impl FnMut(u64) -> Duration,
        mut baseline: impl FnMut(u64) -> Duration,
    ) -> Result<()> {
        self.measure(name, note, &mut ours, &mut baseline)
    }

    fn measure(
        &self,
        name: &str,
        note: impl FnOnce(&Ratio) -> String,
        ours: &mut impl FnMut(u64) -> Duration,
        baseline: &mut impl FnMut(u64) -> Duration,
    ) -> Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let mut ratio = Ratio::of_rounds(name, &rounds::pairs(ours, baseline));
        ratio.note = note(&ratio);
        say(&ratio)?;
        Report::update(&self.file(), |report| report.put_ratio(ratio))
    }

    /// Nanoseconds per operation, undisturbed: for figures, which have no baseline.
    pub fn time<T>(&self, mut work: impl FnMut() -> T) -> f64 {
        rounds::fastest(&mut |times| repeat(times, &mut work))
    }

    /// Like [`time`](Self::time) for work that several threads do: measures elapsed time.
    pub fn time_on_the_clock<T>(&self, mut work: impl FnMut() -> T) -> f64 {
        rounds::fastest(&mut |times| repeat_on_the_clock(times, &mut work))
    }

    /// Reports a number.
    pub fn figure(&self, figure: Figure) -> Result<()> {
        say(&figure)?;
        Report::update(&self.file(), |report| report.put_figure(figure))
    }

    /// The directory for build results.
    pub fn target_dir(&self) -> &Path {
        &self.target_dir
    }

    fn file(&self) -> PathBuf {
        self.target_dir.join(REPORT)
    }

    /// Prints criterion's summary.
    pub fn finish(self) {
        self.criterion.final_summary();
    }
}

fn say(line: &dyn fmt::Display) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("cannot print")
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
}
