//! `cargo xtask services-demo`: a platform's services in pods of an empty cluster, played by the binary
//! `services-demo` of tec-e2e.

use std::path::Path;

use anyhow::Result;

use crate::tools::Tools;
use crate::{process, programs, term, tools};

/// The programs of its pods, and the demo itself.
const PROGRAMS: [&str; 4] =
    ["services-bootstrap", "services-broker", "services-demo", "services-init"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Arguments of the demo program; `-- --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Sets up tools, builds, and runs the demo.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_pods(&tools)?;
    tools::ensure_services(&tools)?;
    tools::ensure_opensearch(&tools)?;
    play(root, &tools, &args.more)
}

/// Runs only the demo, without its optional parts.
pub(crate) fn check(root: &Path, tools: &Tools) -> Result<()> {
    play(root, tools, &[])
}

fn play(root: &Path, tools: &Tools, more: &[String]) -> Result<()> {
    let bin_dir = programs::build(root, &PROGRAMS)?;
    programs::examples(root, &["component"])?;
    term::step("bootstrap of services");
    let mut demo = process::command(bin_dir.join("services-demo"));
    demo.args(more);
    tools.environment(&mut demo)?;
    process::run(demo.env("TEC_BIN_DIR", &bin_dir))
}
