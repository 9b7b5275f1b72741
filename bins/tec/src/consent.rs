//! Asks for confirmation of irreversible changes.

use std::io::{IsTerminal as _, Write as _};

use anyhow::Context as _;

use crate::args::Consent;

/// Whether to continue: not with `--dry-run`; otherwise with `--yes`, or if the user at the terminal agrees.
pub(crate) fn consented(effects: &[String], consent: Consent) -> anyhow::Result<bool> {
    if consent.dry_run.dry_run {
        writeln!(std::io::stderr(), "{}", effects.join("\n"))?;
        return Ok(false);
    }
    if consent.yes {
        return Ok(true);
    }
    let stdin = std::io::stdin();
    anyhow::ensure!(
        stdin.is_terminal(),
        "cannot ask for confirmation: standard input is not a terminal (pass --yes to continue)\n{}",
        effects.join("\n")
    );
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{}\nContinue? [y/N] ", effects.join("\n"))?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.read_line(&mut answer).context("cannot read the answer")?;
    anyhow::ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was changed");
    Ok(true)
}
