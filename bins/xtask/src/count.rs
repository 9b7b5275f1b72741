//! How many checks passed and failed, and which did not run.

use std::collections::{BTreeMap, BTreeSet};

/// Lines of a failed test's output that are repeated at the end of a run.
const LAST_WORDS: usize = 15;

/// Number of passed and failed checks, and what did not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Those of the passed that failed beside others before.
    pub(crate) flaky: u64,
    /// Names of what failed or was flaky, each with its last words; repeated at the end of a run.
    pub(crate) reports: Vec<String>,
    /// Names of what did not run, by the need that was not met.
    pub(crate) not_run: BTreeMap<&'static str, BTreeSet<String>>,
}

/// A test that did not run because of its attribute `#[ignore = "reason"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ignored {
    pub(crate) test: String,
    pub(crate) reason: String,
}

impl Count {
    pub(crate) fn passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    pub(crate) fn failed() -> Self {
        Self { failed: 1, ..Self::default() }
    }

    /// One thing did not run.
    pub(crate) fn not_run(need: &'static str, what: impl Into<String>) -> Self {
        Self { not_run: [(need, [what.into()].into())].into(), ..Self::default() }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
        self.flaky = self.flaky.saturating_add(other.flaky);
        self.reports.extend(other.reports);
        for (need, what) in other.not_run {
            self.not_run.entry(need).or_default().extend(what);
        }
    }

    /// Parses the output of a test program; `exited_well` means exit code 0. What was ignored is not part of
    /// the result, except tests without a name: nobody could say later what did not run.
    pub(crate) fn of(output: &str, exited_well: bool) -> Self {
        let mut count = Self::default();
        let mut unnamed = 0_u64;
        for result in output.lines().filter_map(test_result) {
            count.passed = count.passed.saturating_add(result.passed);
            count.failed = count.failed.saturating_add(result.failed);
            unnamed = unnamed.saturating_add(result.ignored);
        }
        // It failed without a failed test: it crashed, or something did not compile.
        if !exited_well && count.failed == 0 {
            count.failed = 1;
        }
        let named = u64::try_from(ignored(output).count()).unwrap_or(u64::MAX);
        count.failed = count.failed.saturating_add(unnamed.saturating_sub(named));
        count
    }

    /// `2,711 passed, 0 failed, 14 not run:`
    pub(crate) fn headline(&self) -> String {
        let mut parts = vec![
            format!("{} passed", thousands(self.passed)),
            format!("{} failed", thousands(self.failed)),
        ];
        if self.flaky > 0 {
            parts.push(format!("{} flaky", self.flaky));
        }
        let not_run = self.number_not_run();
        if not_run > 0 {
            parts.push(format!("{not_run} not run:"));
        }
        parts.join(", ")
    }

    pub(crate) fn number_not_run(&self) -> usize {
        self.not_run.values().map(BTreeSet::len).sum()
    }
}

/// The tests that libtest reports as `test a::b ... ignored, why`.
pub(crate) fn ignored(output: &str) -> impl Iterator<Item = Ignored> {
    output.lines().filter_map(|line| {
        let (test, reason) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
        let reason = reason.strip_prefix(", ").unwrap_or(reason);
        Some(Ignored { test: test.to_owned(), reason: reason.trim().to_owned() })
    })
}

/// The tests that libtest reports as `test a::b ... FAILED`.
pub(crate) fn failed_tests(output: &str) -> impl Iterator<Item = String> {
    let name =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    output.lines().filter_map(name)
}

/// What libtest prints of a failed test, below `---- a::b stdout ----`: the first lines.
pub(crate) fn last_words(output: &str, test: &str) -> String {
    let title = format!("---- {test} stdout ----");
    let own = output.lines().skip_while(|line| *line != title).skip(1);
    let own = own.take_while(|line| !line.starts_with("---- ") && *line != "failures:");
    let text: String = own.take(LAST_WORDS).flat_map(|line| ["    ", line, "\n"]).collect();
    text.trim_end().to_owned()
}

struct TestResult {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Reads libtest's `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
fn test_result(line: &str) -> Option<TestResult> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        numbers
            .split("; ")
            .find_map(|part| part.strip_suffix(what))
            .and_then(|number| number.trim().parse().ok())
    };
    Some(TestResult {
        passed: number(" passed")?,
        failed: number(" failed")?,
        ignored: number(" ignored").unwrap_or_default(),
    })
}

/// `2711` as `2,711`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_counted() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 2 filtered out\n";
        let count = Count { passed: 12, failed: 3, ..Count::default() };
        assert_eq!(Count::of(line, false), count);
        assert!(test_result("test a::b ... ok").is_none());
        assert_eq!(Count::of("no result\n", false), Count::failed());
        assert_eq!(Count::of("", true), Count::default());
    }

    #[test]
    fn an_ignored_test_is_no_passed_one_and_has_a_name() {
        let line = "test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out\n";
        let named = format!("test a ... ignored, needs x: y\ntest b::c ... ignored\n{line}");
        assert_eq!(Count::of(&named, true), Count::passed());
        let found: Vec<_> = ignored(&named).map(|one| (one.test, one.reason)).collect();
        let pair = |test: &str, reason: &str| (test.to_owned(), reason.to_owned());
        assert_eq!(found, [pair("a", "needs x: y"), pair("b::c", "")]);
        // With `--quiet`, there are no names.
        assert_eq!(Count::of(line, true), Count { passed: 1, failed: 2, ..Count::default() });
    }

    #[test]
    fn tests_that_failed_are_named() {
        let output = "test a::b ... ok\ntest a::c ... FAILED\ntest result: FAILED. 1 passed\n";
        assert_eq!(failed_tests(output).collect::<Vec<_>>(), ["a::c"]);
    }

    #[test]
    fn a_failed_test_is_reported_with_its_own_output_only() {
        let output = "---- a stdout ----\nfirst\n\n---- a::b stdout ----\n\nsecond\nthird\n\nfailures:\n    a\n";
        assert_eq!(last_words(output, "a::b"), "    \n    second\n    third");
        assert_eq!(last_words(output, "a"), "    first");
        assert_eq!(last_words(output, "c"), "");
    }

    #[test]
    fn what_did_not_run_is_counted_by_name_once() {
        let mut count = Count { passed: 1_002_711, ..Count::default() };
        assert_eq!(count.headline(), "1,002,711 passed, 0 failed");
        for what in ["a", "b", "a"] {
            count.add(Count::not_run("trustee", what));
        }
        count.add(Count::not_run("root", "a"));
        count.add(Count { flaky: 1, ..Count::default() });
        assert_eq!(count.headline(), "1,002,711 passed, 0 failed, 1 flaky, 3 not run:");
        assert_eq!([thousands(0), thousands(999), thousands(1000)], ["0", "999", "1,000"]);
    }
}
