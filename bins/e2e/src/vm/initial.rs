//! The initial file system of a node.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::programs;
use super::settings::Settings;
use crate::qemu::{Initramfs, must};

/// Programs of the host: exactly what systemd, udev, Ignition and Clevis call.
const PROGRAMS: [&str; 32] = [
    "awk",
    "basename",
    "bash",
    "blkid",
    "cat",
    "clevis",
    "clevis-decrypt",
    "clevis-luks-bind",
    "clevis-luks-common-functions",
    "clevis-luks-unlock",
    "cryptsetup",
    "cut",
    "dmsetup",
    "env",
    "grep",
    "ip",
    "jose",
    "lsblk",
    "mkdir",
    "mke2fs",
    "mktemp",
    "modprobe",
    "mount",
    "pwmake",
    "rm",
    "sed",
    "sort",
    "systemctl",
    "tail",
    "tr",
    "udevadm",
    "wipefs",
];
/// Files that programs open by name, at the same path as on the host.
const FILES: [&str; 7] = [
    "/usr/lib/systemd/systemd",
    "/etc/mke2fs.conf",
    // Needed by a unit of the root.
    "/usr/lib/systemd/system/sysinit.target",
    "/usr/lib/systemd/system/basic.target",
    "/usr/lib/systemd/system/multi-user.target",
    "/usr/lib/systemd/system/network-online.target",
    "/usr/lib/systemd/system/shutdown.target",
];
/// Libraries loaded by name at run time: by threads that end, to unwind them.
const LOADED: [&str; 1] = ["libgcc_s.so.1"];
/// udev rules: names of disks, and when a unit may rely on one.
const RULES: [&str; 7] = [
    "50-udev-default",
    "55-dm",
    "60-block",
    "60-persistent-storage",
    "60-persistent-storage-dm",
    "95-dm-notify",
    "99-systemd",
];
const LINKS: [(&str, &str); 9] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("init", "usr/lib/systemd/systemd"),
    ("etc/os-release", "initrd-release"),
    ("usr/bin/sh", "bash"),
    ("usr/sbin/mkfs.ext4", "mke2fs"),
    ("usr/lib/systemd/systemd-udevd", "../../bin/udevadm"),
];
const DIRECTORIES: [&str; 8] = ["dev", "proc", "root", "run", "sys", "sysroot", "tmp", "var"];
/// Copied unchanged: what is deployed with node-agent, at the documented paths.
const TEXTS: [(&str, &str); 16] = [
    (
        "usr/bin/clevis-decrypt-trustee",
        include_str!("../../../node-agent/deploy/clevis-decrypt-trustee"),
    ),
    (
        "usr/bin/clevis-encrypt-trustee",
        include_str!("../../../node-agent/deploy/clevis-encrypt-trustee"),
    ),
    (
        "usr/libexec/node-agent/ensure-recovery",
        include_str!("../../../node-agent/deploy/systemd/ensure-recovery"),
    ),
    (
        "usr/lib/systemd/system/tec-recovery.service",
        include_str!("../../../node-agent/deploy/systemd/tec-recovery.service"),
    ),
    ("usr/lib/systemd/system/default.target", include_str!("units/default.target")),
    ("usr/lib/systemd/system/node.service", include_str!("units/node.service")),
    ("usr/lib/systemd/system/systemd-udevd.service", include_str!("units/systemd-udevd.service")),
    (
        "usr/lib/systemd/system/systemd-udevd-control.socket",
        include_str!("units/systemd-udevd-control.socket"),
    ),
    (
        "usr/lib/systemd/system/systemd-udevd-kernel.socket",
        include_str!("units/systemd-udevd-kernel.socket"),
    ),
    ("etc/systemd/system.conf", include_str!("units/system.conf")),
    ("usr/lib/udev/rules.d/99-xx-unformatted.rules", include_str!("units/unformatted.rules")),
    ("etc/initrd-release", "ID=tec-node\nVERSION_ID=1\n"),
    ("etc/machine-id", "uninitialized\n"),
    ("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
    ("etc/group", "root:x:0:\ntty:x:5:\ndisk:x:6:\nkmem:x:15:\ntss:x:108:\n"),
    // Dictionary words do not matter for generated passphrases.
    ("etc/security/pwquality.conf", "dictcheck = 0\n"),
];
/// The kernels whose modules are included; both boot with the same file.
const KERNELS: [&str; 2] = ["current", "update"];

/// An initial file system, and how to write it to a file.
#[derive(Clone, Debug)]
pub struct InitialSystem {
    pub(super) files: Initramfs,
}

impl InitialSystem {
    /// Assembles everything.
    pub fn new(settings: &Settings, work: &Path) -> anyhow::Result<Self> {
        let mut files = Initramfs::new();
        for name in PROGRAMS {
            let program = programs::find(name)?;
            files = programs::add(files, &program, &programs::below_usr(&program))?;
        }
        for file in FILES {
            files = programs::add(files, Path::new(file), file.trim_start_matches('/'))?;
        }
        for name in LOADED {
            let library = library(name)?;
            files = programs::add(files, &library, &programs::below_usr(&library))?;
        }
        for name in RULES {
            let place = format!("usr/lib/udev/rules.d/{name}.rules");
            files = programs::add(files, &Path::new("/").join(&place), &place)?;
        }
        files = own(files, settings, work)?;
        for kernel in KERNELS {
            let modules = settings.cache.join("node").join(kernel).join("modules");
            files = tree(files, &modules, "usr/lib/modules")?;
        }
        for (link, target) in LINKS {
            files = files.with_link(link, target);
        }
        for directory in DIRECTORIES {
            files = files.with_directory(directory);
        }
        for (place, text) in TEXTS {
            files = files.with(place, text);
        }
        Ok(Self { files })
    }

    /// Adds a file.
    pub fn with(mut self, path: &str, content: &str) -> Self {
        self.files = self.files.with(path, content);
        self
    }

    /// Writes it as GRUB passes it to the kernel: compressed, since firmware reads and measures it at a few
    /// megabytes per second.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let archive = path.with_extension("cpio");
        fs::write(&archive, self.files.build()?)
            .with_context(|| format!("cannot write {}", archive.display()))?;
        let mut zstd = Command::new("zstd");
        zstd.args(["-q", "-f", "-9", "-T2", "--rm"]).arg(&archive);
        must(zstd.arg("-o").arg(path))
    }
}

