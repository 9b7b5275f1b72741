//! `cargo xtask services-demo`: a platform's services from an empty directory, played by the binary
//! `services-demo` of tec-e2e.

use std::path::Path;

use anyhow::Result;

use crate::tools::{OpenSearch, Tools};
use crate::{process, programs, term, tools};

/// The programs that it starts.
const PROGRAMS: [&str; 4] =
    ["services-bootstrap", "services-broker", "services-demo", "services-init"];

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
    let bin_dir = programs::build(root, &PROGRAMS)?;
    term::step("bootstrap of services");
    let mut demo = process::command(bin_dir.join("services-demo"));
    demo.args(more);
    tools.environment(&mut demo)?;
    process::run(demo.env("TEC_BIN_DIR", &bin_dir))
}
