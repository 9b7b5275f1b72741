//! `cargo xtask fuzz`: libFuzzer on the stable toolchain. See docs/adr for the reasons not to use cargo-fuzz.
//!
//! All fuzz targets are one program, in the package tec-fuzz behind its feature `fuzzing`; an environment
//! variable selects the target. It is built with the coverage instrumentation that libFuzzer reads, in a
//! separate target directory, and runs over a copy of the committed seeds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo::{Metadata, cargo};
use crate::{lanes, process, term};

const PACKAGE: &str = "tec-fuzz";
/// Profile of Cargo.
const DEV: &str = "dev";
/// Tells the program which target to run.
const TARGET: &str = "TEC_FUZZ_TARGET";
/// Passed to cargo explicitly: this way RUSTFLAGS apply only to the fuzzed code, not to build scripts and
/// procedural macros.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Committed seeds, one directory per target.
const SEEDS: &str = "bins/fuzz/corpus";
/// Edge coverage with counters, a PC table, and compared values: what libFuzzer steers by (clang's
/// SanitizerCoverage documentation). The pass is part of rustc's LLVM on every channel.
const RUSTFLAGS: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
/// An input that needs more memory is a finding.
const RSS_LIMIT_MB: u32 = 2048;
/// An input that takes longer than this is a finding.
const TIMEOUT_SECONDS: u32 = 10;
/// Any number except 0, which libFuzzer takes to mean "pick one".
const SEED: u32 = 1;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Duration per target, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Also stop a target after this many executions
    #[arg(long)]
    runs: Option<u64>,
    /// Run only this target
    target: Option<String>,
}

/// `cargo xtask fuzz`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let mut targets = targets(root)?;
    if let Some(only) = &args.target {
        if !targets.contains(only) {
            bail!("no fuzz target {only}; there are: {}", targets.join(", "));
        }
        targets.retain(|target| target == only);
    }
    let budget = Budget { seconds: args.seconds, runs: args.runs, seed: None };
    run_each(root, &targets, budget)
}

/// Runs every target for `seconds`, with the same random numbers each time: as part of the tests, this shows
/// whether a change broke something; finding unknown defects is the job of longer runs.
pub(crate) fn run_all(root: &Path, seconds: u32) -> Result<()> {
    let targets = targets(root)?;
    let budget = Budget { seconds, runs: None, seed: Some(SEED) };
    run_each(root, &targets, budget)
}

/// Each target has seeds, as a test of tec-fuzz ensures.
fn targets(root: &Path) -> Result<Vec<String>> {
    let seeds = root.join(SEEDS);
    let list = || format!("cannot list {}", seeds.display());
    let mut targets = Vec::new();
    for entry in fs::read_dir(&seeds).with_context(list)? {
        let path = entry.with_context(list)?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_dir()) {
            targets.push(name.to_string_lossy().into_owned());
        }
    }
    targets.sort();
    Ok(targets)
}

/// When a target stops: whichever comes first.
#[derive(Clone, Copy, Debug)]
struct Budget {
    seconds: u32,
    runs: Option<u64>,
    seed: Option<u32>,
}

impl Budget {
    /// A search is worth an optimized program, and the few seconds of a test are not.
    fn profile(self) -> &'static str {
        if self.seed.is_some() { DEV } else { "release" }
    }
}

fn run_each(root: &Path, targets: &[String], budget: Budget) -> Result<()> {
    if targets.is_empty() {
        bail!("{PACKAGE} has no fuzz targets");
    }
    let target_dir = Metadata::workspace(root)?.target_dir()?;
    let built = build(root, budget.profile())?;
    let workers = lanes::per_processor();
    let seconds = budget.seconds;
    term::step(&format!("fuzz: {seconds} s each, {workers} at a time"));
    let work = |target: &String| {
        let ended = fuzz(root, &target_dir, &built, target, budget);
        ended.map_err(|error| term::failure(&format!("{error:#}"))).err().map(|()| target.clone())
    };
    let ended = lanes::at_once(targets, workers, &work)?;
    let findings: Vec<_> = ended.into_iter().flatten().collect();
    if !findings.is_empty() {
        bail!("fuzzing found something in: {}", findings.join(", "));
    }
    term::success(&format!("{} targets, no finding", targets.len()));
    Ok(())
}

/// Builds the program for [`run_all`].
pub(crate) fn build_all(root: &Path) -> Result<()> {
    build(root, DEV).map(drop)
}

