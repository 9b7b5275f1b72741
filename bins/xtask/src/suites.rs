//! Runs the test programs of the workspace, several at a time: most of them wait more than they work.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::cargo::cargo;
use crate::{lanes, process, programs, term};

/// Tests with servers, nodes and platforms, which take longest. Those of a row run one after another; the rows run
/// in parallel, and beside all others.
const ROWS: [&[&str]; 3] =
    [&["services", "scenarios"], &["kubernetes"], &["pods", "platform", "rotation"]];
/// Their tests wait for servers more than they work, so twice as many run at a time as there are processors.
const WAITING: [&str; 1] = ["kubernetes"];
/// At most this many failed tests run again, alone: more failures than that are not a matter of timing.
const AGAIN: usize = 3;
/// Number of passed and failed checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Those of the passed that failed beside others before.
    pub(crate) flaky: u64,
}

impl Count {
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, flaky: 0 };
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, flaky: 0 };

    pub(crate) fn add(&mut self, other: Self) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
        self.flaky = self.flaky.saturating_add(other.flaky);
    }

    /// Parses the output of a test program; `exited_well` means exit code 0.
    fn of(output: &str, exited_well: bool) -> Self {
        let mut count = Self::default();
        for more in output.lines().filter_map(test_result) {
            count.add(more);
        }
        // It failed without a failed test: it crashed, or something did not compile.
        if !exited_well && count.failed == 0 {
            count.failed = 1;
        }
        count
    }
}

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suite {
    name: String,
    program: PathBuf,
    /// Directory of its package: tests find their files from there.
    dir: PathBuf,
}

/// A test that failed while others ran.
#[derive(Debug)]
struct Failed {
    suite: Suite,
    test: String,
}

type Prepare<'a> = &'a (dyn Fn(&mut Command) -> Result<()> + Sync);

/// Runs all tests of the workspace except doctests; `prepare` adds the environment.
pub(crate) fn run_all(root: &Path, prepare: Prepare<'_>) -> Result<Count> {
    run(build(root)?, prepare)
}

/// Runs the tests of the packages that contain one of the files.
pub(crate) fn run_of(root: &Path, files: &[PathBuf], prepare: Prepare<'_>) -> Result<Count> {
    let suites = that_contain(build(root)?, files);
    if suites.is_empty() {
        bail!("no package with tests has a changed file");
    }
    run(suites, prepare)
}

/// Those whose package contains one of the files. A package may contain another one; the file is then of the inner.
fn that_contain(mut suites: Vec<Suite>, files: &[PathBuf]) -> Vec<Suite> {
    let dirs: BTreeSet<PathBuf> = suites.iter().map(|suite| suite.dir.clone()).collect();
    let package_of =
        |file: &PathBuf| file.ancestors().find(|dir| dirs.contains(*dir)).map(Path::to_path_buf);
    let chosen: BTreeSet<PathBuf> = files.iter().filter_map(package_of).collect();
    suites.retain(|suite| chosen.contains(&suite.dir));
    suites
}

fn run(suites: Vec<Suite>, prepare: Prepare<'_>) -> Result<Count> {
    let turns = rows(suites);
    let one = |suite: &Suite| {
        let begin = Instant::now();
        let output = process::output(&mut command(suite, prepare)?)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let count = Count::of(&text, output.status.success());
        let took = term::duration(begin.elapsed());
        let lines = format!("{} ({took})\n{}", suite.name, text.trim_start());
        term::out(&lines);
        if count.failed > 0 {
            term::failure(&String::from_utf8_lossy(&output.stderr));
        }
        let again = |test| Failed { suite: suite.clone(), test };
        anyhow::Ok((count, failed_tests(&text).map(again).collect::<Vec<_>>()))
    };
    let in_turn = |suites: &Vec<Suite>| suites.iter().map(one).collect::<Result<Vec<_>>>();
    let (mut all, mut failed) = (Count::default(), Vec::new());
    for done in lanes::at_once(&turns, lanes::per_processor() + 1, &in_turn)? {
        for (count, tests) in done? {
            all.add(count);
            failed.extend(tests);
        }
    }
    if failed.len() <= AGAIN {
        for test in failed {
            again(&test, prepare, &mut all)?;
        }
    }
    Ok(all)
}

/// The [ROWS], then each of the others by itself.
fn rows(suites: Vec<Suite>) -> Vec<Vec<Suite>> {
    let place = |suite: &Suite| {
        let in_row = |row: &&[&str]| row.iter().position(|name| suite.name == *name);
        ROWS.iter().enumerate().find_map(|(row, names)| Some((row, in_row(names)?)))
    };
    let (mut long, others): (Vec<_>, Vec<_>) =
        suites.into_iter().partition(|suite| place(suite).is_some());
    long.sort_by_key(place);
    let same_row = |a: &Suite, b: &Suite| place(a).map(|at| at.0) == place(b).map(|at| at.0);
    let rows = long.chunk_by(same_row).map(<[Suite]>::to_vec);
    rows.chain(others.into_iter().map(|suite| vec![suite])).collect()
}

/// Runs a failed test again while no other test runs, and reports whether it really fails or passes only alone.
fn again(failed: &Failed, prepare: Prepare<'_>, count: &mut Count) -> Result<()> {
    let name = format!("{} {}", failed.suite.name, failed.test);
    let output = process::output(command(&failed.suite, prepare)?.args(["--exact", &failed.test]))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = Count::of(&text, output.status.success()) == Count::PASSED;
    if passed {
        count.failed = count.failed.saturating_sub(1);
        count.add(Count { passed: 1, failed: 0, flaky: 1 });
        term::failure(&format!("FLAKY: {name} failed beside others and passed alone"));
    } else {
        term::failure(&format!("{name} failed twice\n{text}"));
    }
    Ok(())
}

