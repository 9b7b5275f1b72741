//! A machine with a distribution, between its boots and while it runs.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::install::{Chain, Installer, PASSPHRASE};
use crate::qemu::{Machine, Running, VirtualTpm, disk, must};
use crate::vm::node;
use crate::vm::settings::Settings;
use crate::volume;

/// Time limit of a boot, on an emulated processor that other programs use, too.
const BOOT: Duration = Duration::from_mins(12);
/// Time limit of a command.
const COMMAND: Duration = Duration::from_mins(8);
/// For so long after a refusal a machine might still open its disk.
const GRACE: Duration = Duration::from_secs(30);

/// A machine with the distribution on its disk, switched off.
#[derive(Debug)]
pub(in crate::vm) struct Debian {
    chain: Chain,
    directory: PathBuf,
    firmware: PathBuf,
    ignition: PathBuf,
    installer: Installer,
    cables: Option<&'static [&'static str]>,
    boots: u32,
}

/// What a person does when the console asks for a passphrase.
type AtPrompt<'a> = &'a mut dyn FnMut(&mut Running) -> anyhow::Result<()>;

/// How a boot went.
#[derive(Debug)]
pub(in crate::vm) enum Started {
    /// The root runs.
    Open(Guest),
    /// The disk stayed closed, or nothing of its root was started, with this line: code and sentence.
    Closed(String),
}

/// A running distribution.
#[derive(Debug)]
pub(in crate::vm) struct Guest(Running);

impl Debian {
    /// Installs the system of an archive in the cache. `unused` stands for a config of Ignition, which this machine does not have.
    pub(in crate::vm) fn install(
        settings: &Settings,
        (system, chain): (&str, Chain),
        unused: &Path,
    ) -> anyhow::Result<Self> {
        let installer = Installer::prepare(settings, system)?;
        let directory = settings.artefacts.join(system);
        let boot = settings.cache.join("boot").join(node::SUITE);
        let (firmware, ignition) = (boot.join(node::CODE), unused.to_owned());
        let cables = None;
        let debian = Self { chain, directory, firmware, ignition, installer, cables, boots: 0 };
        fs::copy(boot.join(chain.variables()), debian.variables())?;
        VirtualTpm::manufacture_plain(&debian.tpm())?;
        debian.installer.install(&debian.disk())?;
        Ok(debian)
    }

    /// The disk.
    pub(in crate::vm) fn disk(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    fn variables(&self) -> PathBuf {
        self.directory.join("variables.fd")
    }

    fn tpm(&self) -> PathBuf {
        self.directory.join("tpm")
    }

    /// What an upgrade makes: the initramfs or the unified kernel image with one more module.
    pub(in crate::vm) fn update(&self) -> PathBuf {
        self.installer.update()
    }

    /// Whether it has a newer kernel, which is not installed below `/boot`.
    pub(in crate::vm) fn has_newer_kernel(&self) -> bool {
        self.installer.has_newer_kernel()
    }

    /// Replaces its encrypted root by a plain one.
    pub(in crate::vm) fn plant_plain(&self) -> anyhow::Result<()> {
        self.installer.plant_plain(&self.disk())
    }

    /// Begins a re-encryption of its root with the passphrase of its installation, and leaves it at that.
    pub(in crate::vm) fn begin_reencryption(&self) -> anyhow::Result<()> {
        self.installer.begin_reencryption(&self.disk())
    }

    /// What `change` does to its files below `/boot`, which is mounted at the path that it gets. The system
    /// partition below it is a copy, and written back: not every host has a driver for it.
    pub(in crate::vm) fn in_boot<T>(
        &self,
        change: impl FnOnce(&Path) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let root = self.directory.join("mounted");
        let boot = root.join("boot");
        fs::create_dir_all(&boot)?;
        let [system, (offset, size)] = disk::installed_partitions();
        let part = format!("loop,offset={offset},sizelimit={size}");
        let mounted = Mounted::new(&["-o", &part], &self.disk(), &boot)?;
        let efi = boot.join("efi");
        let below = Mounted::new(&["-t", "tmpfs"], Path::new("tmpfs"), &efi)?;
        let image = format!("{}@@{}", self.disk().display(), system.0);
        must(Command::new("mcopy").args(["-s", "-i", &image, "::"]).arg(&efi))?;
        let changed = change(&root)?;
        let files = fs::read_dir(&efi)?.map(|entry| Ok(entry?.path()));
        let files = files.collect::<std::io::Result<Vec<_>>>()?;
        must(Command::new("mcopy").args(["-s", "-o", "-i", &image]).args(files).arg("::"))?;
        drop(below);
        drop(mounted);
        Ok(changed)
    }

    /// From now on it has a network card per TAP device, instead of QEMU's own network.
    pub(in crate::vm) fn connect(&mut self, devices: &'static [&'static str]) {
        self.cables = Some(devices);
    }

    /// Boots it, and types a passphrase, if there is one.
    pub(in crate::vm) fn boot(&mut self, typed: Option<&str>) -> anyhow::Result<Started> {
        let (mut running, console) = self.start()?;
        if let Some(passphrase) = typed {
            running.wait_for_console(self.chain.prompt(), BOOT)?;
            running.type_line(passphrase, BOOT)?;
        }
        watch(running, &console, None)
    }

