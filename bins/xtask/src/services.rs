//! `cargo xtask services-demo`: a platform's services from an empty directory, played by the binary
//! `services-demo` of tec-services-e2e.

use std::path::Path;

use anyhow::Result;

use crate::cargo::{Metadata, cargo};
use crate::tools::{OpenSearch, Tools};
use crate::{process, term, tools};

/// The programs that it starts.
const PROGRAMS: [&str; 2] = ["tec-services", "tec-services-e2e"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// With OpenSearch, which is fetched from Maven Central: 100 MB, and half a minute to start
    #[arg(long)]
    opensearch: bool,
    /// Handed on to the demo program; `-- --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

/// Tools, build, demo.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_kubernetes(&tools)?;
    let opensearch = OpenSearch::from(args.opensearch);
    tools::ensure_services(&tools, opensearch)?;
    let flags = opensearch.is_wanted().then(|| "--opensearch".to_owned());
    let more: Vec<String> = flags.into_iter().chain(args.more.iter().cloned()).collect();
    play(root, &tools, &more)
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
