//! `cargo xtask e2e`: the tests of tec-e2e that need a Kubernetes API server.

use std::path::Path;

use anyhow::Result;

use crate::cargo::cargo;
use crate::{process, programs, term, tools};

/// The test program that has them, in bins/e2e/tests.
const TESTS: &str = "kubernetes";

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
    // With the command line and the program of a node, which they run, too.
    let bin_dir =
        programs::build(root, &[&programs::OF_CLUSTERS[..], &["node-agent", "tec"]].concat())?;
    term::step("tests on a Kubernetes API server");
    let mut test = cargo(root);
    test.arg("test").args(programs::ALL);
    test.args(["--test", TESTS, "--"]).args(&args.more);
    tools.environment(&mut test)?;
    process::run(test.env("TEC_BIN_DIR", bin_dir))
}
