//! Programs for the documentation: mdBook builds the site, lychee checks its links, Vale checks the wording.

use anyhow::Result;

use super::crates::Crate;
use super::{Tools, crates, go, pypi};

const MDBOOK: Crate = Crate {
    program: "mdbook",
    version: "mdbook@0.5.4",
    flags: &["--no-default-features", "--features", "search"],
    takes: "two minutes",
};

/// Sets up the tools that build and check the site.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    crates::ensure(tools, &MDBOOK)?;
    pypi::ensure(tools, &pypi::LYCHEE)?;
    ensure_vale(tools)
}

/// Sets up the tool with which `cargo xtask check` checks the pages.
pub(super) fn ensure_vale(tools: &Tools) -> Result<()> {
    go::ensure_vale(tools)
}
