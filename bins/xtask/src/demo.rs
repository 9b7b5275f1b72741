//! `cargo xtask demo`: the main job end to end, played by the binary `demo` of tec-e2e.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cargo::{Metadata, cargo};
use crate::tools::Tools;
use crate::{process, term, tools};

/// Where the report goes, below the target directory.
const REPORT: &str = "demo/report.html";
/// The programs that the scenes use.
const PROGRAMS: [&str; 3] = ["tec-e2e", "tec", "node-agent"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Handed on to the demo program; `-- --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Tools, build, scenes.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    build(root)?;
    play(root, &tools, &args.more)
}

/// Builds the programs of the demo. The development profile is used: its dependencies are
/// optimized, it builds in a fraction of the release profile's time, and `test` shares it.
pub(crate) fn build(root: &Path) -> Result<()> {
    term::step("build the programs");
    let packages = PROGRAMS.iter().flat_map(|package| ["--package", package]);
    process::run(cargo(root).args(["build", "--bins"]).args(packages))
}

/// Plays the scenes with what [`build`] made.
pub(crate) fn play(root: &Path, tools: &Tools, more: &[String]) -> Result<()> {
    term::step("demo");
    let target = Metadata::workspace(root)?.target_dir()?;
    let bin_dir = target.join("debug");
    let report = target.join(REPORT);
    if let Some(dir) = report.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let mut demo = process::command(bin_dir.join("demo"));
    demo.current_dir(root)
        .arg("--cache")
        .arg(&tools.cache)
        .arg("--bin-dir")
        .arg(&bin_dir)
        .arg("--report")
        .arg(&report)
        .args(more);
    tools.environment(&mut demo)?;
    demo.env("TEC_BIN_DIR", &bin_dir);
    process::run(&mut demo)
}