/// Adds our own programs and those built for this purpose.
fn own(mut files: Initramfs, settings: &Settings, work: &Path) -> anyhow::Result<Initramfs> {
    let ignition = settings.cache.join("bin/ignition");
    for (program, name) in [
        (ignition.as_path(), "ignition"),
        (settings.agent.as_path(), "node-agent"),
        (settings.node.as_path(), "tec-node"),
    ] {
        // Debug information is not needed here, and is most of a program.
        let bare = work.join(name);
        let mut strip = Command::new("strip");
        must(strip.arg("-o").arg(&bare).arg(program))?;
        files = programs::add(files, &bare, &format!("usr/bin/{name}"))?;
        fs::remove_file(&bare).with_context(|| format!("cannot remove {}", bare.display()))?;
    }
    Ok(files)
}

/// A library that no program names: it is in the same directory as the others.
fn library(name: &str) -> anyhow::Result<std::path::PathBuf> {
    let place = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let path = Path::new(&place).join(name);
    anyhow::ensure!(path.is_file(), "there is no {}", path.display());
    Ok(path)
}

/// Adds all files below a directory.
fn tree(mut files: Initramfs, from: &Path, to: &str) -> anyhow::Result<Initramfs> {
    let list = || format!("list {}; `cargo xtask vm` fetches it", from.display());
    for entry in fs::read_dir(from).with_context(list)? {
        let entry = entry.with_context(list)?;
        let place = format!("{to}/{}", entry.file_name().to_string_lossy());
        let path = entry.path();
        if path.is_dir() {
            files = tree(files, &path, &place)?;
        } else {
            let content =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files = files.with(&place, content);
        }
    }
    Ok(files)
}
