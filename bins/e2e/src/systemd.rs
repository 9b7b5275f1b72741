//! The units of `node-agent` under systemd as PID 1, in a container with this machine's programs: real sandboxes,
//! timers, paths and shutdown locks. Needs root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::load;
use crate::machine::Machine;

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../node-agent/deploy/systemd");
/// How often a state is looked at until it is there, ten times a second.
const LOOKS: u32 = 600;

/// What a test adds to the units, as drop-ins do.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DropIns {
    /// Lines of the section `Service` of all services.
    pub service: Vec<String>,
    /// Lines of the section `Timer` of all timers.
    pub timer: Vec<String>,
}

impl DropIns {
    /// The TPM and the event log of a machine.
    pub fn of(machine: &Machine) -> Self {
        let (tpm, log) = (machine.tcti(), machine.event_log());
        let service = format!("Environment=TEC_TCTI={tpm} TEC_EVENT_LOG={}", log.display());
        Self { service: vec![service], timer: Vec::new() }
    }

    fn install(&self, root: &Path) -> anyhow::Result<()> {
        let units = root.join("usr/lib/systemd/system");
        for unit in fs::read_dir(UNITS)? {
            let unit = unit?.path();
            let name = unit.file_name().and_then(|name| name.to_str()).context("a unit's name")?;
            let section = match unit.extension().and_then(|kind| kind.to_str()) {
                Some("path") => String::new(),
                Some("service") => format!("[Service]\n{}\n", self.service.join("\n")),
                Some("timer") => format!("[Timer]\n{}\n", self.timer.join("\n")),
                _ => continue,
            };
            fs::copy(&unit, units.join(name))?;
            let drop_ins = root.join("etc/systemd/system").join(format!("{name}.d"));
            fs::create_dir_all(&drop_ins)?;
            fs::write(drop_ins.join("test.conf"), section)?;
        }
        Ok(())
    }
}

/// A file as a block device, so that `lsblk` finds it as on a node.
#[derive(Debug)]
struct Loop(String);

impl Loop {
    fn of(file: &Path) -> anyhow::Result<Self> {
        let mut attach = Command::new("losetup");
        let device = said(attach.args(["--find", "--show"]).arg(file))?;
        Ok(Self(device.trim().to_owned()))
    }

