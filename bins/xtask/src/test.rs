//! `cargo xtask test`: everything that CI runs. A failed step does not prevent later ones from running; a
//! missing tool does, because it would make them fail for the wrong reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::cargo::{Metadata, cargo};
use crate::suites::Count;
use crate::tools::{OpenSearch, Renew, Tools};
use crate::{
    bootstrap_demo, check, demo, dist, docs, fuzz, images, lanes, outside, pcr_live, process,
    programs, room, services, suites, term, tools, vm,
};

/// Where tests look for recorded boots, relative to the root of the repository.
const FIXTURES: &str = "../shared/fixtures";

/// Steps of `--changed`: tests start programs of this workspace, some of them in pods.
const OF_CHANGED: [&str; 3] = ["build", "static", "tests"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Duration per fuzz target, in seconds
    #[arg(long, default_value_t = 2)]
    fuzz_seconds: u32,
    /// Include the tests of each component on OpenSearch, which take five minutes
    #[arg(long)]
    opensearch: bool,
    /// Run this step only; repeatable; the summary names them
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Run only the tests of packages whose files differ from this commit (default: the last one)
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD")]
    #[arg(conflicts_with_all = ["only", "opensearch"])]
    changed: Option<String>,
}

impl Args {
    fn wants(&self, step: &str) -> bool {
        if self.changed.is_some() {
            return OF_CHANGED.contains(&step);
        }
        self.only.is_empty() || self.only.iter().any(|only| only == step)
    }
}

struct Step {
    name: &'static str,
    took: Duration,
    count: Count,
}

/// `cargo xtask test`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let begin = Instant::now();
    room::ensure(root)?;
    let tools = tools::ensure()?;
    tools::ensure_machines(&tools, &pcr_live::default_suites(), Renew::IfMissing)?;
    tools::ensure_nodes(&tools)?;
    tools::ensure_pods(&tools)?;
    tools::ensure_docs(&tools)?;
    tools::ensure_browser(&tools)?;
    tools::ensure_services(&tools, OpenSearch::With)?;
    let mut done = vec![Step { name: "tools", took: begin.elapsed(), count: Count::PASSED }];
    let (first, then, beside) = (compile(root), steps(root, args, &tools), beside(root, &tools));
    let all = || first.iter().chain(&then).chain(&beside).map(|step| step.0);
    if let Some(unknown) = args.only.iter().find(|only| all().all(|name| name != *only)) {
        let known: Vec<_> = all().collect();
        bail!("there is no step {unknown:?}; these are known: {}", known.join(", "));
    }
    let play = |steps: &[Work<'_>]| -> Vec<Step> {
        steps.iter().filter(|step| args.wants(step.0)).map(timed).collect()
    };
    done.extend(play(&first));
    thread::scope(|scope| {
        let beside = scope.spawn(|| {
            lanes::give_way();
            play(&beside)
        });
        done.extend(play(&then));
        let beside = beside.join().map_err(|_| anyhow!("a thread panicked"))?;
        done.extend(beside);
        anyhow::Ok(())
    })?;
    summary(&done, begin.elapsed())
}

/// The name of a step, and what it does.
type Work<'a> = (&'static str, Box<dyn Fn() -> Result<Count> + Send + Sync + 'a>);

fn one<'a>(name: &'static str, work: impl Fn() -> Result<()> + Send + Sync + 'a) -> Work<'a> {
    (name, Box::new(move || work().map(|()| Count::PASSED)))
}

/// What the other steps need.
fn compile(root: &Path) -> Vec<Work<'_>> {
    let in_pods = [&programs::OF_CLUSTERS[..], &[bootstrap_demo::IN_A_POD]].concat();
    let build = move || {
        programs::build_all(root)?;
        term::step("build the tests");
        suites::build(root).map(drop)
    };
    vec![
        one("build", build),
        one("static", move || images::compile_for_tests(root, &in_pods).map(drop)),
    ]
}

/// Steps that mostly compile. They run beside the [others](steps), which mostly wait, and give way to them.
fn beside<'a>(root: &'a Path, tools: &'a Tools) -> Vec<Work<'a>> {
    vec![
        one("machines", move || vm::build(root, tools)),
        one("check", move || check::run(root)),
        one("site", move || docs::run(root)),
        ("crosscheck", Box::new(move || crosscheck(root))),
        ("outside", Box::new(move || outside::run(root, outside::Args::default()))),
        one("installation", move || dist::check_install(root, tools)),
        one("fuzzers", move || fuzz::build(root).map(drop)),
    ]
}

