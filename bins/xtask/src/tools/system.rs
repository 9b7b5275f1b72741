//! A fresh Debian, like a user's machine before a package is installed.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::apt::Apt;
use super::{Tools, archive, is_stamped, remove_dir, scratch, stamp};
use crate::{process, term};

/// A system in an archive.
pub(super) struct System {
    /// Name of the archive in the cache.
    name: &'static str,
    suite: &'static str,
    packages: &'static str,
}

/// Dependencies of the node program's package, and a kernel to create an initramfs for.
pub(super) const FRESH: System = System {
    name: "system",
    suite: "bookworm",
    packages: "clevis-initramfs,cryptsetup-initramfs,initramfs-tools,jose,linux-image-cloud-amd64,systemd-sysv,zstd",
};
/// What Debian's installer puts on an encrypted disk, and Clevis.
const INSTALLED: &str = "busybox,clevis-initramfs,cryptsetup-initramfs,dbus,dosfstools,e2fsprogs,grub-efi-amd64-bin,\
    grub-efi-amd64-signed,grub2-common,initramfs-tools,iproute2,jose,kmod,linux-image-amd64,shim-signed,\
    systemd-sysv,udev,zstd";
/// The same with dracut, and with the stub of unified kernel images. Clevis' module needs files of the packages netbase
/// and procps, which no dependency brings.
macro_rules! with_dracut {
    ($more:literal) => {
        concat!(
            "binutils,clevis-dracut,cryptsetup-bin,dbus,dosfstools,dracut,e2fsprogs,iproute2,jose,kmod,",
            "linux-image-amd64,netbase,procps,systemd-boot-efi,systemd-sysv,tpm2-tools,udev,zstd",
            $more
        )
    };
}

/// Scenes of virtual machines with a distribution, and the system of each.
pub(super) const DISTRIBUTIONS: [(&str, System); 5] = [
    ("debian", System { name: "bookworm", suite: "bookworm", packages: INSTALLED }),
    (
        "debian-uki",
        System { name: "bookworm-dracut", suite: "bookworm", packages: with_dracut!("") },
    ),
    ("debian-13", System { name: "trixie", suite: "trixie", packages: INSTALLED }),
    // Newer suites have parts of systemd in packages of their own.
    (
        "debian-13-uki",
        System {
            name: "trixie-dracut",
            suite: "trixie",
            packages: with_dracut!(",systemd-boot-tools,systemd-cryptsetup"),
        },
    ),
    (
        "debian-sid-uki",
        System {
            name: "sid-dracut",
            suite: "sid",
            packages: with_dracut!(",systemd-boot-tools,systemd-cryptsetup,systemd-tpm"),
        },
    ),
];

pub(super) fn ensure(tools: &Tools, apt: &mut Apt, system: &System) -> Result<PathBuf> {
    let System { name, suite, packages } = system;
    let file = format!("{name}.tar");
    let place = tools.cache.join(&file);
    if is_stamped(tools, name, packages) && place.is_file() {
        return Ok(place);
    }
    let dir = scratch(tools, name)?;
    let sources = dir.join("sources.list");
    archive::write(&sources, &archive::sources_of(apt, suite)?)?;
    term::note(&format!("mmdebstrap {suite} (about three minutes)"));
    let made = dir.join(&file);
    let mut strap = process::command("mmdebstrap");
    strap.args(["--variant=apt", "--mode=root"]).arg(format!("--include={packages}"));
    // An unstable suite is valid for a week, and mirrors may be older.
    strap.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
    strap.arg(suite).arg(&made).arg(sources);
    process::capture(&mut strap)?;
    fs::rename(&made, &place).with_context(|| format!("cannot move {}", made.display()))?;
    stamp(tools, name, packages)?;
    remove_dir(&dir)?;
    Ok(place)
}
