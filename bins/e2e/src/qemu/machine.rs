//! Machines: their parts, and what can be done while one is running.

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tempfile::TempDir;

use super::line::Line;
use super::tpm::VirtualTpm;
use crate::process::wait_for;

/// Memory: enough for firmware, kernel and an unpacked initial file system.
const MEMORY_MIB: &str = "768";
/// Memory: enough for a larger initial file system, and for formatting a LUKS2 volume.
const NODE_MEMORY_MIB: &str = "1024";
/// Name under which Ignition looks for its config (Ignition, "Supported platforms", QEMU).
const IGNITION: &str = "opt/com.coreos/config";
/// QEMU itself starts within a second; then the machine waits for the host.
const START_LIMIT: Duration = Duration::from_mins(1);
/// Time that a person reads before typing.
const PAUSE: Duration = Duration::from_secs(2);
/// Time after which a person types a line again.
const PATIENCE: Duration = Duration::from_secs(20);
/// Sockets of a running machine.
const TPM: &str = "tpm";
const LINE: &str = "line";
const CONSOLE: &str = "console";
/// Console lines that an error shows.
const TAIL: usize = 30;

/// A machine that is switched off. Variables, disk and TPM keep what a boot writes.
///
/// Everything is emulated, without KVM, so that a boot is the same on every host.
#[derive(Clone, Debug)]
pub struct Machine {
    directory: PathBuf,
    firmware: PathBuf,
    variables: PathBuf,
    disk: PathBuf,
    tpm: VirtualTpm,
    ignition: Option<PathBuf>,
    forwards: Vec<(u16, u16)>,
    cables: Option<Vec<String>>,
    writes: Option<PathBuf>,
}

/// A machine that is switched on. Dropping it cuts the power.
#[derive(Debug)]
pub struct Running {
    qemu: Child,
    tpm: Child,
    line: UnixStream,
    console: PathBuf,
    sockets: TempDir,
}

impl Machine {
    /// A machine whose logs go to `directory`.
    ///
    /// `firmware` is OVMF's code (`OVMF_CODE_4M.secboot.fd`), `variables` its variable store, `disk` the
    /// image it boots from.
    pub fn new(
        directory: &Path,
        firmware: &Path,
        variables: &Path,
        disk: &Path,
        tpm: VirtualTpm,
    ) -> Self {
        Self {
            directory: directory.to_owned(),
            firmware: firmware.to_owned(),
            variables: variables.to_owned(),
            disk: disk.to_owned(),
            tpm,
            ignition: None,
            forwards: Vec::new(),
            cables: None,
            writes: None,
        }
    }

    /// Forwards loopback ports of this host to ports of a node.
    pub fn with_forwards(mut self, forwards: &[(u16, u16)]) -> Self {
        self.forwards = forwards.to_vec();
        self
    }

    /// Adds the parts of a node: a network card with the host at 10.0.2.2, a config for Ignition, and more
    /// memory.
    pub fn as_node(mut self, ignition: &Path) -> Self {
        self.ignition = Some(ignition.to_owned());
        self
    }

    /// Gives a node a network card per TAP device instead of QEMU's own network.
    pub fn with_cables(mut self, devices: &[&str]) -> Self {
        self.cables = Some(devices.iter().map(|&device| device.to_owned()).collect());
        self
    }

    /// Logs what is written to the disk, and what is flushed, for [`WriteLog`](super::WriteLog).
    pub fn with_write_log(mut self, log: &Path) -> Self {
        self.writes = Some(log.to_owned());
        self
    }

