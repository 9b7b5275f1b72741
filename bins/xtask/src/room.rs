//! Checks free disk space before the builds that need it: a full disk makes every later step fail with a
//! different message.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::cargo::Metadata;
use crate::walk::files_below;

const GIB: u64 = 1 << 30;
/// Space that a first `cargo xtask test` needs below the target directory, with some margin.
const FIRST_RUN: u64 = 17 * GIB;
/// What cargo keeps to build again, unless `CARGO_INCREMENTAL` is 0.
const INCREMENTAL: u64 = 9 * GIB;

/// Fails if a first run would not fit on the disk.
/// Errors: there is too little free space, or the file system does not report it.
pub(crate) fn ensure(root: &Path) -> Result<()> {
    let target = Metadata::workspace(root)?.target_dir()?;
    // The last program that a run builds, so most of the space is already used.
    if target.join("debug/tec").exists() {
        return Ok(());
    }
    let place = target.ancestors().find(|dir| dir.exists());
    let place = place.unwrap_or(root);
    let system = rustix::fs::statvfs(place)
        .with_context(|| format!("cannot tell what is free at {}", place.display()))?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let kept = std::env::var_os("CARGO_INCREMENTAL").is_none_or(|value| value != "0");
    let all = if kept { FIRST_RUN + INCREMENTAL } else { FIRST_RUN };
    // CI keeps compiled dependencies there from one run to the next.
    let held = files_below(&target, |_| true).unwrap_or_default();
    let size = |file: &String| target.join(file).metadata().map_or(0, |file| file.len());
    let needed = all.saturating_sub(held.iter().map(size).sum());
    if free < needed {
        bail!(
            "{} GiB are free at {}, and this run takes up to {} GiB more: free some, or point \
             CARGO_TARGET_DIR elsewhere",
            free / GIB,
            place.display(),
            needed / GIB
        );
    }
    Ok(())
}
