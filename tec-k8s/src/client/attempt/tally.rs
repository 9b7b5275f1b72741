//! Outcomes that are still to be reported, with counts.

use std::collections::BTreeMap;

use tec_core::id::{AttemptId, MachineId};
use tec_core::time::Timestamp;
use tokio::time::Instant;

use super::{MOST_LINES, MOST_OF_NOBODY, Outcome, QUIET};

/// One outcome for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) machine: MachineId,
    pub(super) outcome: Outcome,
    /// The last attempt with this outcome.
    pub(super) attempt: AttemptId,
    pub(super) at: Timestamp,
    /// Number of such attempts.
    pub(super) count: u64,
}

/// When the next outcome is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now(Line),
    At(Instant),
    Never,
}

/// Whether a waiting task must check again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Yes,
    No,
}

#[derive(Debug)]
struct Entry {
    attempt: AttemptId,
    at: Timestamp,
    count: u64,
    /// Number of them that were reported.
    told: u64,
    /// Not reported before this time.
    due: Instant,
}

/// All recent outcomes.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<(MachineId, Outcome), Entry>);

impl Tally {
    /// Counts an attempt; the same attempt counts only once. When there are too many, the reported ones are
    /// forgotten, and if there are none, this one is left to the log.
    pub(super) fn add(&mut self, line: Line, now: Instant) -> News {
        let key = (line.machine, line.outcome);
        if let Some(entry) = self.0.get_mut(&key) {
            let was_told = entry.told == entry.count;
            if entry.attempt != line.attempt {
                entry.count = entry.count.saturating_add(line.count);
            }
            (entry.attempt, entry.at) = (line.attempt, line.at);
            let is_news = was_told && entry.told < entry.count;
            return if is_news { News::Yes } else { News::No };
        }
        let is_full = |tally: &Self| {
            let of_nobody = |(_, outcome): &&(MachineId, Outcome)| outcome.is_of_nobody();
            tally.0.len() >= MOST_LINES
                || line.outcome.is_of_nobody()
                    && tally.0.keys().filter(of_nobody).count() >= MOST_OF_NOBODY
        };
        if is_full(self) {
            let is_needed = |entry: &Entry| entry.told < entry.count || entry.due > now;
            self.0.retain(|_, entry| is_needed(entry));
        }
        if is_full(self) {
            return News::No;
        }
        let Line { attempt, at, count, .. } = line;
        self.0.insert(key, Entry { attempt, at, count, told: 0, due: now });
        News::Yes
    }

    /// The outcome that has waited longest; those that machines signed come first. It is not due again before
    /// `QUIET` has passed, whether or not it is reported.
    pub(super) fn next(&mut self, now: Instant) -> Due {
        let waiting = self.0.iter_mut().filter(|(_, entry)| entry.told < entry.count);
        let order = |((_, outcome), entry): &(&(MachineId, Outcome), &mut Entry)| {
            (entry.due > now, outcome.is_of_nobody(), entry.due)
        };
        match waiting.min_by_key(order) {
            None => Due::Never,
            Some((_, entry)) if entry.due > now => Due::At(entry.due),
            Some(((machine, outcome), entry)) => {
                entry.due = now + QUIET;
                Due::Now(Line {
                    machine: *machine,
                    outcome: *outcome,
                    attempt: entry.attempt,
                    at: entry.at,
                    count: entry.count,
                })
            }
        }
    }

