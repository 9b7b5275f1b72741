//! Programs for the documentation: mdBook builds the site, lychee follows its links, Vale reads the
//! words.

use anyhow::Result;

use super::crates::Crate;
use super::{Tools, crates, go, pypi};

const MDBOOK: Crate = Crate {
    program: "mdbook",
    version: "mdbook@0.5.4",
    flags: &["--no-default-features", "--features", "search"],
    takes: "five minutes",
};

/// Sets up what builds the site and checks it.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    crates::ensure(tools, &MDBOOK)?;
    pypi::ensure(tools, &pypi::LYCHEE)?;
    ensure_vale(tools)
}

/// Sets up what `cargo xtask check` reads the pages with.
pub(super) fn ensure_vale(tools: &Tools) -> Result<()> {
    go::ensure_vale(tools)
}
