//! Attempts that belong to no machine, or that anyone can make in the name of one.

use std::collections::VecDeque;

use tec_core::attest::Attempt;
use tec_core::id::AttemptId;

use super::MOST;

/// The latest of them, newest first.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// Signed by an unknown key.
    signed: VecDeque<Attempt>,
    unsigned: VecDeque<Attempt>,
    is_new: bool,
}

impl Strangers {
    pub(super) fn add(&mut self, attempt: &Attempt) {
        let side = if attempt.unsigned { &mut self.unsigned } else { &mut self.signed };
        side.push_front(attempt.clone());
        side.truncate(MOST);
        self.is_new = true;
    }

    /// The attempt is being recorded again, perhaps elsewhere.
    pub(super) fn forget(&mut self, id: &AttemptId) {
        self.signed.retain(|known| known.id != *id);
        self.unsigned.retain(|known| known.id != *id);
    }

    pub(super) fn find(&self, id: &AttemptId) -> Option<Attempt> {
        self.signed.iter().chain(&self.unsigned).find(|known| known.id == *id).cloned()
    }

    /// Whether there is something to write, which then counts as written.
    pub(super) fn begin(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    pub(super) fn failed(&mut self) {
        self.is_new = true;
    }

    /// These attempts and those already written, at most as many as a record holds.
    pub(super) fn merged(&self, written: Vec<Attempt>) -> Vec<Attempt> {
        let mut all: Vec<_> = self.signed.iter().chain(&self.unsigned).cloned().collect();
        for attempt in written {
            if all.iter().all(|known| known.id != attempt.id) {
                all.push(attempt);
            }
        }
        all.sort_by_key(|attempt| std::cmp::Reverse(attempt.at));
        let mut room = [MOST, MOST];
        all.retain(|attempt| {
            let [signed, unsigned] = &mut room;
            let left = if attempt.unsigned { unsigned } else { signed };
            let fits = *left > 0;
            *left = left.saturating_sub(1);
            fits
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    fn attempt(number: u64, unsigned: bool) -> Attempt {
        let mut attempt = sample::attempt(number, None);
        attempt.unsigned = unsigned;
        attempt
    }

    #[test]
    fn what_anybody_can_send_pushes_out_nothing_that_is_signed_and_is_written_once() {
        let mut strangers = Strangers::default();
        strangers.add(&attempt(1, false));
        for number in 100..1100 {
            strangers.add(&attempt(number, true));
        }
        assert!(strangers.begin() && !strangers.begin(), "a thousand of them are one write");
        let written = (2000..2100).map(|number| attempt(number, true)).collect();
        let merged = strangers.merged(written);
        assert_eq!(merged.len(), MOST + 1);
        assert_eq!(merged.first().map(|attempt| attempt.id), Some(sample::attempt_id(2099)));
        assert!(merged.iter().any(|attempt| attempt.id == sample::attempt_id(1)));
    }
}