/// Builds the program; returns its path.
fn build(root: &Path, profile: &str) -> Result<PathBuf> {
    term::step("build the fuzz targets");
    let dir = Metadata::workspace(root)?.target_dir()?.join("fuzz");
    process::run(
        cargo(root)
            .args(["build", "--profile", profile, "--bins", "--package", PACKAGE])
            .args(["--features", "fuzzing", "--target", TRIPLE])
            .arg("--target-dir")
            .arg(&dir)
            .env_remove("RUSTFLAGS")
            .env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\u{1f}"))
            // Like the development profile: checks that find defects, and quick linking.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
            .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
    )?;
    Ok(dir.join(TRIPLE).join(if profile == DEV { "debug" } else { profile }).join(PACKAGE))
}

fn fuzz(root: &Path, target_dir: &Path, built: &Path, target: &str, budget: Budget) -> Result<()> {
    let corpus = target_dir.join("fuzz-corpus").join(target);
    copy_seeds(&root.join(SEEDS).join(target), &corpus)?;
    let artifacts = target_dir.join("fuzz-artifacts").join(target);
    fs::create_dir_all(&artifacts)
        .with_context(|| format!("cannot create {}", artifacts.display()))?;
    let log = artifacts.join("log.txt");
    let mut command = libfuzzer(built, budget, &artifacts);
    command.env(TARGET, target).current_dir(root).arg(&corpus);
    let output = process::output(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    fs::write(&log, said.as_bytes()).with_context(|| format!("cannot write {}", log.display()))?;
    if output.status.success() {
        term::note(&format!("{target}: {}", last_line(&said)));
        return Ok(());
    }
    let end: Vec<&str> = said.lines().rev().take(20).collect();
    for line in end.iter().rev() {
        term::note(line);
    }
    let artifact = said
        .lines()
        .find_map(|line| line.split_once("Test unit written to ").map(|(_, path)| path))
        .unwrap_or("none was written");
    bail!(
        "{target} failed ({}); input: {artifact}; whole log: {}\nrun it again: {TARGET}={target} {} {artifact}",
        output.status,
        log.display(),
        built.display(),
    )
}

/// A target with its limits.
fn libfuzzer(program: &Path, budget: Budget, artifacts: &Path) -> Command {
    let mut command = process::command(program);
    command
        .arg(format!("-max_total_time={}", budget.seconds))
        .args(budget.runs.map(|runs| format!("-runs={runs}")))
        .args(budget.seed.map(|seed| format!("-seed={seed}")))
        .arg(format!("-rss_limit_mb={RSS_LIMIT_MB}"))
        .arg(format!("-timeout={TIMEOUT_SECONDS}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()));
    command
}

/// libFuzzer's own summary, `Done 12345 runs in 5 second(s)`.
fn last_line(said: &str) -> String {
    said.lines().rev().find(|line| line.starts_with("Done ")).unwrap_or("ended").to_owned()
}

/// A run adds inputs to its corpus, which must not dirty the work tree; those of earlier runs are kept.
fn copy_seeds(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    if !from.is_dir() {
        bail!("no seeds in {}: commit at least one valid input", from.display());
    }
    let entries = fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", from.display()))?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            fs::copy(&path, to.join(name))
                .with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_copied_and_a_target_without_seeds_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        assert!(copy_seeds(&from, &to).is_err());
        fs::create_dir(&from).unwrap();
        fs::write(from.join("a"), "x").unwrap();
        copy_seeds(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "x");
    }

    #[test]
    fn a_target_ends_after_its_time_or_its_executions() {
        let arguments = |runs| {
            let budget = Budget { seconds: 7, runs, seed: None };
            let command = libfuzzer(Path::new("pe"), budget, Path::new("found"));
            let arguments = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
            arguments.filter(|arg| !arg.contains("limit")).collect::<Vec<_>>()
        };
        let ends = ["-max_total_time=7", "-timeout=10", "-artifact_prefix=found/"];
        assert_eq!(arguments(None), ends);
        assert!(arguments(Some(1000)).contains(&"-runs=1000".to_owned()));
    }

    #[test]
    fn the_summary_of_a_run_is_its_last_word() {
        assert_eq!(last_line("INFO\nDone 7 runs in 5 second(s)\n"), "Done 7 runs in 5 second(s)");
    }
}
