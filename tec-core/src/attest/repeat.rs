//! Merges attempts that repeat one another, so that a node that attests every few minutes does not
//! fill the log.
//!
//! ```text
//! released ─► attested ─► attested ─► attested ─► refused ─► refused       one boot, six attempts
//! └ kept      └──────── one, seen 3 times ──────┘ └ one, seen twice ┘      three entries
//! ```

use serde::{Deserialize, Serialize};

use super::Attempt;
use crate::id::AttemptId;
use crate::time::Timestamp;

/// Number of IDs that are kept of attempts of which a repetition took the place: a console shows the last eight
/// refusals.
const EARLIER: usize = 8;

/// Attempts of one boot with the same outcome, of which only the last is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Repeats {
    /// When the first of them arrived.
    pub first: Timestamp,
    /// How many there were, including the last one.
    pub count: u64,
}

impl Attempt {
    /// Whether this attempt adds nothing to `last`, the machine's last one: the same key signed in
    /// the same boot, with the same outcome.
    ///
    /// # Security
    /// An attempt that is unsigned or has no signed clock neither repeats another nor is repeated:
    /// what anyone can send must not replace what a machine signed. Any difference in the outcome
    /// counts, so a refusal stays visible after a success, and vice versa.
    pub fn repeats(&self, last: &Self) -> bool {
        let is_signed = |attempt: &Self| {
            !attempt.unsigned
                && attempt.machine.is_some()
                && attempt.ak.is_some()
                && attempt.boot.is_some()
        };
        let source = |attempt: &Self| (attempt.machine, attempt.ak, attempt.boot);
        is_signed(self)
            && is_signed(last)
            && source(self) == source(last)
            && self.has_outcome_of(last)
    }

    /// This attempt in place of `last`, which it [repeats](Self::repeats) or records again.
    #[must_use]
    pub fn in_place_of(&self, last: &Self) -> Self {
        let mut kept = self.clone();
        if self.id != last.id {
            let of = |one: &Self| one.repeats.unwrap_or(Repeats { first: one.at, count: 1 });
            let (before, own) = (of(last), of(self));
            kept.repeats = Some(Repeats {
                first: before.first.min(own.first),
                count: before.count.saturating_add(own.count),
            });
            let earlier = last.earlier.iter().chain([&last.id]).chain(&self.earlier);
            let skipped = (last.earlier.len() + 1 + self.earlier.len()).saturating_sub(EARLIER);
            kept.earlier = earlier.skip(skipped).copied().collect();
        } else if self.has_outcome_of(last) {
            (kept.repeats, kept.earlier) = (last.repeats, last.earlier.clone());
        } else {
            // Recorded further on: what it stood for had the outcome of then.
            (kept.repeats, kept.earlier) = (None, Vec::new());
        }
        kept
    }

    /// Whether this is its ID, or one that a node was told of an attempt that it replaced.
    pub fn is_known_as(&self, id: &AttemptId) -> bool {
        self.id == *id || self.earlier.contains(id)
    }

    /// Details of checks, such as times, may differ; findings must not.
    fn has_outcome_of(&self, other: &Self) -> bool {
        let checks = |attempt: &Self| -> Vec<_> {
            attempt.ladder.steps.iter().map(|step| (step.gate, step.state)).collect()
        };
        self.ladder.code == other.ladder.code
            && self.booted == other.booted
            && self.ladder.mismatch == other.ladder.mismatch
            && checks(self) == checks(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ak::TpmBoot;
    use crate::explain::Gate;
    use crate::testing::sample;

    fn repeats(change: impl FnOnce(&mut Attempt)) -> bool {
        let last = sample::attempt_in_boot(1, 7);
        let mut next = sample::attempt_in_boot(2, 7);
        change(&mut next);
        next.repeats(&last)
    }

    #[test]
    fn the_same_outcome_in_the_same_boot_is_one_attempt_with_a_count() {
        assert!(repeats(|_| {}));
        let mut kept = sample::attempt_in_boot(1, 7);
        for number in 2..=5 {
            kept = sample::attempt_in_boot(number, 7).in_place_of(&kept);
        }
        assert_eq!((kept.id, kept.at), (sample::attempt_id(5), sample::time(5)));
        assert_eq!(kept.repeats, Some(Repeats { first: sample::time(1), count: 5 }));
    }

    #[test]
    fn what_a_console_showed_last_names_the_attempt_that_is_kept() {
        let mut kept = sample::attempt_in_boot(1, 7);
        for number in 2..=20 {
            kept = sample::attempt_in_boot(number, 7).in_place_of(&kept);
        }
        let known = (1..=21).filter(|number| kept.is_known_as(&sample::attempt_id(*number)));
        assert_eq!(known.collect::<Vec<_>>(), (12..=20).collect::<Vec<_>>());
        let twice = sample::attempt_in_boot(21, 7).in_place_of(&sample::attempt_in_boot(20, 7));
        assert_eq!(twice.in_place_of(&kept).earlier.len(), EARLIER);
    }

    #[test]
    fn a_refusal_after_a_success_is_a_new_attempt_and_so_is_a_success_after_it() {
        let refused = |gate| {
            let mut refused = sample::attempt_in_boot(2, 7);
            refused.ladder.fail(gate, "differs");
            refused
        };
        let passed = sample::attempt_in_boot(1, 7);
        assert!(!refused(Gate::Pcrs).repeats(&passed));
        assert!(!passed.repeats(&refused(Gate::Pcrs)));
        assert!(!refused(Gate::Pcrs).repeats(&refused(Gate::EventLog)), "for another reason");
        assert!(!repeats(|next| next.ladder.pass(Gate::Key, "released")));
    }

    #[test]
    fn another_boot_or_key_or_machine_is_a_new_attempt() {
        assert!(!repeats(|next| next.boot = Some(TpmBoot { resets: 8, restarts: 0 })));
        assert!(!repeats(|next| next.boot = Some(TpmBoot { resets: 7, restarts: 1 })));
        assert!(!repeats(|next| next.ak = Some(sample::public_key(2).fingerprint())));
        assert!(!repeats(|next| next.machine = Some(sample::machine_id(2))));
    }

    #[test]
    fn unsigned_evidence_replaces_nothing_and_nothing_replaces_it() {
        assert!(!repeats(|next| next.unsigned = true));
        let mut last = sample::attempt_in_boot(1, 7);
        last.unsigned = true;
        let mut next = sample::attempt_in_boot(2, 7);
        assert!(!next.repeats(&last));
        next.unsigned = true;
        assert!(!next.repeats(&last));
        assert!(!repeats(|next| next.boot = None), "no clock was signed");
    }

    #[test]
    fn an_attempt_that_goes_on_to_its_key_takes_no_count_along() {
        let first = sample::attempt_in_boot(1, 7);
        let second = sample::attempt_in_boot(2, 7);
        let kept = second.in_place_of(&first);
        assert_eq!(second.in_place_of(&kept), kept, "recorded again");
        let mut released = second;
        released.ladder.pass(Gate::Key, "released");
        assert_eq!(released.in_place_of(&kept), released);
    }

    #[test]
    fn attempts_of_earlier_versions_are_read_and_written_as_they_were() {
        let older = serde_json::to_string(&sample::attempt(1, Some(1))).unwrap();
        assert!(!older.contains("repeats") && !older.contains("\"boot\""), "{older}");
        let read: Attempt = serde_json::from_str(&older).unwrap();
        assert_eq!((read.boot, read.repeats), (None, None));
        assert_eq!(serde_json::to_string(&read).unwrap(), older);
    }
}