    /// The file with the output of the first serial port: firmware, boot loader and kernel.
    pub fn console(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    /// Switches it on.
    ///
    /// # Errors
    /// QEMU or swtpm is not installed, or does not accept the parts of the machine.
    pub fn power_on(&self) -> anyhow::Result<Running> {
        // Socket paths have at most 107 bytes (unix(7)), so they must not be nested deeply.
        let sockets = tempfile::Builder::new().prefix("tec-vm-").tempdir()?;
        let mut tpm = self.tpm.power_on(&sockets.path().join(TPM))?;
        let started = self.start(sockets.path());
        let (qemu, line) = started.inspect_err(|_| end(&mut tpm))?;
        Ok(Running { qemu, tpm, line, console: self.console(), sockets })
    }

    /// Starts QEMU, which boots once a client connects to the second serial port.
    fn start(&self, sockets: &Path) -> anyhow::Result<(Child, UnixStream)> {
        let messages = self.directory.join("qemu.log");
        let log = File::create(&messages)
            .with_context(|| format!("cannot create {}", messages.display()))?;
        let mut qemu = self
            .command(sockets)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run qemu-system-x86_64")?;
        let mut connected = None;
        let waited = wait_for("QEMU", START_LIMIT, || {
            connected = UnixStream::connect(sockets.join(LINE)).ok();
            let ended = qemu.try_wait()?.is_some();
            Ok(connected.is_some() || ended)
        });
        match (waited, connected) {
            (Ok(()), Some(stream)) => Ok((qemu, stream)),
            (waited, _) => {
                end(&mut qemu);
                let said = fs::read_to_string(&messages).unwrap_or_default();
                waited.and_then(|()| anyhow::bail!("QEMU ended: {}", said.trim()))
            }
        }
    }

    fn command(&self, sockets: &Path) -> Command {
        let mut qemu = Command::new("qemu-system-x86_64");
        // OVMF uses SMM to protect Secure Boot's variables from the system.
        qemu.args(["-machine", "q35,smm=on,accel=tcg", "-cpu", "max", "-smp", "1"])
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none"])
            .args(["-global", "driver=cfi.pflash01,property=secure,value=on"]);
        let flash = "if=pflash,format=raw,unit";
        drive(&mut qemu, &format!("{flash}=0,readonly=on"), &self.firmware);
        drive(&mut qemu, &format!("{flash}=1"), &self.variables);
        self.attach_disk(&mut qemu);
        qemu.arg("-chardev")
            .arg(socket("tpm", &sockets.join(TPM)))
            .args(["-tpmdev", "emulator,id=tpm0,chardev=tpm"])
            .args(["-device", "tpm-crb,tpmdev=tpm0"]);
        let console = socket("console", &sockets.join(CONSOLE));
        let log = escaped(&self.console());
        qemu.arg("-chardev")
            .arg(format!("{console},server=on,wait=off,logfile={log}"))
            .args(["-serial", "chardev:console"]);
        let line = socket("line", &sockets.join(LINE));
        qemu.arg("-chardev")
            .arg(format!("{line},server=on,wait=on"))
            .args(["-serial", "chardev:line"]);
        let Some(config) = &self.ignition else {
            qemu.args(["-m", MEMORY_MIB]);
            return qemu;
        };
        qemu.args(["-m", NODE_MEMORY_MIB, "-fw_cfg"]);
        qemu.arg(format!("name={IGNITION},file={}", config.display()));
        for (number, network) in self.networks().iter().enumerate() {
            qemu.args(["-netdev", &format!("{network},id=net{number}"), "-device"]);
            // Without an option ROM, whose firmware would try to boot from the network.
            let address = format!("mac=52:54:00:12:34:{:02x}", 0x56 + number);
            qemu.arg(format!("virtio-net-pci,netdev=net{number},romfile=,{address}"));
        }
        qemu
    }

    fn attach_disk(&self, qemu: &mut Command) {
        match &self.writes {
            None => drive(qemu, "if=none,id=disk,format=raw", &self.disk),
            Some(log) => {
                for (name, file) in [("image", &self.disk), ("log", log)] {
                    let file = escaped(file);
                    qemu.arg("-blockdev")
                        .arg(format!("driver=file,node-name={name},filename={file}"));
                }
                qemu.args(["-blockdev", "driver=blklogwrites,node-name=disk,file=image,log=log"]);
            }
        }
        // As most disks, it has a write cache, which the guest must flush.
        qemu.args(["-device", "virtio-blk-pci,drive=disk,bootindex=0,write-cache=on"]);
    }

    /// What each network card is connected to.
    fn networks(&self) -> Vec<String> {
        if let Some(cables) = &self.cables {
            let tap = |device| format!("tap,ifname={device},script=no,downscript=no");
            return cables.iter().map(tap).collect();
        }
        let forwards = self.forwards.iter();
        let forwards =
            forwards.map(|(host, node)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{node}"));
        vec!["user".to_owned() + &forwards.collect::<String>()]
    }
}

fn socket(id: &str, path: &Path) -> String {
    format!("socket,id={id},path={}", path.display())
}

fn drive(qemu: &mut Command, kind: &str, file: &Path) {
    qemu.arg("-drive").arg(format!("{kind},file={}", escaped(file)));
}

/// QEMU ends an option at a comma, unless it is doubled.
fn escaped(file: &Path) -> String {
    file.to_string_lossy().replace(',', ",,")
}

impl Running {
    /// The second serial port, for the duration `limit`.
    pub fn line(&self, limit: Duration) -> Line<'_> {
        Line::new(&self.line, limit)
    }

    /// Waits until the console shows a string.
    ///
    /// # Errors
    /// The string did not appear in time, or the machine switched itself off first.
    pub fn wait_for_console(&mut self, text: &str, limit: Duration) -> anyhow::Result<()> {
        let (qemu, console) = (&mut self.qemu, &self.console);
        let shown = || fs::read(console).is_ok_and(|log| contains(&log, text));
        let waited = wait_for(&format!("{text:?} on the console"), limit, || {
            let ended = qemu.try_wait()?.is_some();
            anyhow::ensure!(shown() || !ended, "the machine was switched off before {text:?}");
            Ok(shown())
        });
        waited.map_err(|error| self.explain(&error))
    }

    /// Types a line at the prompt that the console ends with, like a person in front of the machine, until
    /// the machine accepts it: a program that asks discards what was typed before it listens (termios(3),
    /// `TCSAFLUSH`).
    ///
    /// # Errors
    /// The machine is off, or accepts nothing in time.
    pub fn type_line(&mut self, text: &str, limit: Duration) -> anyhow::Result<()> {
        let console = UnixStream::connect(self.sockets.path().join(CONSOLE));
        let mut console = console.context("cannot reach the console")?;
        let log = self.console.clone();
        let mut shown = None;
        let mut again = Instant::now() + PAUSE;
        let waited = wait_for("the line that was typed to be taken", limit, || {
            let length = fs::read(&log).context("cannot read the console")?.len();
            if Instant::now() >= again {
                // The rest of the question may have come after its beginning.
                shown = Some(length);
                // Terminals send a carriage return for the Enter key.
                write!(console, "{text}\r").context("cannot type on the console")?;
                again = Instant::now() + PATIENCE;
            }
            Ok(shown.is_some_and(|shown| length > shown))
        });
        waited.map_err(|error| self.explain(&error))
    }

    /// Waits until the machine has switched itself off.
    pub fn wait_for_power_off(mut self, limit: Duration) -> anyhow::Result<()> {
        let qemu = &mut self.qemu;
        let waited =
            wait_for("the machine to switch itself off", limit, || Ok(qemu.try_wait()?.is_some()));
        waited.map_err(|error| self.explain(&error))
    }

    /// Cuts the power.
    pub fn cut(self) {
        drop(self);
    }

    /// An error that ends with the content of the console.
    pub fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        let log = fs::read(&self.console).unwrap_or_default();
        let text: String = String::from_utf8_lossy(&log)
            .chars()
            .filter(|c| *c == '\n' || !c.is_control())
            .collect();
        let lines: Vec<&str> = text.lines().collect();
        let begin = lines.len().saturating_sub(TAIL);
        let tail = lines.get(begin..).unwrap_or_default().join("\n");
        anyhow::anyhow!("{error:#}\n{} ends with:\n{tail}", self.console.display())
    }
}

fn contains(log: &[u8], text: &str) -> bool {
    log.windows(text.len()).any(|part| part == text.as_bytes())
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.qemu);
        end(&mut self.tpm);
    }
}

fn end(child: &mut Child) {
    // Fails only if it is already gone.
    let _ = child.kill();
    let _ = child.wait();
}