fn command(suite: &Suite, prepare: Prepare<'_>) -> Result<Command> {
    let mut command = process::command(&suite.program);
    command.current_dir(&suite.dir).env("CARGO_MANIFEST_DIR", &suite.dir);
    if WAITING.contains(&suite.name.as_str()) {
        command.env("RUST_TEST_THREADS", (2 * lanes::per_processor()).to_string());
    }
    prepare(&mut command)?;
    Ok(command)
}

/// The tests that libtest reports as `test a::b ... FAILED`.
fn failed_tests(output: &str) -> impl Iterator<Item = String> {
    let name =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    output.lines().filter_map(name)
}

/// Runs one `cargo test` command and counts the results.
pub(crate) fn counted(command: &mut Command) -> Result<Count> {
    let mut output = String::new();
    let exited_well = process::watch(command, |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    let count = Count::of(&output, exited_well);
    if count == Count::default() {
        bail!("cargo test ran no test");
    }
    Ok(count)
}

/// Builds all test programs.
pub(crate) fn build(root: &Path) -> Result<Vec<Suite>> {
    let mut command = cargo(root);
    command.arg("test").args(programs::ALL);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = process::output(command.stderr(Stdio::inherit()))?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let suites: Vec<Suite> = messages.lines().filter_map(built).collect();
    if suites.is_empty() {
        bail!("there are no tests");
    }
    Ok(suites)
}

/// The test program in a cargo message (The Cargo Book, "External tools").
fn built(message: &str) -> Option<Suite> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message.pointer("/profile/test")?.as_bool() != Some(true) {
        return None;
    }
    let manifest = Path::new(message.get("manifest_path")?.as_str()?);
    Some(Suite {
        name: message.pointer("/target/name")?.as_str()?.to_owned(),
        program: message.get("executable")?.as_str()?.into(),
        dir: manifest.parent()?.to_owned(),
    })
}

/// Reads libtest's `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
fn test_result(line: &str) -> Option<Count> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        numbers
            .split("; ")
            .find_map(|part| part.strip_suffix(what))
            .and_then(|number| number.trim().parse().ok())
    };
    Some(Count { passed: number(" passed")?, failed: number(" failed")?, flaky: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_counted() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out";
        let count = Count { passed: 12, failed: 3, flaky: 0 };
        assert_eq!(Count::of(&format!("{line}\n"), false), count);
        assert_eq!(test_result("test a::b ... ok"), None);
        assert_eq!(Count::of("no result\n", false), Count::FAILED);
    }

    fn suite(name: &str, dir: &str) -> Suite {
        Suite { name: name.to_owned(), program: name.into(), dir: dir.into() }
    }

    #[test]
    fn suites_that_take_long_come_first_and_those_of_a_row_stay_in_order() {
        let all = ["a", "rotation", "scenarios", "kubernetes", "pods", "b", "services"];
        let rows = rows(all.iter().map(|name| suite(name, "/w")).collect());
        let names = |row: &Vec<Suite>| row.iter().map(|suite| suite.name.clone()).collect();
        let names: Vec<Vec<String>> = rows.iter().map(names).collect();
        let expected: [&[&str]; 5] =
            [&["services", "scenarios"], &["kubernetes"], &["pods", "rotation"], &["a"], &["b"]];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_changed_file_chooses_the_innermost_package_and_no_other() {
        let all = [suite("a", "/w/a"), suite("a-tests", "/w/a"), suite("inner", "/w/a/inner")];
        for (file, expected) in [
            ("/w/a/src/lib.rs", &["a", "a-tests"][..]),
            ("/w/a/inner/src/lib.rs", &["inner"]),
            ("/w/ab/src/lib.rs", &[]),
            ("/w/README.md", &[]),
        ] {
            let chosen = that_contain(all.to_vec(), &[file.into()]);
            let names: Vec<_> = chosen.iter().map(|suite| suite.name.as_str()).collect();
            assert_eq!(names, expected, "{file}");
        }
    }

    #[test]
    fn tests_that_failed_are_named() {
        let output = "test a::b ... ok\ntest a::c ... FAILED\ntest result: FAILED. 1 passed\n";
        assert_eq!(failed_tests(output).collect::<Vec<_>>(), ["a::c"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_test_that_passes_alone_is_no_failure_and_one_that_does_not_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, result: &str, code: u8| {
            let path = dir.path().join(name);
            let text = format!("#!/bin/sh\necho 'test result: {result}'\nexit {code}\n");
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
            Suite { name: name.to_owned(), program: path, dir: dir.path().to_owned() }
        };
        let test = "b".to_owned();
        for (suite, expected) in [
            (program("passes", "ok. 1 passed; 0 failed", 0), Count { flaky: 1, ..Count::PASSED }),
            (program("fails", "FAILED. 0 passed; 1 failed", 101), Count::FAILED),
            // Nothing of that name was run.
            (program("is not there", "ok. 0 passed; 0 failed", 0), Count::FAILED),
        ] {
            let mut count = Count::FAILED;
            again(&Failed { suite, test: test.clone() }, &|_| Ok(()), &mut count).unwrap();
            assert_eq!(count, expected);
        }
    }

    #[test]
    fn programs_with_tests_are_found_in_what_cargo_says() {
        let message = |executable: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml",
                "target":{{"name":"a"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = built(&message("\"/t/a-1\"", true)).unwrap();
        assert_eq!((found.name.as_str(), found.dir), ("a", "/w/a".into()));
        assert_eq!(built(&message("\"/t/a\"", false)), None, "a program");
        assert_eq!(built(&message("null", true)), None);
    }
}