    /// What udev, which does not run in a container, would record for `lsblk`.
    fn described(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let number = said(Command::new("stat").args(["--format=%Hr:%Lr", &self.0]))?;
        fs::create_dir_all(directory.join("data"))?;
        let device = directory.join("data").join(format!("b{}", number.trim()));
        fs::write(device, "I:1\nE:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_VERSION=2\n")?;
        Ok(directory.to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A container whose PID 1 is systemd. Its root is this machine's, with everything that it writes elsewhere, and
/// its network is that of the calling thread.
#[derive(Debug)]
pub struct System {
    nspawn: Child,
    root: PathBuf,
    _disk: Loop,
}

impl System {
    /// Boots systemd up to `sysinit.target`, with the machine's disk and these boot files. The directory contains
    /// the files of the machine; the container sees it, and keeps its own in it.
    pub fn boot(
        machine: &Machine,
        directory: &Path,
        boot: &Path,
        drop_ins: &DropIns,
    ) -> anyhow::Result<Self> {
        let own = directory.join("system");
        let [root, upper, work] = ["root", "upper", "work"].map(|name| own.join(name));
        for directory in [&root, &upper, &work] {
            fs::create_dir_all(directory)?;
        }
        let layers = format!("lowerdir=/,upperdir={},workdir={}", upper.display(), work.display());
        said(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &layers]).arg(&root))?;
        drop_ins.install(&root)?;
        let disk = Loop::of(&machine.disk())?;
        let devices = disk.described(&own.join("udev"))?;
        let bind = |from: &Path, to: &str| format!("--bind={}:{to}", from.display());
        let nspawn = Command::new("systemd-nspawn")
            .args(["--quiet", "--register=no", "--keep-unit", "--capability=all", "--console=pipe"])
            .arg(format!("--directory={}", root.display()))
            .arg(format!("--bind={}", disk.0))
            .arg(bind(machine.node_agent(), "/usr/bin/node-agent"))
            .arg(bind(directory, &directory.to_string_lossy()))
            .arg(bind(boot, "/boot"))
            .arg(bind(&devices, "/run/udev"))
            .args(["--boot", "systemd.unit=sysinit.target"])
            .stdin(Stdio::null())
            .stdout(fs::File::create(own.join("console"))?)
            .stderr(Stdio::null())
            .spawn()
            .context("systemd-nspawn is missing; run `cargo xtask tools`")?;
        let system = Self { nspawn, root, _disk: disk };
        until("systemd is up", || {
            let state = system.systemctl(&["is-active", "sysinit.target"])?;
            Ok(state.status.success())
        })?;
        Ok(system)
    }

    /// PID of systemd, as this machine counts.
    pub fn leader(&self) -> anyhow::Result<u32> {
        let mut pid = self.nspawn.id();
        loop {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
            let child = children.split_whitespace().next().context("systemd does not run")?;
            pid = child.parse()?;
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let mut names = status.lines().filter_map(|line| line.strip_prefix("NSpid:"));
            if names.next().is_some_and(|pids| pids.split_whitespace().last() == Some("1")) {
                return Ok(pid);
            }
        }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<Output> {
        let target = self.leader()?.to_string();
        let enter = ["--mount", "--uts", "--ipc", "--pid", "--wd=/", "--target", &target, program];
        let mut command = Command::new("nsenter");
        Ok(command.args(enter).args(arguments).stdin(Stdio::null()).output()?)
    }

    /// Runs systemctl in the container.
    pub fn systemctl(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        self.run("systemctl", arguments)
    }

    /// Starts a unit.
    pub fn start(&self, unit: &str) -> anyhow::Result<()> {
        let started = self.systemctl(&["start", unit])?;
        ensure!(started.status.success(), "{unit}: {started:?}");
        Ok(())
    }

    /// Starts a unit to its end. Returns the exit code of its program, and its journal.
    ///
    /// # Errors
    /// systemd does not run, or disagrees with the exit code about success.
    pub fn result(&self, unit: &str) -> anyhow::Result<(String, String)> {
        let started = self.systemctl(&["start", unit])?;
        let show = ["show", "--value", "--property=ExecMainStatus", unit];
        let code = String::from_utf8(self.systemctl(&show)?.stdout)?;
        let journal = self.journal(unit)?;
        ensure!(started.status.success() == (code.trim() == "0"), "{started:?} {journal}");
        Ok((code.trim().to_owned(), journal))
    }

    /// What a unit printed.
    pub fn journal(&self, unit: &str) -> anyhow::Result<String> {
        let printed = self.run("journalctl", &["--no-pager", "--output=cat", "--unit", unit])?;
        Ok(String::from_utf8(printed.stdout)?)
    }

    /// Who holds a shutdown lock.
    pub fn holders(&self) -> anyhow::Result<String> {
        let listed = self.run("systemd-inhibit", &["--list", "--no-pager", "--no-legend"])?;
        ensure!(listed.status.success(), "{listed:?}");
        Ok(String::from_utf8(listed.stdout)?)
    }

    /// Waits until systemd has ended.
    pub fn ends(mut self) -> anyhow::Result<()> {
        until("the machine is off", || Ok(self.leader().is_err()))?;
        self.nspawn.wait()?;
        Ok(())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // The end of nspawn alone leaves the container.
        if let Ok(leader) = self.leader() {
            let _ = Command::new("kill").args(["-KILL", &leader.to_string()]).status();
        }
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
        let _ = Command::new("umount").arg("--lazy").arg(&self.root).status();
    }
}

fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {words} (root is needed)");
    Ok(String::from_utf8(output.stdout)?)
}

/// Looks ten times a second until something is so.
///
/// # Errors
/// It is not so for a minute; the error contains the last failure.
pub fn until(what: &str, is_so: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let mut last = None;
    for _ in 0..LOOKS {
        match is_so() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => last = Some(error),
        }
        load::pause(100);
    }
    bail!("waited in vain until {what}: {last:?}")
}
