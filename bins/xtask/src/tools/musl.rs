//! musl headers for arm64, needed to compile SQLite's C code; those for this machine come with musl-tools.

use std::path::PathBuf;

use anyhow::Result;

use super::apt::Apt;
use super::archive::{Archive, unpack};
use super::{Tools, provide};

/// The Debian suite that the headers come from.
const SUITE: &str = "trixie";
const PACKAGE: &str = "musl-dev";
const PLACE: &str = "musl-arm64";
/// Location in the package.
const HEADERS: &str = "usr/include/aarch64-linux-musl";

/// Path of the headers, whether set up or not.
pub(crate) fn headers(tools: &Tools) -> PathBuf {
    tools.cache.join(PLACE)
}

/// Downloads and unpacks them unless they exist.
pub(super) fn ensure(tools: &Tools, apt: &mut Apt) -> Result<()> {
    provide(tools, (PLACE, SUITE), &headers(tools), |dir| {
        let archive = Archive::of_suite(apt, &dir.join("apt"), SUITE, "arm64")?;
        let unpacked = dir.join("unpacked");
        unpack(&archive.download(dir, PACKAGE)?, &unpacked)?;
        Ok(unpacked.join(HEADERS))
    })
}
