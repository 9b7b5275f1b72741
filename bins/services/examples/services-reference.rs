//! Writes the commands and flags of the three programs, one page each, into the directory given.
//! `cargo xtask codegen` runs it.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use services::{bootstrap, broker, init};
use tec_support::reference::Page;

const INTRO: &str = "What it is for is in [services-bootstrap.md](../services-bootstrap.md).";

fn main() -> Result<()> {
    let dir: PathBuf =
        std::env::args_os().nth(1).context("usage: services-reference <directory>")?.into();
    for (source, command) in [
        ("bootstrap", bootstrap::cli::Args::command()),
        ("init", init::cli::Args::command()),
        ("broker", broker::cli::Args::command()),
    ] {
        let path = dir.join(format!("{}.md", command.get_name()));
        let source = format!("bins/services/src/{source}");
        let text = Page { source: &source, intro: INTRO }.markdown(command);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
