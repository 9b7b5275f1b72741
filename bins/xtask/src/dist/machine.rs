//! Installs packages as a user would: with apt, in a virtual machine with a fresh Debian, in which systemd is
//! process 1. The machine then boots with the initramfs that the installation created.
//!
//! ```text
//!   system.tar + packages ─► disk.img ─► boot 1: apt install ─► the initramfs with the pin
//!                                        boot 2, with it: programs and units
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::Dist;
use super::install::IN_INITRAMFS;
use crate::{process, term, tools};

/// Where the packages are in the machine.
const PLACE: &str = "var/tmp/packages";
/// What the machine prints about itself begins with this.
const SAID: &str = "packages: ";
/// Driver of the network of the machine.
const NETWORK: &str = "/virtio_net.ko";
/// A boot takes three minutes, and several times that beside compilers.
const LIMIT: &str = "30m";
const UNIT: &str = "[Unit]\n\
    After=basic.target\n\
    SuccessAction=poweroff-force\n\
    FailureAction=poweroff-force\n\
    [Service]\n\
    Type=oneshot\n\
    ExecStart=/var/tmp/packages/run\n\
    TimeoutStartSec=20min\n\
    StandardOutput=journal+console\n\
    StandardError=journal+console\n";
/// Runs at both boots. Triggers of a package create the initramfs.
const SCRIPT: &str = r#"#!/bin/sh
set -eu
cd /var/tmp/packages
export DEBIAN_FRONTEND=noninteractive
if [ ! -e installed ]; then
    apt-get install --yes --no-install-recommends --quiet ./*.deb
    lsinitramfs /boot/initrd.img-* | sed -n '/node-agent\|trustee\|virtio_net/s/^/packages: has /p'
    touch installed
    echo 'packages: installed'
else
    for deb in *.deb; do
        name=$(dpkg-deb --field "$deb" Package)
        dpkg --listfiles "$name" | grep '^/usr/bin/' | while read -r program; do
            [ -L "$program" ] || "$program" --version
        done
    done
    systemctl is-active tec-refresh-ca.timer
    echo 'packages: running'
fi
journalctl --sync # or the last line may not reach the console
sync
"#;

/// Installs Debian packages for amd64, among them that of the node's program, and boots.
pub(super) fn install(dist: &Dist<'_>, packages: &[PathBuf]) -> Result<()> {
    term::step("packages, installed in a virtual machine");
    let machine = Machine::new(dist, packages)?;
    let said = machine.boot("installed")?;
    for file in IN_INITRAMFS {
        ensure!(says(&said, &format!("has {file}")), "the initramfs lacks {file}");
    }
    ensure!(said.contains(NETWORK), "the initramfs has no driver of its network");
    machine.take_initramfs()?;
    machine.boot("running")?;
    fs::remove_dir_all(&machine.folder)?;
    term::success(
        "the packages are installed, and the machine boots with the pin in its initramfs",
    );
    Ok(())
}

/// A virtual machine, switched off.
struct Machine {
    folder: PathBuf,
}

impl Machine {
    fn new(dist: &Dist<'_>, packages: &[PathBuf]) -> Result<Self> {
        let base = tools::ensure_system(dist.tools)?;
        let machine = Self { folder: dist.stage.join("machine") };
        let system = machine.folder.join("system");
        let inside = system.join(PLACE);
        fs::create_dir_all(&inside)?;
        process::capture(process::command("tar").arg("-xf").arg(base).arg("-C").arg(&system))?;
        for package in packages {
            let name = package.file_name().context("a package has a name")?;
            fs::copy(package, inside.join(name))
                .with_context(|| format!("cannot copy {}", package.display()))?;
        }
        let script = inside.join("run");
        fs::write(&script, SCRIPT)?;
        tools::make_executable(&script)?;
        // With the modules of this machine only: emulated, copying all of them takes minutes.
        fs::write(system.join("etc/initramfs-tools/conf.d/modules"), "MODULES=dep\n")?;
        let units = system.join("etc/systemd/system");
        fs::write(units.join("packages.service"), UNIT)?;
        let wanted = units.join("multi-user.target.wants");
        fs::create_dir_all(&wanted)?;
        std::os::unix::fs::symlink("../packages.service", wanted.join("packages.service"))?;
        for file in ["vmlinuz", "initrd.img"] {
            fs::copy(boot_file(&system.join("boot"), file)?, machine.folder.join(file))?;
        }
        let mut make = administration("mke2fs");
        make.args(["-q", "-t", "ext4", "-d"]).arg(&system).arg(machine.disk()).arg("3G");
        process::capture(&mut make)?;
        fs::remove_dir_all(&system)?;
        Ok(machine)
    }

    fn disk(&self) -> PathBuf {
        self.folder.join("disk.img")
    }

    fn console(&self) -> PathBuf {
        self.folder.join("console.log")
    }

    /// Boots until the machine switches itself off; returns what its console showed. `last` is what it says if all
    /// went well.
    fn boot(&self, last: &str) -> Result<String> {
        let console = self.console();
        process::run(&mut self.command()).with_context(|| format!("see {}", console.display()))?;
        let said = fs::read(self.console()).context("read the console")?;
        let said = String::from_utf8_lossy(&said).into_owned();
        if !says(&said, last) {
            bail!("the packages are not {last}; the console shows:\n{said}");
        }
        Ok(said)
    }

    fn command(&self) -> Command {
        let mut qemu = process::command("timeout");
        qemu.args([LIMIT, "qemu-system-x86_64"]);
        // Emulated, so that it is the same on every host.
        qemu.args(["-machine", "q35,accel=tcg", "-m", "1024"]);
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        let console = self.console().to_string_lossy().replace(',', ",,");
        qemu.arg("-serial").arg(format!("file:{console}"));
        qemu.arg("-kernel").arg(self.folder.join("vmlinuz"));
        qemu.arg("-initrd").arg(self.folder.join("initrd.img"));
        qemu.args(["-append", "root=/dev/vda rw console=ttyS0 quiet"]);
        // A network card whose network assigns an address and leads nowhere.
        qemu.args(["-netdev", "user,id=net,restrict=on"]);
        qemu.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        let disk = self.disk().to_string_lossy().replace(',', ",,");
        qemu.arg("-drive").arg(format!("if=virtio,format=raw,file={disk}"));
        qemu
    }

    /// Takes the initramfs off the disk, which is where a boot loader would find it.
    fn take_initramfs(&self) -> Result<()> {
        let to = self.folder.join("initrd.img");
        let mut list = administration("debugfs");
        let list = process::capture(list.args(["-R", "ls -p /boot"]).arg(self.disk()))?;
        let name = list.split('/').find(|name| name.starts_with("initrd.img"));
        let name = name.context("the disk has no initramfs")?;
        let dump = format!("dump /boot/{name} {}", to.display());
        fs::remove_file(&to)?;
        process::capture(administration("debugfs").args(["-R", &dump]).arg(self.disk()))?;
        ensure!(to.is_file(), "debugfs did not copy {name}");
        Ok(())
    }
}

/// Whether the console shows this line; it begins with a time and the name of a program.
fn says(console: &str, text: &str) -> bool {
    let line = format!("{SAID}{text}");
    console.lines().any(|shown| shown.trim_end().ends_with(&line))
}

/// A program that may be in no directory of PATH.
fn administration(program: &str) -> Command {
    process::command(process::which(program).unwrap_or_else(|| program.into()))
}

fn boot_file(folder: &Path, begin: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin)) {
            return Ok(path);
        }
    }
    bail!("no {begin} in {}", folder.display())
}
