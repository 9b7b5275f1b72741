//! What an AttestationRecord says of its machine. Only the guard and the key broker write records.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::explain::{Gate, Step, StepState};
use tec_core::id::MachineId;
use tec_core::time::Timestamp;

use super::context::Context;
use crate::api::{AttestationRecord, LastAttestation, Machine, RecordedAttempt};

/// By how many seconds the clock of a guard may be ahead. What lies further ahead would hide all that follows.
const AHEAD: i64 = 600;

/// What a record says; all that is kept of it, so that the records of a large fleet fit into memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The newest attempt that the machine signed.
    pub(super) last: Option<LastAttestation>,
    /// The newest one that obtained the key: a node that attests while it runs does not request it.
    pub(super) boot: Option<LastAttestation>,
    /// The newest one that says what runs on the machine.
    pub(super) seen: Option<Seen>,
}

impl Summary {
    /// Of attempts, newest first.
    ///
    /// # Security
    /// What anyone could have sent does not count.
    fn of(machine: &MachineId, attempts: &[Attempt], now: Timestamp) -> Self {
        let counts = |one: &&Attempt| !one.unsigned && one.at <= now.plus_seconds(AHEAD);
        // Of several in the same second the last of the iterator counts, which is the newest.
        let signed = || attempts.iter().rev().filter(counts);
        let boots = signed().filter(|one| one.ladder.is_released());
        // Of a refused attempt and another one in the same second, the refused one must not be overlooked.
        let last = signed().max_by_key(|one| (one.at, one.ladder.code.is_some()));
        Self {
            last: last.map(LastAttestation::of),
            boot: boots.max_by_key(|one| one.at).map(LastAttestation::of),
            seen: signed().filter_map(|one| seen(one, machine)).max_by_key(|seen| seen.at),
        }
    }

    /// Replaces the attempts in a record.
    pub(super) fn put(record: &mut AttestationRecord, now: Timestamp) {
        let machine = record.spec.machine.as_deref().and_then(|id| id.parse().ok());
        let summary = machine.map(|id| Self::of(&id, &record.attempts(), now));
        let attempt = summary.and_then(|summary| serde_json::to_string(&summary).ok());
        let kept = |attempt| RecordedAttempt { attempt, ..RecordedAttempt::default() };
        record.spec.attempts = attempt.into_iter().map(kept).collect();
    }

    fn get(record: &AttestationRecord) -> Option<Self> {
        serde_json::from_str(&record.spec.attempts.first()?.attempt).ok()
    }

    /// What is known of a machine.
    pub(super) fn for_machine(ctx: &Context, machine: &Machine) -> Self {
        of(ctx, machine).and_then(|record| Self::get(&record)).unwrap_or_default()
    }
}

/// The record of a machine. That of another object with the same ID says nothing of it.
pub(super) fn of(ctx: &Context, machine: &Machine) -> Option<Arc<AttestationRecord>> {
    let uid = machine.metadata.uid.as_ref();
    let is_owned = |record: &AttestationRecord| {
        let mut owners = record.metadata.owner_references.iter().flatten().peekable();
        // The owner is gone, but the record was to stay: kubectl delete --cascade=orphan.
        let is_orphan = owners.peek().is_none();
        is_orphan || owners.any(|owner| Some(&owner.uid) == uid)
    };
    let records = ctx.caches.records.indexed(&machine.spec.id);
    records.into_iter().find(|record| is_owned(record))
}

/// An attempt that says what runs on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) at: Timestamp,
    /// Why it was refused, if it was.
    pub(super) code: Option<Code>,
}

