//! What speakers and a listener leave on a volume, so that it outlives their pods: the number of the last
//! event that each speaker knows to be stored, and which numbers the listener received.
//!
//! ```text
//!   acknowledged/<subject>   a number                     written by a speaker, after each answer
//!   heard-<start>.json       by subject: highest, missing, doubled     written by the listener, each second
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

const ACKNOWLEDGED: &str = "acknowledged";
const HEARD: &str = "heard-";
const JSON: &str = ".json";

/// The numbers of one speaker that arrived. A number alone identifies an event, because each speaker has a
/// new name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    highest: u64,
    missing: BTreeSet<u64>,
    doubled: u64,
}

impl Heard {
    /// Records an event that arrived.
    pub fn hear(&mut self, number: u64) {
        if number > self.highest {
            self.missing.extend(self.highest + 1..number);
            self.highest = number;
        } else if !self.missing.remove(&number) {
            self.doubled += 1;
        }
    }

    /// How many events up to this number never arrived.
    fn lost(&self, acknowledged: u64) -> u64 {
        let gaps = self.missing.range(..=acknowledged).count();
        acknowledged.saturating_sub(self.highest) + u64::try_from(gaps).unwrap_or(u64::MAX)
    }
}

/// Events since the load began: how many are known to be stored, how many of these never arrived, and how
/// many arrived more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// Acknowledged to their speakers.
    pub sent: u64,
    /// Acknowledged, but never arrived.
    pub lost: u64,
    /// Arrived more than once.
    pub doubled: u64,
}

impl Count {
    /// Compares what was acknowledged with what arrived.
    fn of(acknowledged: &BTreeMap<String, u64>, heard: &BTreeMap<String, Heard>) -> Self {
        let nothing = Heard::default();
        let lost = |(subject, number): (&String, &u64)| {
            heard.get(subject).unwrap_or(&nothing).lost(*number)
        };
        Self {
            sent: acknowledged.values().sum(),
            lost: acknowledged.iter().map(lost).sum(),
            doubled: heard.values().map(|one| one.doubled).sum(),
        }
    }
}

/// A speaker's note of the last event that it knows to be stored.
#[derive(Debug)]
pub struct Note(File);

impl Note {
    /// A note for a speaker with this subject, which no speaker had before.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(volume: &Path, subject: &str) -> anyhow::Result<Self> {
        let folder = volume.join(ACKNOWLEDGED);
        fs::create_dir_all(&folder)?;
        let file = File::create_new(folder.join(subject))
            .context("cannot create the note of a speaker")?;
        Ok(Self(file))
    }

    /// Records that the event with this number is stored.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn acknowledge(&self, number: u64) -> anyhow::Result<()> {
        // One write of constant length: a reader, or a kill, never sees half a number.
        Ok(self.0.write_all_at(format!("{number:020}").as_bytes(), 0)?)
    }
}

/// Replaces the listener's file atomically.
///
/// # Errors
/// The file cannot be written.
pub fn write_heard(
    volume: &Path,
    start: &str,
    heard: &BTreeMap<String, Heard>,
) -> anyhow::Result<()> {
    let new = volume.join(format!("{HEARD}{start}.new"));
    fs::write(&new, serde_json::to_vec(heard)?)?;
    Ok(fs::rename(&new, volume.join(format!("{HEARD}{start}{JSON}")))?)
}

/// The number of the last event that each speaker knows to be stored; empty before there is one.
///
/// # Errors
/// A file cannot be read, or has no number.
pub fn acknowledged(volume: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let entries = match fs::read_dir(volume.join(ACKNOWLEDGED)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut all = BTreeMap::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = fs::read_to_string(entry.path())?;
        let number = if text.is_empty() { 0 } else { text.parse::<u64>().context(name.clone())? };
        all.insert(name, number);
    }
    Ok(all)
}

/// Which of these the listener received.
///
/// # Errors
/// It is not listening yet, or it was restarted, so that it is unknown what it missed in the meantime.
pub fn count(volume: &Path, acknowledged: &BTreeMap<String, u64>) -> anyhow::Result<Count> {
    let files = fs::read_dir(volume)?.collect::<Result<Vec<_>, _>>()?;
    let is_heard = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(HEARD) && name.ends_with(JSON)
    };
    let heard: Vec<_> = files.iter().map(fs::DirEntry::path).filter(is_heard).collect();
    match heard.as_slice() {
        [] => anyhow::bail!("the listener is not ready yet"),
        [heard] => Ok(Count::of(acknowledged, &serde_json::from_slice(&fs::read(heard)?)?)),
        more => anyhow::bail!("the listener was started {} times", more.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(numbers: &[u64]) -> Heard {
        let mut heard = Heard::default();
        for &number in numbers {
            heard.hear(number);
        }
        heard
    }

    #[test]
    fn the_last_events_of_a_speaker_that_was_killed_are_lost_too() {
        assert_eq!(heard(&[1, 2, 3]).lost(5), 2);
        assert_eq!(heard(&[1, 3]).lost(5), 3);
        // Stored, but the speaker died before it knew.
        assert_eq!(heard(&[1, 2, 3]).lost(2), 0);
    }

    #[test]
    fn an_event_that_comes_late_is_neither_lost_nor_doubled() {
        let late = heard(&[1, 3, 2, 4]);
        assert_eq!((late.lost(4), late.doubled), (0, 0));
        let again = heard(&[1, 2, 2, 1, 3]);
        assert_eq!((again.lost(3), again.doubled), (0, 2));
    }

    #[test]
    fn a_speaker_that_nobody_heard_is_counted_and_a_second_listener_is_an_error() {
        let volume = tempfile::tempdir().unwrap();
        let volume = volume.path();
        assert_eq!(acknowledged(volume).unwrap(), BTreeMap::new());
        for (subject, number) in [("evt.a", 2), ("evt.b", 3)] {
            let note = Note::create(volume, subject).unwrap();
            (1..=number).for_each(|number| note.acknowledge(number).unwrap());
        }
        let sent = acknowledged(volume).unwrap();
        count(volume, &sent).unwrap_err();
        let all = BTreeMap::from([("evt.a".to_owned(), heard(&[1, 2, 2]))]);
        write_heard(volume, "first", &all).unwrap();
        let found = count(volume, &sent).unwrap();
        assert_eq!(found, Count { sent: 5, lost: 3, doubled: 1 });
        write_heard(volume, "second", &BTreeMap::new()).unwrap();
        count(volume, &sent).unwrap_err();
    }
}
