//! The top-level folders and files, and where build scripts are forbidden.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{CORE, Violation};

const FOLDERS: [&str; 8] =
    ["bins", "benches", "docs", "examples", CORE, "tec-k8s", "tec-tpm", "tec-trustee"];
const FILES: [&str; 11] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "deny.toml",
    "rust-toolchain.toml",
    "rustfmt.toml",
];
/// Cargo's default target directory; never committed.
const TARGET: &str = "target";

pub(super) fn check(root: &Path, libraries: &[&str]) -> Result<Vec<Violation>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", root.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_known = FOLDERS.contains(&name.as_str()) || FILES.contains(&name.as_str());
        if !is_known && !name.starts_with('.') && name != TARGET {
            found.push(Violation::new(
                "top-level",
                name,
                0,
                "is not one of the top-level folders and files",
                "move it into a crate, bins/, examples/, benches/ or docs/",
            ));
        }
    }
    for folder in FOLDERS {
        if !root.join(folder).is_dir() {
            found.push(Violation::new(
                "top-level",
                folder,
                0,
                "this top-level folder is missing",
                "restore it; the eight folders are fixed",
            ));
        }
    }
    for library in libraries {
        if root.join(library).join("build.rs").exists() {
            found.push(Violation::new(
                "no-build-script",
                format!("{library}/build.rs"),
                0,
                "a library has a build script",
                "commit what it generates and let `cargo xtask codegen` write it",
            ));
        }
    }
    found.extend(lost(root)?);
    Ok(found)
}

/// The page that describes the layout of the repository.
const MAP: &str = "docs/architecture.md";

/// Paths that the page mentions but that do not exist.
fn lost(root: &Path) -> Result<Vec<Violation>> {
    let page = root.join(MAP);
    if !page.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&page).with_context(|| format!("cannot read {MAP}"))?;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // Every second piece is between backticks.
        for path in line.split('`').skip(1).step_by(2).filter(|path| is_path(path)) {
            if !root.join(path).exists() {
                let what = format!("{path} is not there");
                let todo = "name where it is now: newcomers look there first";
                found.push(Violation::new("map-is-true", MAP, number, what, todo));
            }
        }
    }
    Ok(found)
}

/// Whether it starts with a top-level folder and contains no placeholder.
fn is_path(text: &str) -> bool {
    let (folder, below) = text.split_once('/').unwrap_or((text, ""));
    let stands_for_others = |c: char| "<>*{}… ".contains(c);
    FOLDERS.contains(&folder) && !below.is_empty() && !below.contains(stands_for_others)
}
