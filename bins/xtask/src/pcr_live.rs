//! `cargo xtask pcr-live`: boots Debian's packages in virtual machines and compares their measurements with
//! the prediction; run by the binary `pcr-live` of tec-e2e.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cargo::{Metadata, cargo};
use crate::tools::{Renew, Tools};
use crate::{process, programs, term, tools};

/// Default cases, also run by `cargo xtask test`: the boot chains that matter, with the packages of Debian's
/// stable release.
const DEFAULT: [&str; 3] = ["trixie-sb-on", "trixie-sb-off", "trixie-uki"];
/// Directory of each case's files, below the target directory.
const ARTEFACTS: &str = "pcr-live";
/// Profile of the program in the machines: small, since every boot measures it.
pub(crate) const PROFILE: &str = "guest";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Boot this case; repeatable (default: trixie-sb-on, trixie-sb-off, trixie-uki)
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Boot every case
    #[arg(long, conflicts_with = "cases")]
    all: bool,
    /// Print the names of all cases
    #[arg(long, conflicts_with_all = ["cases", "all"])]
    list: bool,
    /// Download today's packages, even if older ones are in the cache
    #[arg(long)]
    renew: bool,
    /// Format of the result on standard output: text or json
    #[arg(long, default_value = "text")]
    output: String,
}

/// `cargo xtask pcr-live`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    let programs = build(root)?;
    if args.list {
        return process::run(programs.command(&tools)?.arg("--list"));
    }
    let cases = if args.all {
        let names = process::capture(programs.command(&tools)?.arg("--list"))?;
        names.lines().map(str::to_owned).collect()
    } else if args.cases.is_empty() {
        DEFAULT.map(str::to_owned).into()
    } else {
        args.cases.clone()
    };
    let renew = if args.renew { Renew::Always } else { Renew::IfMissing };
    play(&tools, &programs, &cases, renew, &args.output)
}

/// Runs the cases of `cargo xtask test`; returns their number.
pub(crate) fn check(root: &Path, tools: &Tools) -> Result<usize> {
    let programs = build(root)?;
    let cases = DEFAULT.map(str::to_owned);
    play(tools, &programs, &cases, Renew::IfMissing, "text")?;
    Ok(cases.len())
}

/// The suites that the default cases need.
pub(crate) fn default_suites() -> BTreeSet<&'static str> {
    DEFAULT.into_iter().map(suite).collect()
}

/// A case is named `SUITE-SETUP`.
fn suite(case: &str) -> &str {
    case.split('-').next().unwrap_or(case)
}

struct Programs {
    target: PathBuf,
}

impl Programs {
    fn command(&self, tools: &Tools) -> Result<std::process::Command> {
        let mut command = process::command(self.target.join("debug/pcr-live"));
        command
            .arg("--guest")
            .arg(self.target.join(PROFILE).join("tec-guest"))
            .arg("--artefacts")
            .arg(self.target.join(ARTEFACTS));
        tools.environment(&mut command)?;
        Ok(command)
    }
}

fn build(root: &Path) -> Result<Programs> {
    programs::build(root, &["pcr-live"])?;
    build_guest(root, "tec-guest")?;
    let target = Metadata::workspace(root)?.target_dir()?;
    Ok(Programs { target })
}

/// Builds a program that runs in machines, which contain this one file and no library.
pub(crate) fn build_guest(root: &Path, program: &str) -> Result<()> {
    let guest = ["rustc", "--package", "tec-guest", "--bin", program];
    let mut command = cargo(root);
    command.args(guest).args(["--profile", PROFILE, "--"]);
    command.args(["-C", "target-feature=+crt-static"]);
    process::run(&mut command)
        .context("the program of the machines is not built; it links libc statically")
}

fn play(
    tools: &Tools,
    programs: &Programs,
    cases: &[String],
    renew: Renew,
    output: &str,
) -> Result<()> {
    let suites = cases.iter().map(|case| suite(case)).collect();
    tools::ensure_machines(tools, &suites, renew)?;
    term::step("boot virtual machines and compare with the prediction");
    let mut command = programs.command(tools)?;
    command.args(["--output", output]);
    for case in cases {
        command.args(["--case", case]);
    }
    process::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_case_begins_with_its_suite() {
        assert_eq!(suite("trixie-sb-on"), "trixie");
        assert_eq!(default_suites(), ["trixie"].into());
    }
}
