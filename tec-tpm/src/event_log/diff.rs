//! What two boots measured differently.

use std::fmt::Write as _;

use serde::Serialize;
use tec_core::pcr::{PcrIndex, PcrSet};

use super::bank::Bank;
use super::error::EventLogError;
use super::event::Event;
use super::parse::EventLog;
use super::view::{EventView, line};

/// Maximum number of pairs of events that are compared in one register; beyond that, what lies between the
/// common beginning and the common end is reported as replaced.
const MAX_PAIRS: usize = 1 << 22;

/// One line of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "change")]
#[non_exhaustive]
pub enum Change {
    /// Both logs have the event, in this order.
    Same {
        /// The event in the first log.
        event: EventView,
    },
    /// Only the first log has the event.
    Removed {
        /// The event in the first log.
        event: EventView,
    },
    /// Only the second log has the event.
    Added {
        /// The event in the second log.
        event: EventView,
    },
}

impl Change {
    /// Whether both logs have the event.
    pub fn is_same(&self) -> bool {
        matches!(self, Self::Same { .. })
    }
}

/// The comparison of one register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RegisterDiff {
    /// The register.
    pub pcr: PcrIndex,
    /// Value of the register after the first log, in hexadecimal.
    pub before: String,
    /// Value of the register after the second log, in hexadecimal.
    pub after: String,
    /// The events in the order of the logs.
    pub changes: Vec<Change>,
}

/// The comparison of two logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogDiff {
    /// Bank whose digests were compared.
    pub bank: &'static str,
    /// Registers that differ, in order.
    pub registers: Vec<RegisterDiff>,
}

impl LogDiff {
    /// Whether the logs fold to the same values with the same events.
    pub fn is_empty(&self) -> bool {
        self.registers.is_empty()
    }
}

impl EventLog<'_> {
    /// Compares the events that extend registers, by digest and type, register by register: the order between
    /// registers does not matter, and event data is not compared, since nothing proves it.
    ///
    /// # Errors
    /// [`EventLogError::NoBank`] and [`EventLogError::MissingDigest`] when one of the logs cannot
    /// be replayed in `bank`.
    pub fn diff(&self, other: &EventLog<'_>, bank: Bank) -> Result<LogDiff, EventLogError> {
        let (before, after) = (self.replay(bank)?, other.replay(bank)?);
        let extended: PcrSet = before.extended().iter().chain(after.extended().iter()).collect();
        let mut registers = Vec::new();
        for pcr in extended.iter() {
            let (ours, theirs) = (self.of(pcr), other.of(pcr));
            let same = ours.len() == theirs.len()
                && ours.iter().zip(&theirs).all(|(a, b)| is_same(a, b, bank));
            if !same {
                registers.push(RegisterDiff {
                    pcr,
                    before: hex::encode(before.value(pcr)),
                    after: hex::encode(after.value(pcr)),
                    changes: changes(&ours, &theirs, bank),
                });
            }
        }
        Ok(LogDiff { bank: bank.as_str(), registers })
    }

    fn of(&self, pcr: PcrIndex) -> Vec<&Event<'_>> {
        let events = self.events().iter();
        events.filter(|event| event.extends() == Some(pcr)).collect()
    }
}

fn is_same(a: &Event<'_>, b: &Event<'_>, bank: Bank) -> bool {
    a.kind == b.kind && a.digests.get(bank) == b.digests.get(bank)
}

/// Common beginning, common end, and the longest common subsequence of what lies between.
fn changes(ours: &[&Event<'_>], theirs: &[&Event<'_>], bank: Bank) -> Vec<Change> {
    let same = |(a, b): &(&&Event<'_>, &&Event<'_>)| is_same(a, b, bank);
    let start = ours.iter().zip(theirs).take_while(same).count();
    let (head, ours) = ours.split_at_checked(start).unwrap_or((ours, &[]));
    let theirs = theirs.get(start..).unwrap_or_default();
    let end = ours.iter().rev().zip(theirs.iter().rev()).take_while(same).count();
    let (ours, tail) = ours.split_at_checked(ours.len() - end).unwrap_or((ours, &[]));
    let theirs = theirs.get(..theirs.len() - end).unwrap_or_default();

    let kept = |event: &&Event<'_>| Change::Same { event: EventView::of(event, bank) };
    let mut changes: Vec<Change> = head.iter().map(kept).collect();
    changes.extend(between(ours, theirs, bank));
    changes.extend(tail.iter().map(kept));
    changes
}

