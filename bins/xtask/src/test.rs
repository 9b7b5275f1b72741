//! `cargo xtask test`: everything that CI runs. A step that fails does not keep the later ones
//! from running; a missing tool does, since it would make them fail for the wrong reason.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cargo::{Metadata, cargo};
use crate::tools::{OpenSearch, Renew, Tools};
use crate::{
    bootstrap_demo, check, demo, fuzz, pcr_live, process, programs, room, services, term, tools, vm,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long each fuzz target runs
    #[arg(long, default_value_t = 2)]
    fuzz_seconds: u32,
    /// With the tests on OpenSearch, which is fetched from Maven Central
    #[arg(long)]
    opensearch: bool,
}

/// Checks that ended well, and checks that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

impl Count {
    const ONE: Self = Self {
        passed: 1,
        failed: 0,
    };

    fn add(&mut self, other: Self) {
        self.passed = self.passed.saturating_add(other.passed);
        self.failed = self.failed.saturating_add(other.failed);
    }
}

struct Step {
    name: &'static str,
    took: Duration,
    count: Count,
}

impl Step {
    /// One whose thread panicked.
    fn died(name: &'static str) -> Self {
        let count = Count {
            passed: 0,
            failed: 1,
        };
        Self {
            name,
            took: Duration::ZERO,
            count,
        }
    }
}

/// `cargo xtask test`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let begin = Instant::now();
    room::ensure(root)?;
    let tools = tools::ensure()?;
    tools::ensure_machines(&tools, &pcr_live::default_suites(), Renew::IfMissing)?;
    tools::ensure_nodes(&tools)?;
    tools::ensure_kubernetes(&tools)?;
    let opensearch = OpenSearch::from(args.opensearch);
    tools::ensure_services(&tools, opensearch)?;
    let mut steps = vec![Step {
        name: "tools",
        took: begin.elapsed(),
        count: Count::ONE,
    }];
    let one = |result: Result<()>| result.map(|()| Count::ONE);
    let mut take = |name, work: &dyn Fn() -> Result<Count>| steps.push(timed(name, work));
    take("check", &|| one(check::run(root)));
    take("build", &|| one(programs::build_all(root).map(drop)));
    take("tests", &|| cargo_test(root, &tools));
    if opensearch.is_wanted() {
        take("opensearch", &|| opensearch_test(root, &tools));
    }
    take("crosscheck", &|| crosscheck(root));
    take("examples", &|| examples(root, &tools));
    take("demo", &|| one(demo::play(root, &tools, &[])));
    // It waits more than it works, and the next two steps do, too.
    let bootstrap = thread::scope(|scope| {
        let playing = scope.spawn(|| {
            let play = || bootstrap_demo::play(root, &tools).map(|()| Count::ONE);
            timed("bootstrap demo", &play)
        });
        take("services demo", &|| one(services::check(root, &tools)));
        take("real boots", &|| boots(root, &tools));
        playing.join()
    });
    let bootstrap = bootstrap.unwrap_or_else(|_| Step::died("bootstrap demo"));
    take("virtual nodes", &|| one(vm::check(root, &tools)));
    take("fuzz smoke", &|| {
        one(fuzz::run_all(root, args.fuzz_seconds))
    });
    steps.push(bootstrap);
    summary(&steps)
}

fn timed(name: &'static str, work: &dyn Fn() -> Result<Count>) -> Step {
    let begin = Instant::now();
    let count = work().unwrap_or_else(|error| {
        term::failure(&format!("{name}: {error:#}"));
        Count {
            passed: 0,
            failed: 1,
        }
    });
    Step {
        name,
        took: begin.elapsed(),
        count,
    }
}

fn cargo_test(root: &Path, tools: &Tools) -> Result<Count> {
    term::step("tests, with documentation tests");
    let mut command = cargo(root);
    command
        .arg("test")
        .args(programs::ALL)
        .arg("--no-fail-fast");
    tools.environment(&mut command)?;
    command.env("TEC_BIN_DIR", programs::directory(root)?);
    counted(&mut command)
}

