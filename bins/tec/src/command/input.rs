//! What commands read: files of computed values, logs, keys, and the store.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::port::Clock as _;
use tec_core::port::ImageRegistry;
use tec_support::SystemClock;
use tec_tpm::output;

use super::coded;
use super::pcr::Images;
use crate::state::open_existing;

/// Largest event log that is read; firmware reserves some 64 KiB, runtime logs grow.
const MAX_LOG: u64 = 16 << 20;

/// Reads a file that must not be larger than `limit` bytes.
pub(super) fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    // Files of the kernel say that they are empty, so the size is checked again below.
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(
        metadata.len() <= limit,
        "{shown} is larger than {limit} bytes"
    );
    let bytes = fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    anyhow::ensure!(
        bytes.len() as u64 <= limit,
        "{shown} is larger than {limit} bytes"
    );
    Ok(bytes)
}

/// Bytes of an event log.
pub(super) fn log_bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    read(path, MAX_LOG)
}

/// Reads a text that must not be larger than `limit` bytes.
pub(super) fn text(path: &Path, limit: u64) -> anyhow::Result<String> {
    String::from_utf8(read(path, limit)?).with_context(|| format!("{} is no text", path.display()))
}

/// Computed values of an image.
pub(super) fn label(path: &Path) -> anyhow::Result<ExpectedPcrs> {
    let text = text(path, output::MAX_INPUT as u64)?;
    output::read_label(&text).with_context(|| format!("{}", path.display()))
}

/// The images of the command line, each with a name.
pub(super) async fn images(
    state_dir: &Path,
    images: &Images,
) -> anyhow::Result<Vec<(String, ExpectedPcrs)>> {
    let mut found = Vec::new();
    for given in &images.files {
        let (name, path) = named_file(given);
        found.push((name, label(path)?));
    }
    if images.approved {
        let store = open_existing(state_dir)?;
        let now = SystemClock.now();
        let approved = ImageRegistry::list(&*store)
            .await
            .map_err(coded(Code::StoreUnavailable, "list the images"))?;
        let live = approved.into_iter().filter(|image| image.is_live(now));
        found.extend(live.map(|image| (image.name.to_string(), image.expected)));
    }
    Ok(found)
}

/// `NAME=FILE`, or a file that is named by its stem.
pub(super) fn named_file(given: &str) -> (String, &Path) {
    if let Some((name, path)) = given.split_once('=') {
        return (name.to_owned(), Path::new(path));
    }
    let path = Path::new(given);
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    (stem.to_string_lossy().into_owned(), path)
}

/// The same, borrowed.
pub(super) fn named(images: &[(String, ExpectedPcrs)]) -> Vec<(&str, &ExpectedPcrs)> {
    images
        .iter()
        .map(|(name, expected)| (name.as_str(), expected))
        .collect()
}
