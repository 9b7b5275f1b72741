//! The duties of process 1: file systems, the serial line, and the power switch.

use std::fs;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::fs::OFlags;
use rustix::mount::MountFlags;
use rustix::system::RebootCommand;
use rustix::termios::OptionalActions;

/// Kernel file systems that the report reads.
const FILE_SYSTEMS: [(&str, &str); 3] =
    [("sysfs", "/sys"), ("devtmpfs", "/dev"), ("securityfs", "/sys/kernel/security")];
/// How long a device may take to appear.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(50);

/// Mounts the file systems that the report reads.
/// Errors: A file system cannot be mounted; the error names it.
pub fn mount() -> anyhow::Result<()> {
    for (kind, place) in FILE_SYSTEMS {
        fs::create_dir_all(place).with_context(|| format!("cannot create {place}"))?;
        rustix::mount::mount(kind, place, kind, MountFlags::empty(), None)
            .with_context(|| format!("cannot mount {kind} on {place}"))?;
    }
    Ok(())
}

/// Waits until a device appears.
pub fn wait_for(device: &Path) -> anyhow::Result<()> {
    let end = Instant::now() + DEVICE_LIMIT;
    while !device.exists() {
        if Instant::now() > end {
            bail!("there is no {}", device.display());
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "nobody tells of a new device here; the deadline is above"
        )]
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// Opens a serial line for raw bytes.
pub fn open_line(device: &Path) -> anyhow::Result<File> {
    let line = OpenOptions::new()
        .read(true)
        .write(true)
        // It is not a terminal: programs that prompt for input do not use it.
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(device)
        .with_context(|| format!("cannot open {}", device.display()))?;
    let mut settings =
        rustix::termios::tcgetattr(&line).context("cannot read the settings of the serial line")?;
    settings.make_raw();
    rustix::termios::tcsetattr(&line, OptionalActions::Now, &settings)
        .context("cannot set the serial line to raw mode")?;
    Ok(line)
}

/// Waits until everything is sent, and switches the machine off.
/// Errors: the kernel refuses, for example because this is not process 1.
pub fn power_off(line: Option<&File>) -> anyhow::Result<()> {
    if let Some(line) = line {
        rustix::termios::tcdrain(line).context("cannot send the rest")?;
    }
    rustix::system::reboot(RebootCommand::PowerOff).context("switch off")
}