    /// Boots it, and does something once when a passphrase is asked for.
    pub(in crate::vm) fn boot_and(&mut self, act: AtPrompt<'_>) -> anyhow::Result<Started> {
        let (running, console) = self.start()?;
        watch(running, &console, Some((self.chain.prompt(), act)))
    }

    fn start(&mut self) -> anyhow::Result<(Running, PathBuf)> {
        self.boots += 1;
        let logs = self.directory.join(format!("boot-{}", self.boots));
        fs::create_dir_all(&logs)?;
        let tpm = VirtualTpm::found(&self.tpm());
        let machine = Machine::new(&logs, &self.firmware, &self.variables(), &self.disk(), tpm);
        let mut machine = machine.as_node(&self.ignition);
        if let Some(cables) = self.cables {
            machine = machine.with_cables(cables);
        }
        Ok((machine.power_on()?, machine.console()))
    }

    /// Boots it with the passphrase of its installation.
    pub(in crate::vm) fn boot_typed(&mut self) -> anyhow::Result<Guest> {
        match self.boot(Some(PASSPHRASE))? {
            Started::Open(guest) => Ok(guest),
            Started::Closed(line) => bail!("the passphrase opened nothing: {line}"),
        }
    }
}

/// Waits until the root runs, or the pin gave up.
fn watch(
    mut running: Running,
    console: &Path,
    mut at_prompt: Option<(&str, AtPrompt<'_>)>,
) -> anyhow::Result<Started> {
    let (end, mut refused, mut said) = (Instant::now() + BOOT, None, Vec::new());
    loop {
        let mut byte = [0];
        let is_off = match running.line(Duration::from_secs(1)).read(&mut byte) {
            Ok(1) => {
                said.push(byte[0]);
                false
            }
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => false,
            Err(error) => return Err(error.into()),
        };
        if said.ends_with(b"ready\n") {
            return Ok(Started::Open(Guest(running)));
        }
        let shown = String::from_utf8_lossy(&fs::read(console)?).into_owned();
        if let Some((_, act)) = at_prompt.take_if(|(prompt, _)| shown.contains(*prompt)) {
            act(&mut running)?;
        }
        // Codes of the network come and go until there is one.
        let last = shown.rmatch_indices("TEC-").map(|(at, _)| &shown[at..]).find_map(refusal);
        let since = *refused.get_or_insert_with(Instant::now);
        match last {
            Some(line) if is_off || since.elapsed() > GRACE => return Ok(Started::Closed(line)),
            _ if is_off => return Err(running.explain(&anyhow::anyhow!("the machine is off"))),
            None => refused = None,
            Some(_) => {}
        }
        if Instant::now() > end {
            let error = anyhow::anyhow!("it neither opened its disk nor refused to");
            return Err(running.explain(&error));
        }
    }
}

/// The line of a refusal: of attestation, of the header of the disk, or of the root. Where a line ends with a code, it
/// names what to ask about it.
fn refusal(text: &str) -> Option<String> {
    let line = text.lines().next()?.trim_end();
    let is_it = line.starts_with("TEC-A") || line.starts_with("TEC-N42");
    (is_it && line.get(8..9) == Some(" ")).then(|| line.to_owned())
}

impl Guest {
    /// Runs a command that must succeed.
    pub(in crate::vm) fn must(&self, command: &str) -> anyhow::Result<String> {
        let (status, output) = self.run(command)?;
        ensure!(status == 0, "{command}: exit status {status}: {output}");
        Ok(output)
    }

    /// Runs a command: its exit status and output.
    pub(in crate::vm) fn run(&self, command: &str) -> anyhow::Result<(i32, String)> {
        let mut line = self.0.line(COMMAND);
        writeln!(line, "{command}").context("cannot ask the machine")?;
        let mut said = Vec::new();
        loop {
            let mut byte = [0];
            line.read_exact(&mut byte).with_context(|| format!("{command}: no answer"))?;
            said.push(byte[0]);
            let text = String::from_utf8_lossy(&said).replace('\r', "");
            if let Some((output, end)) = text.rsplit_once("ended ")
                && (output.is_empty() || output.ends_with('\n'))
                && let Some(status) = end.strip_suffix('\n')
            {
                return Ok((status.parse()?, output.trim_end().to_owned()));
            }
        }
    }

    /// Shuts it down.
    pub(in crate::vm) fn off(self) -> anyhow::Result<()> {
        let mut line = self.0.line(COMMAND);
        writeln!(line, "sync; poweroff")?;
        self.0.wait_for_power_off(BOOT)
    }
}

/// A partition of a disk, mounted on this host.
struct Mounted(PathBuf);

impl Mounted {
    fn new(options: &[&str], what: &Path, at: &Path) -> anyhow::Result<Self> {
        must(Command::new("mount").args(options).arg(what).arg(at))?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = volume::command("umount").arg(&self.0).status();
    }
}
