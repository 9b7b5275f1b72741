//! `cargo xtask e2e`: runs the tests of tec-e2e that need a Kubernetes API server.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::cargo::cargo;
use crate::needs::{self, Needs};
use crate::{programs, suites, term, tools};

/// The test program that contains them, in bins/e2e/tests.
const TESTS: &str = "kubernetes";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Arguments of the test programs, for example a part of a test's name
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Sets up tools, builds programs, and runs tests.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let needs = Needs::of_this_machine(root)?;
    let tools = tools::ensure()?;
    tools::ensure_kubernetes(&tools)?;
    // Includes the command line and the node's program, which they run, too.
    let bin_dir =
        programs::build(root, &[&programs::OF_CLUSTERS[..], &["node-agent", "tec"]].concat())?;
    term::step("tests on a Kubernetes API server");
    let test = || {
        let mut test = cargo(root);
        test.arg("test").args(programs::ALL).args(["--test", TESTS]);
        tools.environment(&mut test)?;
        test.env("TEC_BIN_DIR", &bin_dir);
        Ok(test)
    };
    let count = suites::counted_with_needs(&test, &args.more, &needs)?;
    needs::report(&count);
    ensure!(count.failed == 0, "not everything passed");
    Ok(())
}