fn between(ours: &[&Event<'_>], theirs: &[&Event<'_>], bank: Bank) -> Vec<Change> {
    let removed = |event: &Event<'_>| Change::Removed { event: EventView::of(event, bank) };
    let added = |event: &Event<'_>| Change::Added { event: EventView::of(event, bank) };
    let mut changes = Vec::new();
    let (mut i, mut j) = (0, 0);
    if ours.len().saturating_mul(theirs.len()) <= MAX_PAIRS {
        let table = Common::new(ours, theirs, bank);
        while let (Some(a), Some(b)) = (ours.get(i), theirs.get(j)) {
            if is_same(a, b, bank) {
                changes.push(Change::Same { event: EventView::of(a, bank) });
                (i, j) = (i + 1, j + 1);
            } else if table.length(i + 1, j) >= table.length(i, j + 1) {
                changes.push(removed(a));
                i += 1;
            } else {
                changes.push(added(b));
                j += 1;
            }
        }
    }
    changes.extend(ours.iter().skip(i).map(|event| removed(event)));
    changes.extend(theirs.iter().skip(j).map(|event| added(event)));
    changes
}

/// Lengths of the longest common subsequences of all suffixes of two sequences.
struct Common {
    width: usize,
    lengths: Vec<u32>,
}

impl Common {
    fn new(ours: &[&Event<'_>], theirs: &[&Event<'_>], bank: Bank) -> Self {
        let width = theirs.len() + 1;
        let mut table = Self { width, lengths: vec![0; (ours.len() + 1) * width] };
        for (i, a) in ours.iter().enumerate().rev() {
            for (j, b) in theirs.iter().enumerate().rev() {
                let length = if is_same(a, b, bank) {
                    table.length(i + 1, j + 1) + 1
                } else {
                    table.length(i + 1, j).max(table.length(i, j + 1))
                };
                if let Some(slot) = table.lengths.get_mut(i * width + j) {
                    *slot = length;
                }
            }
        }
        table
    }

    fn length(&self, i: usize, j: usize) -> u32 {
        self.lengths.get(i * self.width + j).copied().unwrap_or(0)
    }
}

impl LogDiff {
    /// A human-readable table: for each register, the values, then the events; those in only one log are
    /// marked with `-` or `+`.
    pub fn table(&self) -> String {
        if self.is_empty() {
            return format!("the logs do not differ in the {} bank\n", self.bank);
        }
        let mut text = String::new();
        for register in &self.registers {
            let _ = writeln!(text, "PCR {}", register.pcr);
            let _ = writeln!(text, "- {}\n+ {}", register.before, register.after);
            for change in &register.changes {
                let (mark, event) = match change {
                    Change::Same { event } => (' ', event),
                    Change::Removed { event } => ('-', event),
                    Change::Added { event } => ('+', event),
                };
                let _ = writeln!(text, "{mark} {}", line(event));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EventKind, EventLogBuilder};
    use super::*;

    const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;

    fn log(pcr4: &[&str], pcr7: &[&str]) -> Vec<u8> {
        let mut builder = EventLogBuilder::new();
        // Registers are interleaved in the first log and not in the second.
        for text in pcr7 {
            builder.measure(PcrIndex::SECURE_BOOT, EventKind::IPL, text.as_bytes());
        }
        for text in pcr4 {
            builder.measure(PCR4, EventKind::IPL, text.as_bytes());
        }
        builder.build()
    }

    fn marks(diff: &RegisterDiff) -> Vec<String> {
        let line = |change: &Change| match change {
            Change::Same { event } => format!("={}", event.detail.as_deref().unwrap_or("")),
            Change::Removed { event } => format!("-{}", event.detail.as_deref().unwrap_or("")),
            Change::Added { event } => format!("+{}", event.detail.as_deref().unwrap_or("")),
        };
        diff.changes.iter().map(line).collect()
    }

    #[test]
    fn a_log_does_not_differ_from_itself() {
        let bytes = log(&["shim", "grub"], &["db"]);
        let log = EventLog::parse(&bytes).unwrap();
        assert!(log.diff(&log, Bank::Sha256).unwrap().is_empty());
    }

    #[test]
    fn only_the_registers_that_differ_are_told_with_their_events() {
        let (a, b) = (
            log(&["shim", "grub", "old", "initrd"], &["db"]),
            log(&["shim", "shell", "grub", "new", "initrd"], &["db"]),
        );
        let (a, b) = (EventLog::parse(&a).unwrap(), EventLog::parse(&b).unwrap());
        let diff = a.diff(&b, Bank::Sha256).unwrap();
        assert_eq!(diff.registers.len(), 1);
        let register = &diff.registers[0];
        assert_eq!(register.pcr, PCR4);
        assert_eq!(marks(register), ["=shim", "+shell", "=grub", "-old", "+new", "=initrd"]);
        assert_eq!(register.after, hex::encode(b.replay(Bank::Sha256).unwrap().value(PCR4)));
    }

    #[test]
    fn a_bank_that_one_log_lacks_is_an_error() {
        let a = log(&["shim"], &[]);
        let a = EventLog::parse(&a).unwrap();
        assert_eq!(a.diff(&a, Bank::Sha384).unwrap_err(), EventLogError::NoBank(Bank::Sha384));
    }
}
