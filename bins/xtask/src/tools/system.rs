//! A fresh Debian, like a user's machine before a package is installed.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::apt::Apt;
use super::{Tools, archive, is_stamped, remove_dir, scratch, stamp};
use crate::{process, term};

const SUITE: &str = "bookworm";
const NAME: &str = "system";
/// Dependencies of the node program's package, and a kernel to create an initramfs for.
const PACKAGES: &str = "clevis-initramfs,cryptsetup-initramfs,initramfs-tools,jose,linux-image-cloud-amd64,systemd-sysv,zstd";

pub(super) fn ensure(tools: &Tools, apt: &mut Apt) -> Result<PathBuf> {
    let place = tools.cache.join("system.tar");
    if is_stamped(tools, NAME, PACKAGES) && place.is_file() {
        return Ok(place);
    }
    let dir = scratch(tools, NAME)?;
    let sources = dir.join("sources.list");
    archive::write(&sources, &archive::sources_of(apt, SUITE)?)?;
    term::note(&format!("mmdebstrap {SUITE} (about three minutes)"));
    let made = dir.join("system.tar");
    let mut strap = process::command("mmdebstrap");
    strap.args(["--variant=apt", "--mode=root"]).arg(format!("--include={PACKAGES}"));
    strap.arg(SUITE).arg(&made).arg(sources);
    process::capture(&mut strap)?;
    fs::rename(&made, &place).with_context(|| format!("cannot move {}", made.display()))?;
    stamp(tools, NAME, PACKAGES)?;
    remove_dir(&dir)?;
    Ok(place)
}
