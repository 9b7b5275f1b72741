//! Snapshots of the libraries' public interfaces, so that a review shows each change of one.
//!
//! ```text
//!   rustdoc's JSON of a packed library ─► public-api ─► docs/reference/api/<library>.txt
//! ```

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::term;

const SNAPSHOTS: &str = "docs/reference/api";

/// Whether snapshots are compared or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Snapshots {
    Compare,
    Replace,
}

/// All public items, a line each, sorted. Without implementations that every type has, and derived ones.
fn items(json: &Path) -> Result<String> {
    let interface = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("cannot read {}", json.display()))?;
    Ok(interface.to_string())
}

/// Compares the interface of each library with its snapshot, or replaces that; `documentation` has rustdoc's JSON.
pub(crate) fn check(
    root: &Path,
    libraries: &[&str],
    documentation: &Path,
    snapshots: Snapshots,
) -> Result<()> {
    let mut changed = Vec::new();
    for library in libraries {
        let json = documentation.join(format!("{}.json", library.replace('-', "_")));
        let items = items(&json)?;
        let place = root.join(SNAPSHOTS).join(format!("{library}.txt"));
        let known = fs::read_to_string(&place).unwrap_or_default();
        if items == known {
            continue;
        }
        if snapshots == Snapshots::Replace {
            fs::write(&place, &items)
                .with_context(|| format!("cannot write {}", place.display()))?;
        }
        for line in differences(&known, &items) {
            term::note(&line);
        }
        changed.push(*library);
    }
    if changed.is_empty() || snapshots == Snapshots::Replace {
        return Ok(());
    }
    bail!(
        "the public interface of {} changed: run `cargo xtask outside --write-api`, and name what breaks \
         dependents in CHANGELOG.md",
        changed.join(", ")
    )
}

/// Lines of only one of two sorted texts.
fn differences(before: &str, after: &str) -> Vec<String> {
    let only = |sign: char, these: &str, others: &str| -> Vec<String> {
        let others: std::collections::BTreeSet<&str> = others.lines().collect();
        let only = these.lines().filter(|line| !others.contains(line));
        only.map(|line| format!("{sign} {line}")).collect()
    };
    [only('-', before, after), only('+', after, before)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_and_what_came_is_shown() {
        assert_eq!(
            differences("pub fn a()\npub fn b()\n", "pub fn b()\npub fn c()\n"),
            ["- pub fn a()", "+ pub fn c()"]
        );
    }
}