/// What an attempt says about the machine, if anything.
///
/// # Security
/// Only what the machine's own key signed. Codes about its standing, such as a quarantine, its request or the
/// server say nothing: a machine must not clear itself by asking for something else.
pub(super) fn seen(attempt: &Attempt, machine: &MachineId) -> Option<Seen> {
    let is_explained = |step: &Step| step.gate == Gate::Pcrs && step.state == StepState::Passed;
    let is_telling = match attempt.ladder.code {
        None => {
            attempt.ladder.first_failure().is_none()
                && attempt.ladder.steps.iter().any(is_explained)
        }
        Some(code) => matches!(
            code,
            Code::SelectionWrong
                | Code::EventLogMismatch
                | Code::TpmSetBack
                | Code::PlatformChanged
                | Code::PcrMismatch
        ),
    };
    let is_signed = attempt.machine == Some(*machine) && !attempt.unsigned;
    (is_telling && is_signed).then_some(Seen { at: attempt.at, code: attempt.ladder.code })
}

#[cfg(test)]
mod tests {
    use tec_core::explain::Gate;
    use tec_core::testing::sample;

    use super::*;

    fn attempt(number: u64, change: impl FnOnce(&mut Attempt)) -> Attempt {
        let mut attempt = sample::attempt_in_boot(number, 1);
        attempt.at = sample::time(1);
        attempt.machine = Some(sample::machine_id(1));
        change(&mut attempt);
        attempt
    }

    fn released(number: u64) -> Attempt {
        attempt(number, |it| it.ladder.pass(Gate::Key, "released"))
    }

    fn refused(number: u64) -> Attempt {
        attempt(number, |it| it.ladder.fail(Gate::Pcrs, "differs"))
    }

    fn summary(newest_first: &[Attempt]) -> Summary {
        Summary::of(&sample::machine_id(1), newest_first, sample::time(1))
    }

    fn id(last: Option<&LastAttestation>) -> Option<String> {
        last?.attempt.clone()
    }

    fn of(number: u64) -> String {
        sample::attempt_id(number).to_string()
    }

    #[test]
    fn of_attempts_in_one_second_the_newest_counts_and_a_refused_one_is_told() {
        let told = summary(&[released(2), released(1)]);
        assert_eq!((id(told.last.as_ref()), id(told.boot.as_ref())), (Some(of(2)), Some(of(2))));
        let told = summary(&[released(3), refused(2), released(1)]);
        assert_eq!((id(told.last.as_ref()), id(told.boot.as_ref())), (Some(of(2)), Some(of(3))));
    }

    #[test]
    fn only_a_released_key_is_a_boot() {
        let told = summary(&[attempt(2, |_| {}), released(1)]);
        assert_eq!((id(told.last.as_ref()), id(told.boot.as_ref())), (Some(of(2)), Some(of(1))));
        assert_eq!(summary(&[refused(1)]).boot, None);
    }

    #[test]
    fn what_anyone_could_have_sent_and_what_is_dated_ahead_hides_nothing() {
        let unsigned = attempt(3, |it| it.unsigned = true);
        let ahead = attempt(2, |it| it.at = it.at.plus_seconds(AHEAD + 1));
        let told = summary(&[unsigned, ahead, released(1)]);
        assert_eq!((id(told.last.as_ref()), id(told.boot.as_ref())), (Some(of(1)), Some(of(1))));
        let just = attempt(2, |it| it.at = it.at.plus_seconds(AHEAD));
        assert_eq!(id(summary(&[just, released(1)]).last.as_ref()), Some(of(2)));
    }

    #[test]
    fn of_a_record_only_the_summary_is_kept() {
        let mut record = AttestationRecord::empty(Some(sample::machine_id(1)));
        let attempts = [refused(2), released(1)];
        let recorded = attempts.iter().map(|it| RecordedAttempt::from_core(it).unwrap());
        record.spec.attempts = recorded.collect();
        Summary::put(&mut record, sample::time(1));
        assert_eq!(Summary::get(&record), Some(summary(&attempts)));
        assert_eq!(record.spec.attempts.len(), 1);
        let mut nobodys = AttestationRecord::empty(None);
        Summary::put(&mut nobodys, sample::time(1));
        assert_eq!(Summary::get(&nobodys), None);
    }
}
