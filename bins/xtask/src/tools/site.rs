//! Programs for the documentation: mdBook builds the site, lychee follows its links, Vale reads the
//! words.

use std::fs;

use anyhow::{Context as _, Result};

use super::{Tools, go, is_stamped, pypi, remove_dir, scratch, stamp};
use crate::{process, term};

const MDBOOK: &str = "mdbook@0.5.4";

/// Sets up what builds the site and checks it.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    ensure_mdbook(tools)?;
    pypi::ensure(tools, &pypi::LYCHEE)?;
    ensure_vale(tools)
}

/// Sets up what `cargo xtask check` reads the pages with.
pub(super) fn ensure_vale(tools: &Tools) -> Result<()> {
    go::ensure_vale(tools)
}

fn ensure_mdbook(tools: &Tools) -> Result<()> {
    let place = tools.cache.join("bin/mdbook");
    if is_stamped(tools, "mdbook", MDBOOK) && place.is_file() {
        return Ok(());
    }
    term::note(&format!("cargo install {MDBOOK} (about five minutes)"));
    let dir = scratch(tools, "mdbook")?;
    let mut install = process::command("cargo");
    install.args(["install", MDBOOK, "--locked", "--no-default-features", "--features", "search"]);
    install.arg("--root").arg(&dir).current_dir(&dir);
    // Built once and run for a second: quick to compile rather than quick to run.
    install.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_LTO", "false");
    install.env_remove("CARGO_TARGET_DIR");
    process::capture(&mut install).context("cannot build mdbook")?;
    let built = dir.join("bin/mdbook");
    fs::rename(&built, &place)
        .with_context(|| format!("cannot move {} to {}", built.display(), place.display()))?;
    stamp(tools, "mdbook", MDBOOK)?;
    remove_dir(&dir)
}
