//! `cargo xtask services-demo`: a platform's services from an empty directory, played by the binary
//! `services-demo` of tec-services-e2e.

use std::path::Path;

use anyhow::Result;

use crate::cargo::Metadata;
use crate::cargo::cargo;
use crate::process;
use crate::term;
use crate::tools;
use crate::tools::Tools;

/// The programs that it starts.
const PROGRAMS: [&str; 4] = [
    "services-bootstrap",
    "services-broker",
    "services-init",
    "tec-services-e2e",
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Handed on to the demo program; `-- --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Tools, build, demo.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_kubernetes(&tools)?;
    tools::ensure_services(&tools)?;
    play(root, &tools, &args.more)
}

/// The demo alone, without what can be asked for beside it.
pub(crate) fn check(root: &Path, tools: &Tools) -> Result<()> {
    play(root, tools, &[])
}

fn play(root: &Path, tools: &Tools, more: &[String]) -> Result<()> {
    term::step("build the programs of the services bootstrap");
    let packages = PROGRAMS.iter().flat_map(|package| ["--package", package]);
    process::run(cargo(root).args(["build", "--bins"]).args(packages))?;
    term::step("bootstrap of services");
    let bin_dir = Metadata::workspace(root)?.target_dir()?.join("debug");
    let mut demo = process::command(bin_dir.join("services-demo"));
    demo.args(more);
    tools.environment(&mut demo)?;
    process::run(demo.env("TEC_BIN_DIR", &bin_dir))
}
