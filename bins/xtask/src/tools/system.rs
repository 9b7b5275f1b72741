//! A fresh Debian, like a user's machine before a package is installed.

use std::path::PathBuf;

use anyhow::Result;

use super::apt::Apt;
use super::{Tools, archive, provide};
use crate::{process, term};

/// A system in an archive.
pub(super) struct System {
    /// Name of the archive in the cache.
    name: &'static str,
    suite: &'static str,
    packages: &'static str,
    /// A command that the host runs once they are installed, or nothing; `$1` is the system's directory.
    hook: &'static str,
}

/// Dependencies of the node program's package, and a kernel to create an initramfs for.
pub(super) const FRESH: System = System {
    name: "system",
    suite: "bookworm",
    packages: "clevis-initramfs,cryptsetup-initramfs,initramfs-tools,jose,linux-image-cloud-amd64,systemd-sysv,zstd",
    hook: "",
};
/// What Debian's installer puts on an encrypted disk, and Clevis.
const INSTALLED: &str = "busybox,ca-certificates,clevis-initramfs,cryptsetup-initramfs,dbus,dosfstools,e2fsprogs,grub-efi-amd64-bin,\
    grub-efi-amd64-signed,grub2-common,initramfs-tools,iproute2,jose,kmod,linux-image-amd64,mount,shim-signed,\
    systemd-sysv,udev,zstd";
/// Installs the kernel before the newest one, as a system has it that was upgraded.
const KERNEL_BEFORE: &str = r#"chroot "$1" sh -euc '
    names=$(apt-cache search --names-only "^linux-image-[0-9][-+.0-9deb]*-amd64$" | cut -d " " -f 1 | sort -V)
    before=$(echo "$names" | grep -x -B 1 "linux-image-$(ls /lib/modules)" | head -n 1)
    apt-get install --yes --no-install-recommends "$before"'"#;
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
pub(super) const DISTRIBUTIONS: [(&str, System); 6] = [
    ("debian", installed("bookworm")),
    ("debian-uki", dracut("bookworm-dracut", "bookworm", with_dracut!(""))),
    ("debian-13", installed("trixie")),
    // It has one kernel at a time.
    ("debian-sid", System { name: "sid", suite: "sid", packages: INSTALLED, hook: "" }),
    // Newer suites have parts of systemd in packages of their own.
    (
        "debian-13-uki",
        dracut("trixie-dracut", "trixie", with_dracut!(",systemd-boot-tools,systemd-cryptsetup")),
    ),
    (
        "debian-sid-uki",
        dracut(
            "sid-dracut",
            "sid",
            with_dracut!(",systemd-boot-tools,systemd-cryptsetup,systemd-tpm"),
        ),
    ),
];

const fn installed(suite: &'static str) -> System {
    System { name: suite, suite, packages: INSTALLED, hook: KERNEL_BEFORE }
}

const fn dracut(name: &'static str, suite: &'static str, packages: &'static str) -> System {
    System { name, suite, packages, hook: "" }
}

pub(super) fn ensure(tools: &Tools, apt: &mut Apt, system: &System) -> Result<PathBuf> {
    let System { name, suite, packages, hook } = system;
    let place = tools.cache.join(format!("{name}.tar"));
    provide(tools, (name, &format!("{packages}{hook}")), &place, |dir| {
        let sources = dir.join("sources.list");
        archive::write(&sources, &archive::sources_of(apt, suite)?)?;
        term::note(&format!("mmdebstrap {suite} (about three minutes)"));
        let made = dir.join("made.tar");
        let mut strap = process::command("mmdebstrap");
        strap.args(["--variant=apt", "--mode=root"]).arg(format!("--include={packages}"));
        if !hook.is_empty() {
            strap.arg(format!("--customize-hook={hook}"));
        }
        // An unstable suite is valid for a week, and mirrors may be older.
        strap.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
        strap.arg(suite).arg(&made).arg(sources);
        process::capture(&mut strap)?;
        Ok(made)
    })?;
    Ok(place)
}
