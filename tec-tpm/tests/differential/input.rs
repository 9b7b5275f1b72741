//! Files to compare on.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// PE files: Debian's boot files and those of recorded boots, each once.
pub(crate) fn boot_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(&images(), &mut files);
    files.extend(given("qemu"));
    let mut seen = BTreeSet::new();
    files.retain(|file| is_pe(file) && seen.insert(fs::metadata(file).unwrap().ino()));
    println!("{} boot files", files.len());
    assert!(!files.is_empty());
    files
}

/// Event logs of recorded boots, and of other machines if there are any.
pub(crate) fn logs() -> Vec<PathBuf> {
    let mut logs = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boots"), &mut logs);
    logs.extend(["qemu", "boots"].into_iter().flat_map(given));
    logs.retain(|log| log.ends_with("eventlog.bin"));
    logs.extend(given("eventlogs").into_iter().filter(|log| log.extension().is_none()));
    println!("{} recorded logs", logs.len());
    logs
}

/// The files of a folder below `TEC_FIXTURES`, which adds cases to the tests.
fn given(name: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let folder = std::env::var_os("TEC_FIXTURES").map(|folder| Path::new(&folder).join(name));
    if let Some(folder) = folder.filter(|folder| folder.is_dir()) {
        collect(&folder, &mut files);
    }
    files
}

fn images() -> PathBuf {
    if let Some(images) = std::env::var_os("TEC_IMAGES").map(PathBuf::from) {
        assert!(images.is_dir(), "TEC_IMAGES is no directory");
        return images;
    }
    let home = std::env::var_os("HOME").unwrap_or_default();
    PathBuf::from(home).join(".cache/tec/images/debian")
}

/// All files below a folder, sorted.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn is_pe(file: &Path) -> bool {
    let name = file.file_name().unwrap().to_string_lossy().to_ascii_lowercase();
    let named = [".efi", ".signed"].iter().any(|end| name.ends_with(end));
    named || name.starts_with("vmlinuz")
}
