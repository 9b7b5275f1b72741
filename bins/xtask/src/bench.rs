//! `cargo xtask bench`: runs the suites, then prints the key results: each measurement as a multiple of its
//! baseline in the same run, a ratio that other machines can reproduce.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cargo::{Metadata, cargo};
use crate::{pcr_live, process, term, tools};

/// Written by the suites, below the target directory.
const REPORT: &str = "bench/report.json";
/// A measurement that runs the release build of `compute-pcrs`.
const PROCESS: &str = "pcr/process/";
/// Measurements of Debian's boot files.
const BOOT_FILES: &str = "pcr/";
/// A measurement that runs the release build of `node-agent`.
const UNLOCK: &str = "guard/unlock";
/// Measurements that run the release builds of `tec` and `kbs-guard`.
const SILENT: &str = "silent/";
/// Measurements that run the release build of `tec`.
const CONTINUOUS: &str = "continuous/";
/// Measurements that run the servers on a Kubernetes API server.
const KUBERNETES: &str = "kube_registration/";
/// Measurements that run the key broker there.
const BROKER: &str = "kube_broker/";
/// Measurements that move machines between two namespaces there.
const MIGRATION: &str = "kube_migrate/";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only the benchmarks whose name contains this; those of PCR values all start with `pcr`
    filter: Option<String>,
    /// Report or commit to compare the last run with, instead of running; with a second one, the two are
    /// compared. A commit without a report is measured first
    #[arg(long, num_args = 1..=2, value_names = ["BEFORE", "AFTER"])]
    compare: Vec<String>,
}

/// Runs the suites, or compares.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let bench = Bench {
        root,
        target: Metadata::workspace(root)?.target_dir()?,
        filter: args.filter.as_deref(),
    };
    let Some(before) = args.compare.first() else {
        let mut describe = git(root);
        describe.args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
        let name = process::capture(&mut describe)?;
        let name = name.trim();
        bench.measure(root)?;
        term::step("against the baselines of the same run");
        bench.show(&bench.target.join(REPORT), &["--commit", name])?;
        return bench.keep(name).map(drop);
    };
    // First, because measuring a commit overwrites the report of the last run.
    let after = match args.compare.get(1) {
        Some(after) => bench.report_of(after)?,
        None => bench.keep("last")?,
    };
    let before = bench.report_of(before)?;
    term::step("since the earlier report; * is more than noise");
    bench.show(&after, &["--since", &before.to_string_lossy()])
}

struct Bench<'a> {
    root: &'a Path,
    target: PathBuf,
    filter: Option<&'a str>,
}

impl Bench<'_> {
    /// Runs the suites of the sources in `tree`, and writes their report to the target directory.
    fn measure(&self, tree: &Path) -> Result<()> {
        let report = self.target.join(REPORT);
        // Ratios of an earlier run must not be mistaken for those of this one.
        if report.exists() {
            fs::remove_file(&report)
                .with_context(|| format!("cannot remove {}", report.display()))?;
        }
        if self.wants(PROCESS) {
            self.build(tree, &["compute-pcrs"])?;
        }
        if self.wants(UNLOCK) {
            self.build(tree, &["node-agent"])?;
        }
        if self.wants(SILENT) {
            self.build(tree, &["tec", "kbs-guard"])?;
        }
        if self.wants(CONTINUOUS) {
            self.build(tree, &["tec"])?;
        }
        let mut bench = cargo(tree);
        if self.wants(BOOT_FILES) {
            let tools = tools::locate()?;
            tools::ensure_boot_files(&tools, &pcr_live::default_suites())?;
            tools.environment(&mut bench)?;
        }
        if self.wants(KUBERNETES) {
            self.build(tree, &["registration"])?;
        }
        let on_kubernetes = [KUBERNETES, BROKER, MIGRATION, SILENT];
        if on_kubernetes.iter().any(|names| self.wants(names)) {
            let tools = tools::ensure()?;
            tools::ensure_kubernetes(&tools)?;
            tools.environment(&mut bench)?;
        }
        term::step("benchmarks");
        bench.args(["bench", "--package", "tec-benches", "--target-dir"]);
        bench.arg(&self.target);
        if let Some(filter) = self.filter {
            bench.args(suite(tree, filter).into_iter().flatten()).args(["--", filter]);
        }
        process::run(&mut bench)?;
        ensure!(report.is_file(), "no benchmark has {:?} in its name", self.filter.unwrap_or(""));
        Ok(())
    }

    /// Whether measurements with this prefix are wanted.
    fn wants(&self, names: &str) -> bool {
        let fits = |filter: &str| names.contains(filter) || filter.contains(names);
        self.filter.is_none_or(fits)
    }

    /// Builds programs that are measured as a whole.
    fn build(&self, tree: &Path, packages: &[&str]) -> Result<()> {
        term::step("programs that are measured as a whole");
        let mut build = cargo(tree);
        build.args(["build", "--release", "--target-dir"]).arg(&self.target);
        for package in packages {
            build.args(["--package", package]);
        }
        process::run(&mut build)
    }

    /// Prints a report, using the benchmark program.
    fn show(&self, report: &Path, more: &[&str]) -> Result<()> {
        let mut show = cargo(self.root);
        show.args(["run", "--quiet", "--profile", "bench", "--package", "tec-benches", "--"]);
        process::run(show.arg(report).args(more))
    }

    /// Keeps the report of this run under the name of its commit.
    fn keep(&self, name: &str) -> Result<PathBuf> {
        let kept = self.target.join(format!("bench/{name}.json"));
        fs::copy(self.target.join(REPORT), &kept)
            .with_context(|| format!("cannot write {}", kept.display()))?;
        Ok(kept)
    }

    /// A report by its file or its commit; a commit that was not measured yet is measured now.
    fn report_of(&self, what: &str) -> Result<PathBuf> {
        let file = Path::new(what);
        if file.is_file() {
            return std::path::absolute(file)
                .with_context(|| format!("{what} is not a usable path"));
        }
        let commit = commit(self.root, what)
            .with_context(|| format!("{what} is neither a report nor a commit"))?;
        let kept = self.target.join(format!("bench/{commit}.json"));
        if kept.is_file() {
            return Ok(kept);
        }
        let tree = self.target.join(format!("bench/tree-{commit}"));
        let mut add = git(self.root);
        process::run(add.args(["worktree", "add", "--detach"]).arg(&tree).arg(&commit))?;
        let measured = self.measure(&tree);
        let mut remove = git(self.root);
        process::run(remove.args(["worktree", "remove", "--force"]).arg(&tree))?;
        measured?;
        self.show(&self.target.join(REPORT), &["--commit", &commit])?;
        self.keep(&commit)
    }
}

/// Selects the only suite whose measurements a filter can name, so that the others are not built.
fn suite<'a>(tree: &Path, filter: &'a str) -> Option<[&'a str; 2]> {
    let name = filter.split('/').next()?;
    let sources = tree.join("benches/benches");
    let is_suite =
        sources.join(name).join("main.rs").exists() || sources.join(format!("{name}.rs")).exists();
    is_suite.then_some(["--bench", name])
}

fn git(root: &Path) -> std::process::Command {
    let mut git = process::command("git");
    git.current_dir(root);
    git
}

/// The short name of a commit.
fn commit(root: &Path, revision: &str) -> Result<String> {
    let revision = format!("{revision}^{{commit}}");
    let mut parse = git(root);
    parse.args(["rev-parse", "--verify", "--quiet", "--short=12", &revision]);
    let name = process::capture(&mut parse)?;
    Ok(name.trim().to_owned())
}
