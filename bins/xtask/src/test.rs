//! `cargo xtask test`: everything that CI runs, or the part that a tier, an area or a change selects. A failed
//! step does not prevent later ones from running; a missing tool does, because it would make them fail for the
//! wrong reason.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::areas::{Area, Selection, Tier};
use crate::cargo::{Metadata, cargo};
use crate::count::Count;
use crate::needs::{self, Needs};
use crate::tools::{Renew, Tools};
use crate::{
    bootstrap_demo, check, demo, dist, docs, fuzz, images, lanes, outside, pcr_live, process,
    programs, room, services, suites, term, tools, vm,
};

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
    /// Run only the steps and tests of this tier
    #[arg(long, conflicts_with_all = ["only", "opensearch"])]
    tier: Option<Tier>,
    /// Run only the steps and tests of this area; repeatable
    #[arg(long = "area", value_name = "AREA", conflicts_with = "only")]
    areas: Vec<Area>,
    /// Run only what a difference from this commit can reach (default: the last commit)
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD")]
    #[arg(conflicts_with_all = ["only", "opensearch"])]
    changed: Option<String>,
    /// Fail if something does not run for this need; repeatable; the summary names them
    #[arg(long, value_name = "NEED")]
    require: Vec<String>,
}

/// What to run, and with what.
struct Run<'a> {
    root: &'a Path,
    args: &'a Args,
    tools: Tools,
    needs: Needs,
    selection: Selection,
}

impl Run<'_> {
    fn wants(&self, step: &str) -> bool {
        let only = &self.args.only;
        if only.is_empty() { self.selection.step(step) } else { only.iter().any(|one| one == step) }
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
    let needs = Needs::of_this_machine(root)?;
    needs.require(&args.require)?;
    needs.announce();
    let selection = Selection::new(root, args.tier, &args.areas, args.changed.as_deref())?;
    let run = Run { root, args, tools: tools::ensure()?, needs, selection };
    let (first, then, beside) = (compile(root), steps(&run), beside(&run));
    let all = || first.iter().chain(&then).chain(&beside).map(|step| step.0);
    if let Some(unknown) = args.only.iter().find(|only| all().all(|name| name != *only)) {
        let known: Vec<_> = all().collect();
        bail!("there is no step {unknown:?}; these are known: {}", known.join(", "));
    }
    let left_out: Vec<&str> = all().filter(|step| !run.wants(step)).collect();
    let play = |steps: &[Work<'_>]| -> Vec<Step> {
        steps.iter().filter(|step| run.wants(step.0)).map(timed).collect()
    };
    let mut done = thread::scope(|scope| {
        let other_tools = scope.spawn(|| set_up(&run.tools, args.tier));
        let compiled = play(&first);
        other_tools.join().map_err(|_| anyhow!("a thread panicked"))??;
        anyhow::Ok(compiled)
    })?;
    let took = begin.elapsed().saturating_sub(done.iter().map(|step| step.took).sum::<Duration>());
    done.insert(0, Step { name: "tools", took, count: Count::passed() });
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
    if let Some(reach) = &run.selection.reach {
        let reached: Vec<&str> = reach.packages.iter().map(String::as_str).collect();
        term::out(&format!("the change since {} reaches: {}", reach.since, reached.join(", ")));
    }
    if !left_out.is_empty() {
        term::out(&format!("steps that were not selected: {}", left_out.join(", ")));
    }
    summary(&done, begin.elapsed(), &args.require)
}

/// Tools that no compiler needs, so that they are set up while it runs. The quick tier starts no servers and no
/// machines.
fn set_up(tools: &Tools, tier: Option<Tier>) -> Result<()> {
    tools::ensure_docs(tools)?;
    if tier.is_none() {
        tools::ensure_machines(tools, &pcr_live::default_suites(), Renew::IfMissing)?;
        tools::ensure_nodes(tools)?;
        tools::ensure_pods(tools)?;
        tools::ensure_browser(tools)?;
        tools::ensure_services(tools)?;
        tools::ensure_opensearch(tools)?;
    }
    Ok(())
}

/// The name of a step, and what it does.
type Work<'a> = (&'static str, Box<dyn Fn() -> Result<Count> + Send + Sync + 'a>);

fn one<'a>(name: &'static str, work: impl Fn() -> Result<()> + Send + Sync + 'a) -> Work<'a> {
    (name, Box::new(move || work().map(|()| Count::passed())))
}

