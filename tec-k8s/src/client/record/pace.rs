//! Attempts of machines that attest more often than their records are written.
//!
//! After a burst, a machine causes one write in an interval; what happened in between waits in memory.

use std::collections::BTreeMap;

use tec_core::attest::Attempt;
use tec_core::id::{AttemptId, MachineId};
use tokio::time::Instant;

use super::bounded::{added, bounded, fitted};
use super::{MOST, QUIET};
use crate::api::{ConvertError, RecordedAttempt};

/// Writes that a machine may cause at once: more than a boot needs, with every repetition.
const BURST: u32 = 32;

#[derive(Debug, Default)]
pub(super) struct Pace(BTreeMap<MachineId, Machine>);

#[derive(Debug)]
struct Machine {
    /// Writes that are left, and the time as of which they are.
    left: u32,
    since: Instant,
    /// What the record was last given.
    written: Option<AttemptId>,
    waiting: Vec<RecordedAttempt>,
}

impl Machine {
    fn new(since: Instant) -> Self {
        Self { left: BURST, since, written: None, waiting: Vec::new() }
    }

    fn add(&mut self, attempt: &Attempt) -> Result<(), ConvertError> {
        let newest = self.waiting.first().map(|newest| newest.id.clone());
        let is_written = newest.is_some() && newest == self.written.map(|id| id.to_string());
        if is_written && newest != Some(attempt.id.to_string()) {
            // One that is recorded again; taken together, they would count it twice.
            self.waiting.insert(0, bounded(attempt, 0)?);
        } else {
            added(&mut self.waiting, attempt)?;
        }
        fitted(&mut self.waiting)
    }

    fn refill(&mut self, now: Instant) {
        while self.left < BURST && now >= self.since + QUIET {
            (self.left, self.since) = (self.left + 1, self.since + QUIET);
        }
        if self.left == BURST {
            self.since = now;
        }
    }

    fn take(&mut self) -> Vec<RecordedAttempt> {
        self.left = self.left.saturating_sub(1);
        self.written = self.waiting.first().and_then(|newest| newest.id.parse().ok());
        std::mem::take(&mut self.waiting)
    }
}

impl Pace {
    /// Adds an attempt to those that wait, and returns what is to be written now, newest first.
    pub(super) fn add(
        &mut self,
        machine: MachineId,
        attempt: &Attempt,
        now: Instant,
    ) -> Result<Option<Vec<RecordedAttempt>>, ConvertError> {
        let of = self.0.entry(machine).or_insert_with(|| Machine::new(now));
        of.add(attempt)?;
        of.refill(now);
        Ok((of.left > 0).then(|| of.take()))
    }

    /// The machines with something to write now. Those that were quiet for long are forgotten.
    pub(super) fn due(&mut self, now: Instant) -> Vec<MachineId> {
        self.0.retain(|_, of| {
            of.refill(now);
            of.left < BURST || !of.waiting.is_empty()
        });
        let due = self.0.iter().filter(|(_, of)| of.left > 0 && !of.waiting.is_empty());
        due.map(|(machine, _)| *machine).collect()
    }

    /// The machines for which something waits, however much they wrote.
    pub(super) fn all(&self) -> Vec<MachineId> {
        let waits = self.0.iter().filter(|(_, of)| !of.waiting.is_empty());
        waits.map(|(machine, _)| *machine).collect()
    }

    /// What waits for a machine, to be written: it waits no longer.
    pub(super) fn take(&mut self, machine: &MachineId) -> Vec<RecordedAttempt> {
        self.0.get_mut(machine).map(Machine::take).unwrap_or_default()
    }

    /// They could not be written.
    pub(super) fn failed(&mut self, machine: MachineId, entries: Vec<RecordedAttempt>) {
        if let Some(of) = self.0.get_mut(&machine) {
            of.waiting.extend(entries);
            of.waiting.truncate(MOST);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of a machine that wait, newest first.
    pub(super) fn waiting(&self, machine: &MachineId) -> &[RecordedAttempt] {
        self.0.get(machine).map_or(&[], |of| &of.waiting)
    }

    /// The machine for which this attempt waits.
    pub(super) fn machine_of(&self, id: &AttemptId) -> Option<MachineId> {
        let id = id.to_string();
        let has = |(_, of): &(&MachineId, &Machine)| of.waiting.iter().any(|entry| entry.id == id);
        self.0.iter().find(has).map(|(machine, _)| *machine)
    }
}

/// Adds attempts, newest first, to the entries of a record.
pub(super) fn merged(
    entries: &mut Vec<RecordedAttempt>,
    waiting: &[RecordedAttempt],
) -> Result<(), ConvertError> {
    for entry in waiting.iter().rev() {
        added(entries, &entry.to_core()?)?;
    }
    fitted(entries)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn a_machine_that_attests_all_the_time_causes_few_writes_and_its_newest_state_is_kept() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        let (mut record, mut writes) = (Vec::new(), 0);
        let one = sample::machine_id(1);
        for number in 1..=1000 {
            // Ten in a second.
            let now = begin + Duration::from_millis(100) * u32::try_from(number).unwrap();
            let attempt = sample::attempt_in_boot(number, 1);
            if let Some(entries) = pace.add(one, &attempt, now).unwrap() {
                merged(&mut record, &entries).unwrap();
                writes += 1;
            }
        }
        assert!((BURST + 9..=BURST + 10).contains(&writes), "{writes}");
        let other = pace.add(sample::machine_id(2), &sample::attempt_in_boot(1, 1), begin);
        assert!(other.unwrap().is_some(), "another machine does not wait");
        let late = begin + QUIET * 100;
        assert_eq!(pace.due(late), [one]);
        merged(&mut record, &pace.take(&one)).unwrap();
        let kept = record[0].to_core().unwrap();
        assert_eq!((kept.id, kept.repeats.unwrap().count), (sample::attempt_id(1000), 1000));
        assert!(pace.due(late + QUIET * BURST).is_empty() && pace.is_idle());
    }

    #[test]
    fn what_could_not_be_written_waits_and_is_found() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let (machine, id) = (sample::machine_id(1), sample::attempt_id(1));
        let entries = pace.add(machine, &sample::attempt_in_boot(1, 1), now).unwrap().unwrap();
        assert_eq!((pace.machine_of(&id), pace.waiting(&machine).len()), (None, 0));
        pace.failed(machine, entries);
        assert_eq!((pace.machine_of(&id), pace.due(now)), (Some(machine), vec![machine]));
        assert_eq!(pace.all(), [machine]);
    }
}
