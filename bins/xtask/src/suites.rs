//! Runs the test programs of the workspace, several at a time: most of them wait more than they work.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::cargo::cargo;
use crate::count::{Count, failed_tests, last_words};
use crate::needs::{self, Needs};
use crate::{lanes, process, programs, term};

/// Tests with servers, nodes and platforms, which take longest. Those of a row run one after another; the rows run
/// in parallel, and beside all others.
const ROWS: [&[&str]; 3] =
    [&["services", "scenarios"], &["kubernetes"], &["pods", "platform", "rotation"]];
/// Their tests wait for servers more than they work, so twice as many run at a time as there are processors.
const WAITING: [&str; 1] = ["kubernetes"];
/// At most this many failed tests run again, alone: more failures than that are not a matter of timing.
const AGAIN: usize = 3;
/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suite {
    pub(crate) name: String,
    /// Contains tests of a library or program itself, not of its `tests` folder.
    pub(crate) is_unit: bool,
    program: PathBuf,
    /// Directory of its package: tests find their files from there.
    pub(crate) dir: PathBuf,
}

/// Which test programs to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    All,
    /// Those of libraries and programs.
    Unit,
}

/// A test that failed while others ran.
#[derive(Debug)]
struct Failed {
    suite: Suite,
    test: String,
    last_words: String,
}

impl Failed {
    fn report(&self, how: &str) -> String {
        format!("{} {}: {how}\n{}", self.suite.name, self.test, self.last_words)
    }
}

type Prepare<'a> = &'a (dyn Fn(&mut Command) -> Result<()> + Sync);

/// Runs tests, including the ignored ones whose need is met; `prepare` adds the environment.
pub(crate) fn run(suites: Vec<Suite>, needs: &Needs, prepare: Prepare<'_>) -> Result<Count> {
    let turns = rows(suites);
    let one = |suite: &Suite| play(suite, needs, prepare);
    let in_turn = |suites: &Vec<Suite>| suites.iter().map(one).collect::<Result<Vec<_>>>();
    let (mut all, mut failed) = (Count::default(), Vec::new());
    for done in lanes::at_once(&turns, lanes::per_processor() + 1, &in_turn)? {
        for (count, tests) in done? {
            all.add(count);
            failed.extend(tests);
        }
    }
    let repeats = failed.len() <= AGAIN;
    for test in failed {
        if repeats {
            again(&test, prepare, &mut all)?;
        } else {
            all.reports.push(test.report("failed"));
        }
    }
    Ok(all)
}

/// Runs a test program, and once more with the tests that it ignored and that can run here.
fn play(suite: &Suite, needs: &Needs, prepare: Prepare<'_>) -> Result<(Count, Vec<Failed>)> {
    let (mut count, text) = play_with(suite, &[], prepare)?;
    let report = |text: &str| {
        let failed = |test: String| Failed {
            suite: suite.clone(),
            last_words: last_words(text, &test),
            test,
        };
        failed_tests(text).map(failed).collect::<Vec<_>>()
    };
    let mut failed = report(&text);
    let (now, not_run) = needs.sort(&suite.name, &text);
    count.add(not_run);
    if !now.is_empty() {
        let expected = u64::try_from(now.len())?;
        let arguments = [vec!["--ignored".to_owned(), "--exact".to_owned()], now].concat();
        let (mut more, text) = play_with(suite, &arguments, prepare)?;
        // A test whose name was misread did not run.
        let missing = expected.saturating_sub(more.passed.saturating_add(more.failed));
        more.failed = more.failed.saturating_add(missing);
        if missing > 0 {
            let name = &suite.name;
            more.reports.push(format!("{name}: {missing} of its ignored tests did not run"));
        }
        failed.extend(report(&text));
        count.add(more);
    }
    Ok((count, failed))
}

