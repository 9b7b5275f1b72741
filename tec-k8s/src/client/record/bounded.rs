//! Cuts attempts to a size that one etcd can hold for many machines.

use tec_core::attest::Attempt;

use super::MOST;
use crate::api::{ConvertError, RecordedAttempt};

/// Maximum size in bytes of the newest attempt: enough for a boot through GRUB, so that it can be approved.
const NEWEST: usize = 24 * 1024;
/// Number of attempts that are kept in full.
const AT_LENGTH: usize = 3;
/// Maximum size in bytes of each of those: enough for a mismatch of one register with its events.
const LONG: usize = 8 * 1024;
/// Maximum size in bytes of each of the others: enough for every check that passed.
const SHORT: usize = 3 * 1024;

fn limit(place: usize) -> usize {
    match place {
        0 => NEWEST,
        1..AT_LENGTH => LONG,
        _ => SHORT,
    }
}

/// The attempt as the entry at this position, newest first.
pub(super) fn bounded(attempt: &Attempt, place: usize) -> Result<RecordedAttempt, ConvertError> {
    RecordedAttempt::from_core(&attempt.within(limit(place)))
}

/// Adds an attempt to the entries of a record, newest first. It replaces the entry with its ID, or the newest
/// entry if it repeats that one.
pub(super) fn added(
    entries: &mut Vec<RecordedAttempt>,
    attempt: &Attempt,
) -> Result<(), ConvertError> {
    let new = bounded(attempt, 0)?;
    let known = entries.iter().position(|entry| entry.id == new.id);
    let old =
        known.or_else(|| (!entries.is_empty()).then_some(0)).and_then(|at| entries.get_mut(at));
    let kept = old.as_ref().and_then(|old| old.to_core().ok());
    // Cut like the entry that it is compared with.
    let cut = new.to_core()?;
    match (old, kept) {
        (Some(old), Some(kept)) if kept.id == cut.id || cut.repeats(&kept) => {
            *old = RecordedAttempt::from_core(&cut.in_place_of(&kept))?;
        }
        (Some(old), None) if known.is_some() => *old = new,
        _ => entries.insert(0, new),
    }
    Ok(())
}

/// Cuts the entries of a record to its limits. Entries that cannot be parsed are dropped.
pub(super) fn fitted(entries: &mut Vec<RecordedAttempt>) -> Result<(), ConvertError> {
    entries.truncate(MOST);
    let mut kept = Vec::with_capacity(entries.len());
    for (place, entry) in entries.drain(..).enumerate() {
        match entry.to_core() {
            _ if entry.attempt.len() <= limit(place) => kept.push(entry),
            Ok(attempt) => kept.push(bounded(&attempt, place)?),
            Err(_) => {}
        }
    }
    *entries = kept;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tec_core::explain::Gate;
    use tec_core::testing::sample;

    use super::*;

    #[test]
    fn a_record_stays_small_and_says_what_is_cut() {
        let mut attempt = sample::attempt(1, Some(1));
        attempt.ladder.fail(Gate::Pcrs, "x".repeat(100_000));
        let entry = bounded(&attempt, 0).unwrap();
        assert!(entry.attempt.len() <= LONG, "{}", entry.attempt.len());
        assert_eq!(entry.to_core().unwrap().id, attempt.id);
    }

    #[test]
    fn what_the_newest_attempt_measured_is_kept_so_that_it_can_be_approved() {
        let mut attempt = sample::attempt(1, Some(1));
        attempt.measured = sample::image(1).expected;
        let register = attempt.measured.pcrs[0].clone();
        let events = register.events.iter().cycle().take(90).cloned().collect();
        attempt.measured.pcrs[0].events = events;
        let mut entries = vec![bounded(&attempt, 0).unwrap()];
        assert_eq!(entries[0].to_core().unwrap(), attempt);
        entries.insert(0, bounded(&sample::attempt(2, Some(1)), 0).unwrap());
        fitted(&mut entries).unwrap();
        let older = entries[1].to_core().unwrap();
        assert!(older.measured.is_empty() && older.id == attempt.id);
    }

    #[test]
    fn an_attempt_too_long_to_keep_is_recognized_when_it_is_repeated() {
        let refused = |number| {
            let mut refused = sample::attempt_in_boot(number, 1);
            refused.ladder.fail(Gate::Pcrs, "x".repeat(100_000));
            refused
        };
        let mut entries = Vec::new();
        for number in 1..=3 {
            added(&mut entries, &refused(number)).unwrap();
            fitted(&mut entries).unwrap();
        }
        let kept: Vec<_> = entries.iter().map(|entry| entry.to_core().unwrap()).collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].repeats.map(|repeats| repeats.count), Some(3));
    }

    #[test]
    fn entries_are_bounded_in_number_and_garbage_goes() {
        let entry = |number| bounded(&sample::attempt(number, Some(1)), 0).unwrap();
        let mut entries: Vec<_> = (0..40).map(entry).collect();
        entries[9].attempt = "x".repeat(SHORT + 1);
        fitted(&mut entries).unwrap();
        assert_eq!(entries.len(), MOST - 1);
    }
}
