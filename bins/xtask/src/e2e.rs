//! `cargo xtask e2e`: the tests of tec-e2e that need a Kubernetes API server.

use std::path::Path;

use anyhow::Result;

use crate::cargo::{Metadata, cargo};
use crate::{process, term, tools};

/// What the names of these tests begin with; each is a file in bins/e2e/tests.
const TESTS: &str = "kube_*";
/// The programs that they run.
const PROGRAMS: [&str; 5] = [
    "compute-pcrs",
    "kbs-guard",
    "operator",
    "registration",
    "tec",
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Handed on to the test programs, for example a part of a test's name
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Tools, programs, tests.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_kubernetes(&tools)?;
    build(root, &[])?;
    term::step("tests on a Kubernetes API server");
    let mut test = cargo(root);
    test.args(["test", "--package", "tec-e2e", "--test", TESTS, "--"])
        .args(&args.more);
    tools.environment(&mut test)?;
    let target = Metadata::workspace(root)?.target_dir()?;
    process::run(test.env("TEC_BIN_DIR", target.join("debug")))
}

/// Builds the programs, and others in one go: libraries are built once for all of them.
pub(crate) fn build(root: &Path, others: &[&str]) -> Result<()> {
    term::step("build the programs of Kubernetes");
    let packages = PROGRAMS.iter().chain(others);
    let packages = packages.flat_map(|package| ["--package", package]);
    process::run(cargo(root).args(["build", "--bins"]).args(packages))
}
