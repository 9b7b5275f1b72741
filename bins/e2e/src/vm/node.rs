//! A node: a disk, variables, a TPM, and what is done to them between boots.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context as _;
use tec_core::port::Entropy;

use super::boot;
use super::boot::{Boot, Hands};
use super::image::Image;
use super::settings::Settings;
use crate::qemu::{Machine, PowerCut, Running, VirtualTpm, WriteLog, disk};

/// Firmware with Microsoft's keys, as on machines that are sold.
pub(super) const VARIABLES: &str = "OVMF_VARS.ms.fd";
pub(super) const CODE: &str = "OVMF_CODE.fd";
/// Debian suite of the firmware.
pub(super) const SUITE: &str = "trixie";

/// A virtual node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the node in the story.
    pub name: String,
    directory: PathBuf,
    firmware: PathBuf,
    ignition: PathBuf,
    forwards: Vec<(u16, u16)>,
    boots: u32,
}

impl Node {
    /// A node with an empty root and a new TPM that boots `image`; `ignition` is its config.
    pub fn new(
        settings: &Settings,
        name: &str,
        image: &Image,
        ignition: &Path,
    ) -> anyhow::Result<Self> {
        let directory = settings.artefacts.join(name);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let boot = settings.cache.join("boot").join(SUITE);
        let node = Self {
            name: name.to_owned(),
            directory,
            firmware: boot.join(CODE),
            ignition: ignition.to_owned(),
            forwards: Vec::new(),
            boots: 0,
        };
        fs::copy(boot.join(VARIABLES), node.variables()).context("cannot copy the variables")?;
        VirtualTpm::manufacture_plain(&node.tpm())?;
        disk::write_with_root(&node.disk())?;
        node.install(image)?;
        Ok(node)
    }

    /// Forwards ports of this host to ports of the node, from the next boot on.
    pub(super) fn forward(&mut self, forwards: &[(u16, u16)]) {
        self.forwards = forwards.to_vec();
    }

    /// Image of the disk.
    pub fn disk(&self) -> PathBuf {
        self.directory.join("disk.img")
    }

    /// The firmware's variable store.
    pub fn variables(&self) -> PathBuf {
        self.directory.join("variables.fd")
    }

    /// Where the TPM keeps its state.
    pub fn tpm(&self) -> PathBuf {
        self.directory.join("tpm")
    }

    /// Replaces the image on the EFI system partition.
    pub fn install(&self, image: &Image) -> anyhow::Result<()> {
        disk::replace_system(image.directory(), &self.disk())
    }

    /// Switches the machine on and watches until it is off.
    pub fn boot(&mut self) -> anyhow::Result<Boot> {
        self.boot_attended(&mut boot::nobody)
    }

    /// Like [`boot`](Self::boot), with actions after each step.
    pub(super) fn boot_attended(&mut self, hands: Hands<'_>) -> anyhow::Result<Boot> {
        let (running, console) = self.power_on()?;
        boot::greet(&running).map_err(|error| running.explain(&error))?;
        Boot::watch(running, &console, hands).with_context(|| format!("boot of {}", self.name))
    }

    /// Switches it on; also returns the path of its console file.
    pub(super) fn power_on(&mut self) -> anyhow::Result<(Running, PathBuf)> {
        let machine = self.machine()?;
        Ok((machine.power_on()?, machine.console()))
    }

    /// Like [`power_on`](Self::power_on), with a log of what it writes to the disk, for
    /// [`cut`](Self::cut).
    ///
    /// # Errors
    /// As in [`power_on`](Self::power_on), or the disk cannot be copied.
    pub(super) fn power_on_logged(&mut self) -> anyhow::Result<(Running, PathBuf)> {
        fs::copy(self.disk(), self.disk_before()).context("cannot copy the disk")?;
        File::create(self.write_log()).context("cannot create the log of writes")?;
        let machine = self.machine()?.with_write_log(&self.write_log());
        Ok((machine.power_on()?, machine.console()))
    }

    /// Cuts the power of a machine that was switched on with a log: of what the machine had not flushed, a
    /// random part is on the disk.
    pub(super) fn cut(&self, running: Running, entropy: &dyn Entropy) -> anyhow::Result<PowerCut> {
        running.cut();
        let log = WriteLog::read(&self.write_log())?;
        let mut disk = File::options().write(true).open(self.disk_before())?;
        let cut = log.cut(&mut disk, entropy)?;
        fs::rename(self.disk_before(), self.disk()).context("cannot replace the disk")?;
        Ok(cut)
    }

    /// Log of what was written to the disk since [`power_on_logged`](Self::power_on_logged).
    pub(super) fn write_log(&self) -> PathBuf {
        self.directory.join("writes.log")
    }

    /// The disk as it was before that.
    pub(super) fn disk_before(&self) -> PathBuf {
        self.directory.join("before.img")
    }

    fn machine(&mut self) -> anyhow::Result<Machine> {
        self.boots += 1;
        let logs = self.directory.join(format!("boot-{}", self.boots));
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        let tpm = VirtualTpm::found(&self.tpm());
        let machine = Machine::new(&logs, &self.firmware, &self.variables(), &self.disk(), tpm);
        Ok(machine.as_node(&self.ignition).with_forwards(&self.forwards))
    }

    /// The root partition as a file, for programs that read volumes.
    pub fn root(&self) -> anyhow::Result<PathBuf> {
        let path = self.directory.join("root.img");
        let copied = copy_root(&self.disk(), &path);
        copied.with_context(|| format!("cannot copy the root of {}", self.disk().display()))?;
        Ok(path)
    }

    /// Writes to the root partition.
    pub(super) fn write_root(&self, content: &[u8]) -> anyhow::Result<()> {
        let mut disk = File::options().write(true).open(self.disk())?;
        disk.seek(SeekFrom::Start(disk::offset_of_root()))?;
        disk.write_all(content).context("cannot write the root")
    }

    /// Deletes its parts to free space; the logs stay.
    pub fn discard(self) -> anyhow::Result<()> {
        fs::remove_file(self.disk()).context("cannot remove the disk")?;
        fs::remove_file(self.variables()).context("cannot remove the variables")
    }
}

/// Copies the root partition of a disk to a file.
pub(super) fn copy_root(disk: &Path, path: &Path) -> io::Result<()> {
    let mut disk = File::open(disk)?;
    disk.seek(SeekFrom::Start(disk::offset_of_root()))?;
    io::copy(&mut disk.take(disk::ROOT), &mut File::create(path)?)?;
    Ok(())
}
