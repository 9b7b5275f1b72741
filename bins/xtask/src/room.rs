//! Room on the disk, looked at before the builds that take it: a full disk makes every later step
//! fail, each in its own words.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::cargo::Metadata;

const GIB: u64 = 1 << 30;
/// What a first `cargo xtask test` writes below the target directory, with some air.
const FIRST_RUN: u64 = 15 * GIB;

/// Fails when a first run would not fit on the disk.
///
/// # Errors
/// Too little is free, or the file system does not say.
pub(crate) fn ensure(root: &Path) -> Result<()> {
    let target = Metadata::workspace(root)?.target_dir()?;
    // The last program that a run builds: most of it is there.
    if target.join("debug/tec").exists() {
        return Ok(());
    }
    let place = target.ancestors().find(|dir| dir.exists());
    let place = place.unwrap_or(root);
    let system = rustix::fs::statvfs(place)
        .with_context(|| format!("cannot tell what is free at {}", place.display()))?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free < FIRST_RUN {
        bail!(
            "{} GiB are free at {}, and a first run takes up to {} GiB: free some, or point \
             CARGO_TARGET_DIR elsewhere",
            free / GIB,
            place.display(),
            FIRST_RUN / GIB
        );
    }
    Ok(())
}
