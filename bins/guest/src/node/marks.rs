//! Telling the host what happens, and when.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::{fmt, fs};

use anyhow::Context as _;

use crate::{frame, system};

/// The second serial port; the first is the console.
const LINE: &str = "/dev/ttyS1";
const UPTIME: &str = "/proc/uptime";

/// A step of a boot, as its frame is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// The first program of ours runs.
    Started,
    /// Devices are there.
    Devices,
    /// The network is up.
    Network,
    /// The disk is not bound yet: Ignition begins.
    FirstBoot,
    /// Ignition has its config.
    Fetched,
    /// Ignition has encrypted and bound the disk.
    Bound,
    /// The disk is bound: Clevis begins.
    Unlocking,
    /// Clevis has opened it.
    Unlocked,
    /// Clevis has not opened it; the text is what it said. The host says what happens now.
    Refused,
    /// A key that was typed on the console has opened it.
    Typed,
    /// Something else went wrong; the text says what.
    Failed,
    /// The opened root runs; the text is how often it has.
    Root,
    /// The root's recovery key is as it should be; the text is how its unit ended.
    Recovery,
}

/// All of them with their names.
const NAMES: [(Mark, &str); 13] = [
    (Mark::Started, "started"),
    (Mark::Devices, "devices"),
    (Mark::Network, "network"),
    (Mark::FirstBoot, "first-boot"),
    (Mark::Fetched, "fetched"),
    (Mark::Bound, "bound"),
    (Mark::Unlocking, "unlocking"),
    (Mark::Unlocked, "unlocked"),
    (Mark::Refused, "refused"),
    (Mark::Typed, "typed"),
    (Mark::Failed, "failed"),
    (Mark::Root, "root"),
    (Mark::Recovery, "recovery"),
];

/// What the host answers when a disk stays closed, as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "both ends are built together")]
pub enum Answer {
    /// Nobody is there: the machine goes off.
    GoOff,
    /// Somebody sits at the console.
    Ask,
}

impl Answer {
    /// On the line.
    pub const fn byte(self) -> u8 {
        match self {
            Self::GoOff => b'0',
            Self::Ask => b'1',
        }
    }
}

impl Mark {
    /// The mark of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        let found = NAMES.into_iter().find(|(_, own)| *own == name);
        found.map(|(mark, _)| mark)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.into_iter().find(|(mark, _)| mark == self);
        f.pad(name.map_or("", |(_, name)| name))
    }
}

/// The line to the host.
#[derive(Debug)]
pub struct Marks {
    line: File,
}

impl Marks {
    /// Opens the line.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> anyhow::Result<Self> {
        let line = system::open_line(Path::new(LINE))?;
        Ok(Self { line })
    }

    /// Says that frames follow.
    ///
    /// # Errors
    /// The line is broken.
    pub fn greet(&mut self) -> anyhow::Result<()> {
        self.line.write_all(frame::GREETING).context("greet")
    }

    /// Tells of a step: seconds since the kernel started, a line end, and the text.
    ///
    /// # Errors
    /// The line is broken.
    pub fn tell(&mut self, mark: Mark, text: &str) -> anyhow::Result<()> {
        let uptime = fs::read_to_string(UPTIME).context("read the uptime")?;
        let seconds = uptime.split(' ').next().unwrap_or_default();
        let content = format!("{seconds}\n{text}");
        frame::write(&mut self.line, &mark.to_string(), content.as_bytes())
            .with_context(|| format!("tell of {mark}"))
    }

    /// Tells that the disk stays closed, and waits for what shall happen now.
    ///
    /// # Errors
    /// The line is broken.
    pub fn refused(&mut self, text: &str) -> anyhow::Result<Answer> {
        self.tell(Mark::Refused, text)?;
        let mut byte = [0];
        self.line.read_exact(&mut byte).context("hear the answer")?;
        Ok(if byte == [Answer::Ask.byte()] { Answer::Ask } else { Answer::GoOff })
    }

    /// Ends the report and switches the machine off.
    ///
    /// # Errors
    /// The line is broken, or the kernel refuses.
    pub fn switch_off(mut self) -> anyhow::Result<()> {
        frame::write_end(&mut self.line).context("end the report")?;
        rustix::fs::sync();
        system::power_off(Some(&self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_found_by_its_name() {
        for (mark, name) in NAMES {
            assert_eq!(mark.to_string(), name);
            assert_eq!(Mark::of_name(name), Some(mark));
        }
        assert_eq!(Mark::of_name("nothing"), None);
    }
}
