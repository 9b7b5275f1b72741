//! `cargo xtask demo`: the main use case end to end, played by the binary `demo` of tec-e2e.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::cargo::Metadata;
use crate::tools::Tools;
use crate::{process, programs, term, tools};

/// Location of the report, below the target directory.
const REPORT: &str = "demo/report.html";
/// The programs that the scenes use.
const PROGRAMS: [&str; 3] = ["demo", "tec", "node-agent"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Arguments of the demo program; `-- --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Sets up tools, builds, and plays the scenes.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure_demo()?;
    programs::build(root, &PROGRAMS)?;
    play(root, &tools, &args.more)
}

/// Plays the scenes with programs already built.
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