/// All other steps in their order.
fn steps<'a>(root: &'a Path, args: &'a Args, tools: &'a Tools) -> Vec<Work<'a>> {
    let mut steps: Vec<Work<'a>> = vec![
        ("tests", Box::new(move || tests(root, tools, args.changed.as_deref()))),
        ("examples", Box::new(move || examples(root, tools))),
        one("demo", move || demo::play(root, tools, &[])),
        one("services-demo", move || services::check(root, tools)),
        ("boots", Box::new(move || boots(root, tools))),
        // Starts three kubelets, so no other test runs at the same time.
        one("bootstrap-demo", move || bootstrap_demo::play(root, tools)),
        one("vm", move || vm::check(root, tools)),
        one("fuzz", move || fuzz::run_all(root, args.fuzz_seconds)),
    ];
    if args.opensearch {
        steps.push(("opensearch", Box::new(move || opensearch_test(root, tools))));
    }
    steps
}

fn timed((name, work): &Work<'_>) -> Step {
    let begin = Instant::now();
    let count = work().unwrap_or_else(|error| {
        term::failure(&format!("{name}: {error:#}"));
        Count::FAILED
    });
    Step { name, took: begin.elapsed(), count }
}

/// All tests, or those of packages that differ from a commit.
fn tests(root: &Path, tools: &Tools, changed_since: Option<&str>) -> Result<Count> {
    term::step("tests");
    let bin_dir = programs::directory(root)?;
    let has_fixtures = has_fixtures(root);
    let prepare = |command: &mut Command| {
        command.env("TEC_BIN_DIR", &bin_dir);
        if !has_fixtures {
            command.env("TEC_WITHOUT_FIXTURES", "1");
        }
        tools.environment(command)
    };
    if let Some(commit) = changed_since {
        return suites::run_of(root, &changed(root, commit)?, &prepare);
    }
    let mut count = suites::run_all(root, &prepare)?;
    term::step("tests in documentation");
    let mut documented = cargo(root);
    documented.arg("test").args(programs::ALL);
    documented.args(["--doc", "--no-fail-fast"]);
    prepare(&mut documented)?;
    count.add(suites::counted(&mut documented)?);
    Ok(count)
}

/// Files that differ from a commit, and new ones.
fn changed(root: &Path, commit: &str) -> Result<Vec<PathBuf>> {
    let git =
        |words: &[&str]| process::capture(process::command("git").current_dir(root).args(words));
    let known = git(&["diff", "--name-only", commit, "--"])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(known.lines().chain(new.lines()).map(|name| root.join(name)).collect())
}

/// Whether recorded boots and evidence are next to the repository, which contains none of the large ones.
fn has_fixtures(root: &Path) -> bool {
    let is_there = root.join(FIXTURES).is_dir();
    if !is_there {
        term::failure(&format!("NOT RUN: what needs recorded boots, since there is no {FIXTURES}"));
    }
    is_there
}

/// Tests that run only on request; a missing tool then fails them.
fn opensearch_test(root: &Path, tools: &Tools) -> Result<Count> {
    term::step("tests on OpenSearch");
    let mut command = cargo(root);
    command.arg("test").args(programs::ALL);
    command.args(["--test", "opensearch", "--no-fail-fast"]);
    tools.environment(&mut command)?;
    suites::counted(&mut command)
}

/// Comparison with other implementations, in a package outside the workspace.
fn crosscheck(root: &Path) -> Result<Count> {
    term::step("other implementations of the same formats");
    let target_dir = Metadata::workspace(root)?.target_dir()?.join("crosscheck");
    let mut command = cargo(&root.join("tec-trustee/crosscheck"));
    // Not `--locked`: the dependencies of tec-trustee change without updating its lock file.
    command.args(["test", "--no-fail-fast"]);
    command.env("CARGO_TARGET_DIR", target_dir);
    suites::counted(&mut command)
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
    Ok(Count { passed, ..Count::default() })
}

fn total(steps: &[Step]) -> Count {
    let mut total = Count::default();
    for step in steps {
        total.add(step.count);
    }
    total
}

fn summary(steps: &[Step], took: Duration) -> Result<()> {
    let total = total(steps);
    let row = |step: &Step| {
        vec![
            step.name.to_owned(),
            if step.count.failed == 0 { "ok" } else { "FAILED" }.to_owned(),
            step.count.passed.to_string(),
            step.count.failed.to_string(),
            term::duration(step.took),
        ]
    };
    let rows: Vec<_> = steps.iter().map(row).collect();
    term::step("summary");
    term::table(&["step", "result", "passed", "failed", "took"], &rows);
    let (took, worked) = (term::duration(took), term::duration(process::worked()));
    term::out(&format!("took {took}, and {worked} of processor time"));
    term::out(&format!("{} passed, {} failed, {} flaky", total.passed, total.failed, total.flaky));
    if total.failed > 0 {
        bail!("not everything passed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_could_not_run_counts_as_failed() {
        let steps = [one("good", || Ok(())), one("bad", || bail!("no such tool"))];
        let steps = steps.each_ref().map(timed);
        let total = total(&steps);
        assert_eq!((total.passed, total.failed), (1, 1));
    }
}