/// What the other steps need.
fn compile(root: &Path) -> Vec<Work<'_>> {
    let build = move || {
        programs::build_all(root)?;
        term::step("build the tests");
        suites::build(root, suites::Kind::All).map(drop)
    };
    vec![one("build", build)]
}

/// Steps that mostly compile. They run beside the [others](steps), which mostly wait, and give way to them.
fn beside<'a>(run: &'a Run<'_>) -> Vec<Work<'a>> {
    let (root, tools) = (run.root, &run.tools);
    vec![
        one("machines", move || vm::build(root, tools)),
        ("check", Box::new(move || check::all(root))),
        one("site", move || docs::run(root)),
        ("crosscheck", Box::new(move || crosscheck(root))),
        ("outside", Box::new(move || outside::run(root, outside::Args::default()))),
        one("interfaces", move || outside::interfaces(root)),
        one("installation", move || dist::check_install(root, tools)),
        one("fuzzers", move || fuzz::build_all(root)),
    ]
}

/// All other steps in their order.
fn steps<'a>(run: &'a Run<'_>) -> Vec<Work<'a>> {
    let (root, args, tools) = (run.root, run.args, &run.tools);
    let in_pods = [&programs::OF_CLUSTERS[..], &[bootstrap_demo::IN_A_POD]].concat();
    let mut steps: Vec<Work<'a>> = vec![
        one("static", move || images::compile_for_tests(root, &in_pods).map(drop)),
        ("tests", Box::new(move || tests(run))),
        ("doctests", Box::new(move || doctests(root, tools))),
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
        let report = format!("{name}: {error:#}");
        term::failure(&report);
        Count { reports: vec![report], ..Count::failed() }
    });
    Step { name, took: begin.elapsed(), count }
}

/// The selected tests.
fn tests(run: &Run<'_>) -> Result<Count> {
    term::step("tests");
    let bin_dir = programs::directory(run.root)?;
    let prepare = |command: &mut Command| {
        command.env("TEC_BIN_DIR", &bin_dir);
        run.tools.environment(command)
    };
    let kind = match run.selection.tier {
        Some(Tier::Quick) => suites::Kind::Unit,
        None => suites::Kind::All,
    };
    let mut suites = suites::build(run.root, kind)?;
    suites.retain(|suite| run.selection.suite(suite));
    suites::run(suites, &run.needs, &prepare)
}

fn doctests(root: &Path, tools: &Tools) -> Result<Count> {
    term::step("tests in documentation");
    let mut documented = cargo(root);
    documented.arg("test").args(programs::ALL);
    documented.args(["--doc", "--no-fail-fast"]).env("TEC_BIN_DIR", programs::directory(root)?);
    tools.environment(&mut documented)?;
    suites::counted(&mut documented)
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
        total.add(step.count.clone());
    }
    total
}

fn summary(steps: &[Step], took: Duration, required: &[String]) -> Result<()> {
    let total = total(steps);
    let row = |step: &Step| {
        vec![
            step.name.to_owned(),
            if step.count.failed == 0 { "ok" } else { "FAILED" }.to_owned(),
            step.count.passed.to_string(),
            step.count.failed.to_string(),
            step.count.number_not_run().to_string(),
            term::duration(step.took),
        ]
    };
    let rows: Vec<_> = steps.iter().map(row).collect();
    term::step("summary");
    term::table(&["step", "result", "passed", "failed", "not run", "took"], &rows);
    let (took, worked) = (term::duration(took), term::duration(process::worked()));
    term::out(&format!("took {took}, and {worked} of processor time"));
    needs::report(&total);
    verdict(&total, required)
}

fn verdict(total: &Count, required: &[String]) -> Result<()> {
    if total.failed > 0 {
        bail!("not everything passed");
    }
    if let Some(need) = required.iter().find(|need| total.not_run.contains_key(need.as_str())) {
        bail!("something did not run, and {need} is required");
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
    #[test]
    fn what_did_not_run_is_a_failure_only_if_it_is_required() {
        let total = Count::not_run("advisories", "advisories");
        verdict(&total, &[]).unwrap();
        verdict(&total, &["root".to_owned()]).unwrap();
        verdict(&total, &["advisories".to_owned()]).unwrap_err();
        verdict(&Count::failed(), &[]).unwrap_err();
    }
}
