//! What process 1 has to do: file systems, the serial line, and the power switch.

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

/// File systems that the kernel offers and that the report reads.
const FILE_SYSTEMS: [(&str, &str); 3] =
    [("sysfs", "/sys"), ("devtmpfs", "/dev"), ("securityfs", "/sys/kernel/security")];
/// How long a device may take to appear.
const DEVICE_LIMIT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(50);

/// Mounts the file systems that the report reads.
///
/// # Errors
/// Names the file system that cannot be mounted.
pub fn mount() -> anyhow::Result<()> {
    for (kind, place) in FILE_SYSTEMS {
        fs::create_dir_all(place).with_context(|| format!("create {place}"))?;
        rustix::mount::mount(kind, place, kind, MountFlags::empty(), None)
            .with_context(|| format!("mount {kind} on {place}"))?;
    }
    Ok(())
}

/// Waits until a device has appeared.
///
/// # Errors
/// It did not in time.
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

/// Opens a serial line for bytes as they are.
///
/// # Errors
/// There is no such line.
pub fn open_line(device: &Path) -> anyhow::Result<File> {
    let line = OpenOptions::new()
        .read(true)
        .write(true)
        // It is no terminal: programs that ask a person do not ask here.
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(device)
        .with_context(|| format!("open {}", device.display()))?;
    let mut settings = rustix::termios::tcgetattr(&line).context("read the line's settings")?;
    settings.make_raw();
    rustix::termios::tcsetattr(&line, OptionalActions::Now, &settings)
        .context("make the line raw")?;
    Ok(line)
}

/// Waits until the line has sent everything, and switches the machine off.
///
/// # Errors
/// The kernel refuses, for example since this is not process 1.
pub fn power_off(line: Option<&File>) -> anyhow::Result<()> {
    if let Some(line) = line {
        rustix::termios::tcdrain(line).context("send the rest")?;
    }
    rustix::system::reboot(RebootCommand::PowerOff).context("switch off")
}