    /// Records that an outcome was reported.
    pub(super) fn told(&mut self, line: &Line) {
        if let Some(entry) = self.0.get_mut(&(line.machine, line.outcome)) {
            entry.told = line.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use tec_core::code::Code;
    use tec_core::testing::sample;

    use super::*;

    const REFUSED: Outcome = Outcome::Refused(Code::PcrMismatch);

    fn add(tally: &mut Tally, machine: u64, outcome: Outcome, attempt: u64, now: Instant) -> News {
        let line = Line {
            machine: sample::machine_id(machine),
            outcome,
            attempt: sample::attempt_id(attempt),
            at: Timestamp::from_unix_seconds(1_700_000_000),
            count: 1,
        };
        tally.add(line, now)
    }

    fn line(due: Due) -> Line {
        match due {
            Due::Now(line) => line,
            other => panic!("nothing is due: {other:?}"),
        }
    }

    #[test]
    fn a_flood_is_one_line_with_a_count_and_then_quiet() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        assert_eq!(add(&mut tally, 1, REFUSED, 1, now), News::Yes);
        for attempt in 2..=1000 {
            assert_eq!(add(&mut tally, 1, REFUSED, attempt, now), News::No);
        }
        let first = line(tally.next(now));
        assert_eq!((first.count, first.attempt), (1000, sample::attempt_id(1000)));
        tally.told(&first);
        assert_eq!(tally.next(now), Due::Never);
        assert_eq!(add(&mut tally, 1, REFUSED, 1001, now), News::Yes);
        assert_eq!(tally.next(now), Due::At(now + QUIET));
        assert_eq!(line(tally.next(now + QUIET)).count, 1001);
    }

    #[test]
    fn an_attempt_that_is_recorded_twice_counts_once() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        add(&mut tally, 1, REFUSED, 1, now);
        add(&mut tally, 1, REFUSED, 1, now);
        assert_eq!(line(tally.next(now)).count, 1);
    }

    #[test]
    fn each_outcome_is_told_and_a_loud_machine_holds_up_no_other() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        add(&mut tally, 1, REFUSED, 1, now);
        add(&mut tally, 1, Outcome::Released, 2, now);
        add(&mut tally, 2, REFUSED, 3, now);
        for attempt in 4..100 {
            add(&mut tally, 1, REFUSED, attempt, now);
        }
        let mut told: Vec<_> = (0..3).map(|_| line(tally.next(now))).collect();
        told.sort_by_key(|line| (line.machine, line.outcome));
        let told: Vec<_> = told.iter().map(|line| (line.outcome, line.count)).collect();
        assert_eq!(told, [(Outcome::Released, 1), (REFUSED, 97), (REFUSED, 1)]);
    }

    #[test]
    fn what_could_not_be_told_is_told_later() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        add(&mut tally, 1, REFUSED, 1, now);
        let lost = line(tally.next(now));
        assert_eq!(tally.next(now), Due::At(now + QUIET));
        assert_eq!(line(tally.next(now + QUIET)), lost);
    }

    #[test]
    fn what_anybody_can_send_leaves_room_and_comes_last() {
        const OF_NOBODY: Outcome = Outcome::Refused(Code::QuoteInvalid);
        let (mut tally, now) = (Tally::default(), Instant::now());
        for machine in 0..MOST_LINES as u64 {
            add(&mut tally, machine, OF_NOBODY, machine, now);
        }
        assert_eq!(tally.0.len(), MOST_OF_NOBODY);
        let later = now + QUIET / 2;
        assert_eq!(add(&mut tally, 1, REFUSED, 1, later), News::Yes);
        assert_eq!(line(tally.next(later)).outcome, REFUSED);
        assert_eq!(line(tally.next(later)).outcome, OF_NOBODY);
    }

    #[test]
    fn no_number_of_machines_takes_more_than_so_much_memory() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        for machine in 0..=MOST_LINES as u64 {
            add(&mut tally, machine, REFUSED, machine, now);
        }
        assert_eq!(tally.0.len(), MOST_LINES);
        let told = line(tally.next(now));
        tally.told(&told);
        add(&mut tally, u64::MAX, REFUSED, u64::MAX, now);
        assert_eq!(tally.0.len(), MOST_LINES, "it is too early to forget");
        add(&mut tally, u64::MAX, REFUSED, u64::MAX, now + QUIET);
        assert!(tally.0.contains_key(&(sample::machine_id(u64::MAX), REFUSED)));
    }
}
