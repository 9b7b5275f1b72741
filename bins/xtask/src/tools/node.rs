//! Kernels of virtual nodes: two of Debian's, each with the modules that a node loads.
//!
//! ```text
//!   <cache>/node/current/   vmlinuz, modules/<version>/   the older kernel
//!   <cache>/node/update/    the newest one
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use super::archive::{Archive, entries, file_name, move_into, unpack};
use super::{Tools, is_stamped, remove_dir, scratch, stamp};
use crate::process;

/// Suite of the nodes' firmware and kernels.
const SUITE: &str = "trixie";
/// Suites of their boot loaders, after and before an update.
pub(super) const SUITES: [&str; 2] = [SUITE, "bookworm"];
const NAME: &str = "node-kernels";
/// Incremented when other modules are needed, so that old directories are rebuilt.
const LAYOUT: &str = "2";
/// Metapackages; each version depends on one kernel. The second is for times when the suite contains only one
/// version of the first.
const KERNELS: [&str; 2] = ["linux-image-amd64", "linux-image-cloud-amd64"];
/// Disk, network, Ignition config from QEMU, disk encryption with integrity, and the root file system.
const MODULES: [&str; 10] = [
    "virtio_blk",
    "virtio_net",
    "qemu_fw_cfg",
    "dm_crypt",
    "dm_integrity",
    "authenc",
    "algif_skcipher",
    "xts",
    "aesni_intel",
    "ext4",
];

/// Downloads the kernels unless they exist.
pub(super) fn ensure(tools: &Tools, apt: &mut Apt) -> Result<()> {
    let place = tools.cache.join("node");
    let complete =
        ["current", "update"].iter().all(|name| place.join(name).join("vmlinuz").is_file());
    if is_stamped(tools, NAME, LAYOUT) && complete {
        return Ok(());
    }
    let work = scratch(tools, NAME)?;
    let archive = Archive::of_suite(apt, &work.join("apt"), SUITE, "amd64")?;
    let mut found = Vec::new();
    for metapackage in KERNELS {
        found.extend(archive.kernels(metapackage)?);
    }
    let [update, current, ..] = found.as_slice() else {
        bail!("{SUITE} holds fewer than two kernels");
    };
    for (name, kernel) in [("current", current), ("update", update)] {
        let deb = archive.download(&work, kernel)?;
        let unpacked = work.join("unpacked");
        unpack(&deb, &unpacked)?;
        let kept = work.join("kept").join(name);
        keep(&unpacked, &kept).with_context(|| format!("cannot take {kernel} apart"))?;
    }
    remove_dir(&place)?;
    move_into(&work.join("kept"), &place)?;
    stamp(tools, NAME, LAYOUT)?;
    remove_dir(&work)
}

/// Moves the kernel and its modules into `kept`.
fn keep(unpacked: &Path, kept: &Path) -> Result<()> {
    let tree = unpacked.join("usr/lib/modules");
    let versions = entries(&tree)?;
    let version = versions.first().map(|path| file_name(path));
    let version = version.context("the package holds no modules")?;
    // kmod expects modules below /lib.
    let lib = unpacked.join("lib");
    if !lib.exists() {
        std::os::unix::fs::symlink("usr/lib", &lib)
            .with_context(|| format!("cannot link {}", lib.display()))?;
    }
    index(unpacked, &version)?;
    let root = kept.join("root");
    for module in needed(unpacked, &version)? {
        decompress(&module, unpacked, &root)?;
    }
    for list in ["modules.builtin", "modules.order", "modules.builtin.modinfo"] {
        let below = Path::new("lib/modules").join(&version).join(list);
        fs::copy(unpacked.join(&below), root.join(&below))
            .with_context(|| format!("cannot copy {list}"))?;
    }
    index(&root, &version)?;
    move_into(&root.join("lib/modules"), &kept.join("modules"))?;
    remove_dir(&root)?;
    let kernel = format!("boot/vmlinuz-{version}");
    move_into(&unpacked.join(kernel), &kept.join("vmlinuz"))
}

fn index(root: &Path, version: &str) -> Result<()> {
    let mut depmod = process::command("depmod");
    process::capture(depmod.arg("-b").arg(root).arg(version)).map(drop)
}

/// The modules and what they depend on, in the order of loading.
fn needed(root: &Path, version: &str) -> Result<Vec<PathBuf>> {
    let mut modprobe = process::command("modprobe");
    modprobe.arg("-d").arg(root).args(["-S", version, "-D", "-a"]);
    let text = process::capture(modprobe.args(MODULES))?;
    let mut found: Vec<PathBuf> = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("insmod ") else {
            continue;
        };
        let path = PathBuf::from(rest.split(' ').next().unwrap_or_default());
        if !found.contains(&path) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Decompresses a module, because the initial file system is compressed as a whole.
fn decompress(module: &Path, from: &Path, to: &Path) -> Result<()> {
    let below = module.strip_prefix(from)?;
    let below = below.strip_prefix("usr").unwrap_or(below);
    let plain = to.join(below.with_extension(""));
    if let Some(parent) = plain.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    let mut xz = process::command("xz");
    let output = process::output(xz.arg("-dc").arg(module))?;
    if !output.status.success() {
        bail!("xz does not take {}", module.display());
    }
    fs::write(&plain, output.stdout).with_context(|| format!("cannot write {}", plain.display()))
}
