//! Files that commands read, each with a size limit.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// Largest event log to read; firmware reserves about 64 KiB, runtime logs grow.
const MAX_LOG: u64 = 16 << 20;

/// Reads a file of at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    // Kernel files report a size of zero, so the size is checked again below.
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(metadata.len() <= limit, "{shown} is larger than {limit} bytes");
    let bytes = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(bytes.len() as u64 <= limit, "{shown} is larger than {limit} bytes");
    Ok(bytes)
}

/// Reads the bytes of an event log.
pub fn log_bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    read(path, MAX_LOG)
}

/// Reads a text of at most `limit` bytes.
pub fn text(path: &Path, limit: u64) -> anyhow::Result<String> {
    String::from_utf8(read(path, limit)?)
        .with_context(|| format!("{} is not UTF-8 text", path.display()))
}

/// `NAME=FILE`, or a file whose stem is the name.
pub fn named_file(given: &str) -> (String, &Path) {
    if let Some((name, path)) = given.split_once('=') {
        return (name.to_owned(), Path::new(path));
    }
    let path = Path::new(given);
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    (stem.to_string_lossy().into_owned(), path)
}
