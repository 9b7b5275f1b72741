//! Files of folders.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Paths of all files below a directory, sorted, with slashes. `takes` is asked about the name of each file and
/// folder; links are left out.
pub(crate) fn files_below(root: &Path, takes: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(below) = folders.pop() {
        let folder = root.join(&below);
        let unreadable = || format!("cannot list {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().with_context(unreadable)?;
            if takes(&name) && kind.is_dir() {
                folders.push(format!("{below}{name}/"));
            } else if takes(&name) && kind.is_file() {
                files.push(format!("{below}{name}"));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Whether this is a file of Rust code.
pub(crate) fn is_rust(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|end| end == "rs")
}
