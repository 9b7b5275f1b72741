//! `cargo xtask arch`: the invariants of docs/architecture.md that a program can check.
//!
//! Each rule has a name, and each violation says where it is and what to do. For invariants that only a test
//! or a lint can check, the document names that test or lint.

mod circles;
mod graph;
mod hosts;
mod layout;
mod lines;
mod manifest;
mod names;
mod source;
mod text;
mod threat;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::term;

/// The pure domain, and the adapters around it.
const CORE: &str = "tec-core";
const ADAPTERS: [&str; 3] = ["tec-k8s", "tec-tpm", "tec-trustee"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Root of the workspace to check (default: this one)
    #[arg(long)]
    pub(crate) root: Option<PathBuf>,
    /// Also print the number of lines of Rust, by package and kind
    #[arg(long)]
    pub(crate) lines: bool,
}

/// One broken rule in one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    /// Relative to the root.
    file: String,
    /// Starting from 1; 0 for the whole file.
    line: usize,
    rule: &'static str,
    what: String,
    todo: &'static str,
}

impl Violation {
    fn new(
        rule: &'static str,
        file: impl Into<String>,
        line: usize,
        what: impl Into<String>,
        todo: &'static str,
    ) -> Self {
        Self { file: file.into(), line, rule, what: what.into(), todo }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.rule, self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}\n      do: {}", self.what, self.todo)
    }
}

/// Checks the workspace at `root` and prints what is broken.
pub(crate) fn run(root: &Path) -> Result<()> {
    term::step("check: architecture");
    let found = violations(root)?;
    for violation in &found {
        term::note(&violation.to_string());
    }
    if !found.is_empty() {
        bail!("{} violations of the architecture", found.len());
    }
    term::success("the architecture is as docs/architecture.md says");
    Ok(())
}

/// Prints how much Rust there is.
pub(crate) fn print_lines(root: &Path) -> Result<()> {
    lines::print(root)
}

fn violations(root: &Path) -> Result<Vec<Violation>> {
    let manifests = manifest::read_all(root)?;
    let mut sources = source::read_all(root)?;
    sources.retain(|source| !source.is_generated());
    let libraries = manifests.libraries();
    let mut found = layout::check(root, &libraries)?;
    found.extend(manifest::check(&manifests));
    found.extend(text::check(&sources, &libraries));
    found.extend(circles::check(&sources));
    found.extend(threat::check(root, &sources)?);
    found.extend(hosts::check(root)?);
    match graph::check(root) {
        Ok(more) => found.extend(more),
        // A manifest that breaks a rule above may be one that cargo cannot resolve.
        Err(error) => found.push(Violation::new(
            "cargo",
            "Cargo.toml",
            0,
            format!("cargo cannot read the workspace: {error:#}"),
            "mend the manifests",
        )),
    }
    found.sort();
    found.dedup();
    Ok(found)
}
