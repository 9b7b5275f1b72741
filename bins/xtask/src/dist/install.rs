//! Tests the package of the node's program by installing it as a user would: with apt in a fresh Debian,
//! where Debian's own initramfs-tools creates the initramfs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::node_package;
use crate::tools::{self, Tools};
use crate::{process, term};

/// What the initramfs must contain.
const IN_INITRAMFS: [&str; 3] = [
    "usr/bin/node-agent",
    "usr/bin/clevis-decrypt-trustee",
    "scripts/init-premount/clevis-trustee",
];
/// Script that runs in the fresh system. Triggers of the package create the initramfs.
const SCRIPT: &str = "set -eu\n\
    apt-get install --yes --no-install-recommends --quiet /tmp/*.deb > /dev/null\n\
    node-agent --version\n\
    test -L /usr/lib/systemd/system/timers.target.wants/tec-refresh-ca.timer\n\
    test -f /usr/lib/systemd/system/tec-attest.timer\n\
    lsinitramfs /boot/initrd.img-* > /tmp/initramfs\n\
    apt-get purge --yes --quiet tec-node-agent > /dev/null\n\
    lsinitramfs /boot/initrd.img-* > /tmp/without\n";

/// Builds the Debian package, installs it into a fresh system, inspects the initramfs, and removes it.
pub(crate) fn check(root: &Path, tools: &Tools) -> Result<()> {
    term::step("a package, installed");
    let base = tools::ensure_system(tools)?;
    let deb = node_package(root, tools)?;
    let system = deb.with_file_name("stage").join("system");
    fs::create_dir_all(&system)?;
    process::capture(process::command("tar").arg("-xf").arg(base).arg("-C").arg(&system))?;
    let inside = system.join("tmp").join(deb.file_name().context("a package has a name")?);
    fs::copy(&deb, &inside).with_context(|| format!("cannot copy {}", deb.display()))?;
    // Mounts end with the namespace.
    let mut unshare = process::command("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--root"]);
    unshare.arg(&system).args(["/bin/sh", "-c", SCRIPT]);
    unshare.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive");
    let said = process::capture(&mut unshare)?;
    term::out(said.trim_end());
    let with = fs::read_to_string(system.join("tmp/initramfs"))?;
    for file in IN_INITRAMFS {
        ensure!(with.contains(file), "the initramfs lacks {file}:\n{with}");
    }
    let without = fs::read_to_string(system.join("tmp/without"))?;
    ensure!(!without.contains("node-agent"), "node-agent outlives its package:\n{without}");
    fs::remove_dir_all(&system)?;
    term::success("apt installs the pin into the initramfs, and takes it out again");
    Ok(())
}
