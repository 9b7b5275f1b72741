//! Snapshots of the vault's storage: when one is due, what it is called, and which ones are removed.
//!
//! A snapshot holds everything in the vault, encrypted under the vault's key. It is useless without the
//! wrapped key that was on the volume at the time, which is kept next to it, and without the Secret.

use std::str::FromStr;
use std::time::Duration;

use tec_core::time::Timestamp;

use super::Request;

/// Path where the vault sends a snapshot (OpenBao, "/sys/storage/raft").
pub(super) const PATH: &str = "sys/storage/raft/snapshot";
/// Path where it takes one, whatever key encrypted it.
pub(super) const RESTORE: &str = "sys/storage/raft/snapshot-force";
/// Parts of a name around the time.
const NAME: (&str, &str) = ("vault-", ".snap");
/// End of the name of the wrapped key that belongs to a snapshot.
const KEY: &str = ".key";
/// Length of the time in a name, such as `20261127T054600Z`.
const TIME: usize = 16;

/// When snapshots are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Interval between two snapshots.
    pub every: Duration,
    /// Number of snapshots that are kept.
    pub keep: usize,
}

/// Requests a snapshot. The answer is not JSON, and may be large.
pub fn take() -> Request {
    Request::get(PATH)
}

/// Name of the file of a snapshot that was taken at this time.
pub fn name(taken: Timestamp) -> String {
    let time: String = taken.to_string().chars().filter(|c| !matches!(c, '-' | ':')).collect();
    let (before, after) = NAME;
    format!("{before}{time}{after}")
}

/// Name of the wrapped key that belongs to the snapshot with this name.
pub fn key_name(snapshot: &str) -> String {
    let (_, after) = NAME;
    format!("{}{KEY}", snapshot.strip_suffix(after).unwrap_or(snapshot))
}

/// When the snapshot with this name was taken; `None` if the name is not that of a snapshot.
pub fn taken(name: &str) -> Option<Timestamp> {
    let (before, after) = NAME;
    let time = name.strip_prefix(before)?.strip_suffix(after)?;
    if time.len() != TIME || !time.is_ascii() {
        return None;
    }
    let (date, clock) = time.split_once('T')?;
    let part = |text: &str, from: usize, to: usize| text.get(from..to).map(str::to_owned);
    let (year, month, day) = (part(date, 0, 4)?, part(date, 4, 6)?, part(date, 6, 8)?);
    let (hour, minute, rest) = (part(clock, 0, 2)?, part(clock, 2, 4)?, part(clock, 4, 7)?);
    format!("{year}-{month}-{day}T{hour}:{minute}:{rest}").parse().ok()
}

/// Name of a file of a backup: a snapshot, or the wrapped key that belongs to it. It is never a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotFile {
    /// Everything in the vault, encrypted under its key.
    Snapshot(String),
    /// That key, wrapped.
    Key(String),
}

/// The name is not that of a file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a snapshot or of its key, such as vault-20261127T054600Z.snap")]
pub struct SnapshotFileError(String);

impl SnapshotFile {
    /// The name.
    pub fn name(&self) -> &str {
        match self {
            Self::Snapshot(name) | Self::Key(name) => name,
        }
    }
}

impl FromStr for SnapshotFile {
    type Err = SnapshotFileError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let (_, after) = NAME;
        let snapshot = name.strip_suffix(KEY).map(|before| format!("{before}{after}"));
        match snapshot {
            None if taken(name).is_some() => Ok(Self::Snapshot(name.to_owned())),
            Some(snapshot) if taken(&snapshot).is_some() => Ok(Self::Key(name.to_owned())),
            _ => Err(SnapshotFileError(name.to_owned())),
        }
    }
}

impl Schedule {
    /// Whether a snapshot is due, given the times of those that exist.
    pub fn is_due(&self, taken: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> bool {
        age(taken, now).is_none_or(|age| age >= self.every)
    }

    /// The names to remove after the snapshot `new` was taken: the oldest ones. Names that are not those of
    /// snapshots are left alone.
    pub fn superfluous<'a>(&self, names: &'a [String], new: &str) -> Vec<&'a str> {
        let mut others: Vec<_> = names
            .iter()
            .filter(|name| *name != new)
            .filter_map(|name| Some((taken(name)?, name.as_str())))
            .collect();
        others.sort();
        let keep = self.keep.saturating_sub(1);
        others.truncate(others.len().saturating_sub(keep));
        others.into_iter().map(|(_, name)| name).collect()
    }
}

/// Age of the latest snapshot; `None` if there is none. Times that are still to come belong to a clock that
/// was set back, and do not count.
pub fn age(taken: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> Option<Duration> {
    let latest = taken.into_iter().filter(|taken| *taken <= now).max()?;
    let age = now.unix_seconds().saturating_sub(latest.unix_seconds());
    Some(Duration::from_secs(u64::try_from(age).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_unix_seconds(1_795_000_000 + hours * 3600)
    }

    #[test]
    fn a_name_tells_when_the_snapshot_was_taken_and_any_other_name_tells_nothing() {
        let name = name(at(0));
        assert_eq!(name, "vault-20261118T110640Z.snap");
        assert_eq!(taken(&name), Some(at(0)));
        assert_eq!(key_name(&name), "vault-20261118T110640Z.key");
        let others = [
            "vault-20261118T110640Z.key",
            "vault-20261318T110640Z.snap",
            "vault-2026-11-18T11:06:40Z.snap",
            "vault-.snap",
            "vault-2026111\u{e9}T11064Z.snap",
            "lost+found",
        ];
        for other in others {
            assert_eq!(taken(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_of_a_backup_is_a_snapshot_or_its_key_and_never_a_path() {
        let (name, key) = (name(at(0)), key_name(&name(at(0))));
        assert_eq!(name.parse(), Ok(SnapshotFile::Snapshot(name)));
        assert_eq!(key.parse(), Ok(SnapshotFile::Key(key)));
        let others = [
            "",
            ".key",
            "snapshot.tmp",
            "../vault-20261118T110640Z.snap",
            "vault-20261118T110640Z.snap/../../unseal.v1.json",
            "vault-20261318T110640Z.key",
            "vault-20261118T110640Z.snap.key",
        ];
        for other in others {
            let refused = other.parse::<SnapshotFile>();
            assert_eq!(refused, Err(SnapshotFileError(other.to_owned())));
        }
    }

    #[test]
    fn a_snapshot_is_due_when_the_latest_one_is_as_old_as_the_interval() {
        let schedule = Schedule { every: DAY, keep: 7 };
        assert!(schedule.is_due([], at(0)));
        assert!(!schedule.is_due([at(0), at(-48)], at(23)));
        assert!(schedule.is_due([at(0)], at(24)));
        // Otherwise a clock that was set back would prevent snapshots for a year.
        assert!(schedule.is_due([at(9000)], at(0)));
        assert!(!schedule.is_due([at(9000), at(0)], at(1)));
    }

    #[test]
    fn the_oldest_are_removed_and_never_the_new_one_or_a_strange_file() {
        let schedule = Schedule { every: DAY, keep: 2 };
        let strange = "vault.tar".to_owned();
        let names = vec![name(at(3)), name(at(1)), strange, name(at(2)), name(at(4))];
        assert_eq!(schedule.superfluous(&names, &name(at(4))), [name(at(1)), name(at(2))]);
        // Taken after a clock was set back.
        assert_eq!(schedule.superfluous(&names, &name(at(1))), [name(at(2)), name(at(3))]);
        assert!(schedule.superfluous(&names[..2], &name(at(3))).is_empty());
    }
}