fn play_with(suite: &Suite, arguments: &[String], prepare: Prepare<'_>) -> Result<(Count, String)> {
    let begin = Instant::now();
    let output = process::output(command(suite, prepare)?.args(arguments))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut count = Count::of(&text, output.status.success());
    count.add(needs::parts(&errors));
    let took = term::duration(begin.elapsed());
    term::out(&format!("{} ({took})\n{}", suite.name, text.trim_start()));
    if count.failed > 0 {
        term::failure(&errors);
    }
    Ok((count, text))
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
    let mut alone = command(&failed.suite, prepare)?;
    let output = process::output(alone.args(["--include-ignored", "--exact", &failed.test]))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = Count::of(&text, output.status.success()) == Count::passed();
    if passed {
        count.failed = count.failed.saturating_sub(1);
        let report = failed.report("FLAKY: failed beside others and passed alone");
        count.add(Count { flaky: 1, reports: vec![report], ..Count::passed() });
    } else {
        term::failure(&text);
        count.reports.push(failed.report("failed twice"));
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

/// Runs one `cargo test` command and counts the results.
pub(crate) fn counted(command: &mut Command) -> Result<Count> {
    let (mut count, output) = watched(command)?;
    count.add(needs::all_not_run("tests", &output));
    if count == Count::default() {
        bail!("cargo test ran no test");
    }
    Ok(count)
}

/// Runs one `cargo test` command with arguments for the test program, and once more with the tests that it
/// ignored and that can run here.
pub(crate) fn counted_with_needs(
    cargo_test: &dyn Fn() -> Result<Command>,
    arguments: &[String],
    needs: &Needs,
) -> Result<Count> {
    let (mut count, output) = watched(cargo_test()?.arg("--").args(arguments))?;
    let (now, not_run) = needs.sort("tests", &output);
    count.add(not_run);
    if !now.is_empty() {
        count.add(watched(cargo_test()?.args(["--", "--ignored", "--exact"]).args(now))?.0);
    }
    Ok(count)
}

fn watched(command: &mut Command) -> Result<(Count, String)> {
    let mut output = String::new();
    let exited_well = process::watch(command, |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    Ok((Count::of(&output, exited_well), output))
}

/// Builds test programs.
pub(crate) fn build(root: &Path, kind: Kind) -> Result<Vec<Suite>> {
    let mut command = cargo(root);
    command.arg("test").args(programs::ALL);
    if kind == Kind::Unit {
        command.args(["--lib", "--bins"]);
    }
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
    let is = |pointer| message.pointer(pointer).and_then(Value::as_bool);
    // Asked for all programs, cargo also builds those without tests as if they had some.
    if is("/profile/test") != Some(true) || is("/target/test") == Some(false) {
        return None;
    }
    let manifest = Path::new(message.get("manifest_path")?.as_str()?);
    Some(Suite {
        name: message.pointer("/target/name")?.as_str()?.to_owned(),
        is_unit: !message.pointer("/target/kind")?.as_array()?.iter().any(|kind| kind == "test"),
        program: message.get("executable")?.as_str()?.into(),
        dir: manifest.parent()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(name: &str, dir: &str) -> Suite {
        Suite { name: name.to_owned(), is_unit: false, program: name.into(), dir: dir.into() }
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

    /// A test program that is this script.
    fn program(dir: &Path, name: &str, script: &str) -> Suite {
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        crate::tools::make_executable(&path).unwrap();
        Suite { name: name.to_owned(), is_unit: false, program: path, dir: dir.to_owned() }
    }

    #[test]
    fn a_test_that_passes_alone_is_no_failure_and_one_that_does_not_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, result: &str, code: u8| {
            program(dir.path(), name, &format!("echo 'test result: {result}'\nexit {code}"))
        };
        let test = "b".to_owned();
        for (suite, expected) in [
            (program("passes", "ok. 1 passed; 0 failed", 0), Count { flaky: 1, ..Count::passed() }),
            (program("fails", "FAILED. 0 passed; 1 failed", 101), Count::failed()),
            // Nothing of that name was run.
            (program("is not there", "ok. 0 passed; 0 failed", 0), Count::failed()),
        ] {
            let mut count = Count::failed();
            let last_words = "    why".to_owned();
            let failed = Failed { suite, test: test.clone(), last_words };
            again(&failed, &|_| Ok(()), &mut count).unwrap();
            let reports = std::mem::take(&mut count.reports);
            assert!(matches!(&reports[..], [report] if report.ends_with("\n    why")));
            assert_eq!(count, expected);
        }
    }

    #[test]
    fn ignored_tests_run_by_name_where_their_need_is_met_and_count_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let script = "if [ \"$1\" = --ignored ]; then\n\
            echo \"$*\" > ran; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'; exit\nfi\n\
            echo 'test a ... ignored, needs root: run as root'\n\
            echo 'test b ... ignored, needs trustee: set TRUSTEE_BIN'\n\
            echo 'NOT RUN needs history: an upgrade' >&2\n\
            echo 'test result: ok. 3 passed; 0 failed; 2 ignored'";
        let suite = program(dir.path(), "s", script);
        let mut expected = Count { passed: 4, ..Count::not_run("trustee", "s::b") };
        expected.add(Count::not_run("history", "an upgrade"));
        let needs = Needs::that_meet(&["root"]);
        assert_eq!(run(vec![suite.clone()], &needs, &|_| Ok(())).unwrap(), expected);
        let ran = std::fs::read_to_string(dir.path().join("ran")).unwrap();
        assert_eq!(ran.trim(), "--ignored --exact a");
        expected.add(Count::not_run("root", "s::a"));
        expected.passed = 3;
        let nothing = Needs::that_meet(&[]);
        assert_eq!(run(vec![suite], &nothing, &|_| Ok(())).unwrap(), expected);
    }

    #[test]
    fn programs_with_tests_are_found_in_what_cargo_says() {
        let message = |executable: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml",
                "target":{{"name":"a","kind":["test"]}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = built(&message("\"/t/a-1\"", true)).unwrap();
        assert_eq!((found.name.as_str(), found.is_unit, found.dir), ("a", false, "/w/a".into()));
        assert_eq!(built(&message("\"/t/a\"", false)), None, "a program");
        assert_eq!(built(&message("null", true)), None);
        let without_tests =
            message("\"/t/a-1\"", true).replace(r#""kind""#, r#""test":false,"kind""#);
        assert_eq!(built(&without_tests), None, "a program that is no test program");
    }
}