/// Tests that only run when they are asked for; what is missing then fails them.
fn opensearch_test(root: &Path, tools: &Tools) -> Result<Count> {
    term::step("tests on OpenSearch");
    let mut command = cargo(root);
    command.arg("test").args(programs::ALL);
    command.args(["--test", "opensearch", "--no-fail-fast"]);
    tools.environment(&mut command)?;
    counted(&mut command)
}

/// Other implementations beside ours, in a package that is no member of the workspace.
fn crosscheck(root: &Path) -> Result<Count> {
    term::step("other implementations of the same formats");
    let target_dir = Metadata::workspace(root)?.target_dir()?.join("crosscheck");
    let mut command = cargo(&root.join("tec-trustee/crosscheck"));
    // Not `--locked`: the dependencies of tec-trustee change without its lock file.
    command.args(["test", "--no-fail-fast"]);
    command.env("CARGO_TARGET_DIR", target_dir);
    counted(&mut command)
}

/// Runs tests and counts them.
fn counted(command: &mut Command) -> Result<Count> {
    let mut count = Count::default();
    let ended_well = process::watch(command, |line| {
        if let Some(more) = test_result(line) {
            count.add(more);
        }
    })?;
    if count.passed == 0 && count.failed == 0 {
        bail!("cargo test ran no test");
    }
    // It failed without a failed test: something did not compile, or a test program crashed.
    if !ended_well && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
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
    Some(Count {
        passed: number(" passed")?,
        failed: number(" failed")?,
    })
}

/// Runs every example; each must exit 0.
fn examples(root: &Path, tools: &Tools) -> Result<Count> {
    term::step("examples");
    let metadata = Metadata::workspace(root)?;
    let names = metadata.binaries("tec-examples")?;
    if names.is_empty() {
        bail!("the package tec-examples has no binaries");
    }
    let bin_dir = programs::directory(root)?;
    let mut count = Count::default();
    for name in &names {
        let mut example = process::command(bin_dir.join(name));
        tools.environment(&mut example)?;
        example.current_dir(root).env("TEC_BIN_DIR", &bin_dir);
        match process::capture(&mut example) {
            Ok(_) => {
                term::note(&format!("{name}: ok"));
                count.passed += 1;
            }
            Err(error) => {
                term::failure(&format!("example {name}: {error:#}"));
                count.failed += 1;
            }
        }
    }
    Ok(count)
}

/// Boots virtual machines; each counts as a check.
fn boots(root: &Path, tools: &Tools) -> Result<Count> {
    let passed = u64::try_from(pcr_live::check(root, tools)?)?;
    Ok(Count { passed, failed: 0 })
}

fn total(steps: &[Step]) -> Count {
    let mut total = Count::default();
    for step in steps {
        total.add(step.count);
    }
    total
}

fn summary(steps: &[Step]) -> Result<()> {
    let total = total(steps);
    let row = |step: &Step| {
        vec![
            step.name.to_owned(),
            if step.count.failed == 0 {
                "ok"
            } else {
                "FAILED"
            }
            .to_owned(),
            step.count.passed.to_string(),
            step.count.failed.to_string(),
            term::duration(step.took),
        ]
    };
    let rows: Vec<_> = steps.iter().map(row).collect();
    term::step("summary");
    term::table(&["step", "result", "passed", "failed", "took"], &rows);
    term::out(&format!("{} passed, {} failed", total.passed, total.failed));
    if total.failed > 0 {
        bail!("not everything passed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_counted() {
        let line =
            "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out";
        let count = test_result(line).unwrap();
        assert_eq!((count.passed, count.failed), (12, 3));
        assert_eq!(test_result("test a::b ... ok"), None);
    }

    #[test]
    fn a_step_that_could_not_run_counts_as_failed() {
        let steps = [
            timed("good", &|| Ok(Count::ONE)),
            timed("bad", &|| bail!("no such tool")),
        ];
        let total = total(&steps);
        assert_eq!((total.passed, total.failed), (1, 1));
    }
}
