//! Reports the steps of a boot to the host, with their times.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::{fmt, fs};

use anyhow::Context as _;

use crate::{frame, system};

/// The second serial port; the first is the console.
const LINE: &str = "/dev/ttyS1";
const UPTIME: &str = "/proc/uptime";

/// A step of a boot, named as in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// The first of our programs runs.
    Started,
    /// Devices are available.
    Devices,
    /// The network is up.
    Network,
    /// The disk is not bound yet: Ignition starts.
    FirstBoot,
    /// Ignition has its config.
    Fetched,
    /// Ignition has encrypted and bound the disk.
    Bound,
    /// The disk is bound: Clevis starts.
    Unlocking,
    /// Clevis has opened it.
    Unlocked,
    /// Clevis has not opened it; the text is its output. The host decides what happens next.
    Refused,
    /// A key typed on the console has opened it.
    Typed,
    /// Something else failed; the text describes it.
    Failed,
    /// The opened root runs; the text is the number of times it has run.
    Root,
    /// The root's recovery key is up to date; the text is the result of its unit.
    Recovery,
    /// The node starts to rotate its disk key.
    Rotating,
    /// The node has rotated its disk key; the text is the output of the command.
    Rotated,
}

/// All steps with their names.
const NAMES: [(Mark, &str); 15] = [
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
    (Mark::Rotating, "rotating"),
    (Mark::Rotated, "rotated"),
];

/// The host's answer when a disk stays closed, or when an attended root runs, as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No one is at the console: the machine switches off.
    GoOff,
    /// Someone is at the console.
    Ask,
    /// The node rotates its disk key.
    Rotate,
}

impl Answer {
    /// The byte sent over the connection.
    pub const fn byte(self) -> u8 {
        match self {
            Self::GoOff => b'0',
            Self::Ask => b'1',
            Self::Rotate => b'2',
        }
    }

    /// The answer of a byte.
    fn of_byte(byte: u8) -> Self {
        let all = [Self::Ask, Self::Rotate];
        all.into_iter().find(|answer| answer.byte() == byte).unwrap_or(Self::GoOff)
    }
}

impl Mark {
    /// The step with this name.
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

/// The connection to the host.
#[derive(Debug)]
pub struct Marks {
    line: File,
}

impl Marks {
    /// Opens the connection.
    pub fn open() -> anyhow::Result<Self> {
        let line = system::open_line(Path::new(LINE))?;
        Ok(Self { line })
    }

    /// Announces frames.
    pub fn greet(&mut self) -> anyhow::Result<()> {
        self.line.write_all(frame::GREETING).context("greet")
    }

    /// Reports a step: seconds since the kernel started, a line end, and the text.
    pub fn tell(&mut self, mark: Mark, text: &str) -> anyhow::Result<()> {
        let uptime = fs::read_to_string(UPTIME).context("cannot read the uptime")?;
        let seconds = uptime.split(' ').next().unwrap_or_default();
        let content = format!("{seconds}\n{text}");
        frame::write(&mut self.line, &mark.to_string(), content.as_bytes())
            .with_context(|| format!("cannot report {mark}"))
    }

    /// Reports that the disk stays closed, and waits for the host's decision.
    pub fn refused(&mut self, text: &str) -> anyhow::Result<Answer> {
        self.tell(Mark::Refused, text)?;
        self.answer()
    }

    /// Waits for the host's decision.
    pub fn answer(&mut self) -> anyhow::Result<Answer> {
        let mut byte = [0];
        self.line.read_exact(&mut byte).context("cannot receive the answer")?;
        let [byte] = byte;
        Ok(Answer::of_byte(byte))
    }

    /// Ends the report and switches the machine off.
    pub fn switch_off(mut self) -> anyhow::Result<()> {
        frame::write_end(&mut self.line).context("cannot end the report")?;
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

    #[test]
    fn every_answer_is_found_by_its_byte() {
        for answer in [Answer::GoOff, Answer::Ask, Answer::Rotate] {
            assert_eq!(Answer::of_byte(answer.byte()), answer);
        }
        assert_eq!(Answer::of_byte(0), Answer::GoOff);
    }
}
