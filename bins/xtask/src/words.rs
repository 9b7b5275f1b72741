//! Checks the wording of the pages: Vale compares them with the project's style in docs/.vale.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{process, term, tools};

/// Pages outside docs/ that people read.
const PAGES: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs"];

/// Part of `cargo xtask check`: fails on words that the style lists as errors.
pub(crate) fn check(root: &Path) -> Result<()> {
    let tools = tools::locate()?;
    tools::ensure_vale(&tools)?;
    term::step("check: words");
    let mut vale = process::command(tools.cache.join("bin/vale"));
    vale.current_dir(root).args(["--config", "docs/.vale.ini", "--no-global"]).args(PAGES);
    process::run(&mut vale).context("fix the words, or correct the style in docs/.vale")
}
