//! `cargo xtask cluster`: a Kubernetes node with real pods on this machine, run by the program `cluster` of
//! tec-e2e.

use std::path::Path;

use anyhow::Result;
use clap::Subcommand;

use crate::{process, programs, tools};

/// Folder of the node in the tools cache; the tests use the same folder.
const FOLDER: &str = "pods";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Verb {
    /// Start a new node, and stop any that is running
    Up,
    /// Stop the node, and remove what it left
    Down,
    /// Open a shell in the network of the node, with kubectl
    Shell,
}

/// Sets up tools, builds, and runs the command.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_pods(&tools)?;
    let programs = programs::build(root, &["cluster"])?;
    let mut cluster = process::command(programs.join("cluster"));
    cluster.arg("--dir").arg(tools.cache.join(FOLDER));
    cluster.arg("--kubernetes").arg(tools.cache.join("bin"));
    cluster.arg(match args.verb {
        Verb::Up => "up",
        Verb::Down => "down",
        Verb::Shell => "shell",
    });
    tools.environment(&mut cluster)?;
    process::run(cluster.stdin(std::process::Stdio::inherit()))
}
