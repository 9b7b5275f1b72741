//! musl headers for arm64, needed to compile SQLite's C code; those for this machine come with musl-tools.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::apt::Apt;
use super::archive::{Archive, move_into, unpack};
use super::{Tools, is_stamped, remove_dir, scratch, stamp};

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
    if is_stamped(tools, PLACE, SUITE) && headers(tools).is_dir() {
        return Ok(());
    }
    let work = scratch(tools, PLACE)?;
    let archive = Archive::of_suite(apt, &work.join("apt"), SUITE, "arm64")?;
    let unpacked = work.join("unpacked");
    unpack(&archive.download(&work, PACKAGE)?, &unpacked)?;
    remove_dir(&headers(tools))?;
    move_into(&unpacked.join(HEADERS), &headers(tools))
        .with_context(|| format!("{PACKAGE} has no {HEADERS}"))?;
    stamp(tools, PLACE, SUITE)?;
    remove_dir(&work)
}
