//! Attempts in a bounded size: who sends evidence decides how much there is to say about it.

use std::borrow::Cow;

use super::Attempt;
use crate::explain::{EventFinding, StepState};
use crate::image::ExpectedPcrs;

/// Maximum number of characters of a step's detail in an attempt that is cut.
const MAX_DETAIL: usize = 120;
/// Note in a cut comparison.
const NOTE: &str = " (comparison shortened)";
/// Numbers of findings per register, tried one after another until the attempt fits.
const FINDINGS: [usize; 7] = [64, 16, 8, 4, 2, 1, 0];

impl Attempt {
    /// The attempt in at most `limit` bytes of JSON, if the checks alone fit. What it loses first are findings
    /// of events that do not differ, then what the machine measured.
    #[must_use]
    pub fn within(&self, limit: usize) -> Cow<'_, Self> {
        let fits = |attempt: &Self| {
            serde_json::to_vec(attempt).is_ok_and(|written| written.len() <= limit)
        };
        if fits(self) {
            return Cow::Borrowed(self);
        }
        let mut cut = self.shortened(FINDINGS[0]);
        if fits(&cut) {
            return Cow::Owned(cut);
        }
        for findings in FINDINGS {
            cut = self.shortened(findings);
            cut.measured = ExpectedPcrs::default();
            if fits(&cut) {
                break;
            }
        }
        Cow::Owned(cut)
    }

    /// The attempt without the comparison of its registers and without what it measured, for lists of machines.
    pub fn into_summary(mut self) -> Self {
        self.ladder.mismatch = None;
        self.measured = ExpectedPcrs::default();
        self
    }

    /// The attempt with this many findings for each register, those that differ first.
    fn shortened(&self, findings: usize) -> Self {
        let mut cut = self.clone();
        let ladder = &mut cut.ladder;
        for step in &mut ladder.steps {
            let detail = step.detail.strip_suffix(NOTE).unwrap_or(&step.detail);
            step.detail = detail.chars().take(MAX_DETAIL).collect();
            if step.state == StepState::Failed && ladder.mismatch.is_some() {
                step.detail.push_str(NOTE);
            }
        }
        if findings == 0 {
            ladder.mismatch = None;
            cut.booted = None;
            return cut;
        }
        if let Some(mismatch) = &mut ladder.mismatch {
            shorten(&mut mismatch.events, findings);
            mismatch.missing.truncate(findings);
            mismatch.apart.truncate(findings);
            mismatch.others.truncate(findings);
            for other in &mut mismatch.others {
                shorten(&mut other.events, findings);
                other.missing.truncate(findings);
            }
        }
        cut
    }
}

fn shorten(events: &mut Vec<EventFinding>, most: usize) {
    if events.len() > most {
        events.sort_by_key(|event| !event.differs());
        events.truncate(most);
        events.sort_by_key(|event| event.event.number);
    }
    for event in events {
        event.known_as.truncate(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Gate;
    use crate::testing::sample;

    fn written(attempt: &Attempt) -> usize {
        serde_json::to_vec(attempt).unwrap().len()
    }

    #[test]
    fn an_attempt_that_fits_is_not_touched_and_another_says_that_it_was_cut() {
        let small = sample::attempt(1, Some(1));
        assert_eq!(*small.within(4096), small);
        let mut large = small;
        large.ladder.fail(Gate::Pcrs, "x".repeat(100_000));
        let cut = large.within(4096);
        assert!(written(&cut) <= 4096, "{}", written(&cut));
        assert_eq!((cut.id, cut.ladder.code), (large.id, large.ladder.code));
    }
}
