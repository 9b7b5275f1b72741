//! Files to compare on.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// PE files: Debian's boot files and those of recorded boots, each once.
pub(crate) fn boot_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in [images(), fixtures("qemu")] {
        collect(&folder, &mut files);
    }
    let mut seen = BTreeSet::new();
    files.retain(|file| is_pe(file) && seen.insert(fs::metadata(file).unwrap().ino()));
    println!("{} boot files", files.len());
    files
}

/// Event logs of recorded boots and of other machines.
pub(crate) fn logs() -> Vec<PathBuf> {
    let mut logs = Vec::new();
    collect(&fixtures("eventlogs"), &mut logs);
    collect(&fixtures("qemu"), &mut logs);
    logs.retain(|log| {
        let folder = log.parent().unwrap();
        log.ends_with("eventlog.bin") || folder.ends_with("eventlogs") && log.extension().is_none()
    });
    println!("{} recorded logs", logs.len());
    logs
}

/// A folder beside the repository, whether it is there or not.
fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures").join(name)
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
    let Ok(entries) = fs::read_dir(folder) else {
        assert!(
            std::env::var_os("TEC_WITHOUT_FIXTURES").is_some(),
            "{} is missing; TEC_WITHOUT_FIXTURES=1 leaves out what needs it",
            folder.display()
        );
        return;
    };
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
