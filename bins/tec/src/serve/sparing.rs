//! What the key broker records of refusals, so that nobody fills the disk with them: an audit line must be on
//! disk before a key is released.
//!
//! ```text
//! refusal ─┬─ line in the audit log   at most LINES per machine and hour, and the first of each code; then one that
//!          │                          counts the others
//!          └─ attempt                 bounded by the store
//! little space: nothing of a machine whose key is bound by first use alone; whoever can send a request has one
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tec_core::attest::Attempt;
use tec_core::id::{AttemptId, MachineId};
use tec_core::port::{AkRegistry as _, AttemptLog, AuditAction, AuditEvent, AuditSink, PortError};
use tec_core::store::Store;
use tec_core::time::Timestamp;

use super::reserve::Reserve;

/// Number of audit lines about refusals of one machine in [`PERIOD`]: more than a node causes that boots every few
/// minutes.
const LINES: u32 = 30;
/// Seconds after which a machine has its lines again.
const PERIOD: i64 = 3600;
/// Number of kinds of refusals; there are fewer codes for them.
const CODES: usize = 64;
/// Number of machines whose lines are counted; those of the oldest period are forgotten first.
const MACHINES: usize = 20_000;

/// The lines of one machine.
#[derive(Debug)]
struct Lines {
    since: Timestamp,
    written: u32,
    left_out: u64,
    /// What was written: the first refusal of each kind always has its line.
    codes: BTreeSet<String>,
}

/// The store, sparing with its space.
#[derive(Debug)]
pub(super) struct Sparing {
    store: Arc<Store>,
    reserve: Arc<Reserve>,
    /// Never held across an await.
    lines: Mutex<HashMap<MachineId, Lines>>,
}

/// What to do with a refusal.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Write,
    /// The first after this many that were left out.
    WriteAfter(u64),
    LeaveOut,
}

impl Sparing {
    pub(super) fn new(store: Arc<Store>, reserve: Arc<Reserve>) -> Self {
        Self { store, reserve, lines: Mutex::default() }
    }

    /// Whether there is no space for what this machine causes.
    async fn refuses(&self, machine: Option<MachineId>) -> Result<bool, PortError> {
        if !self.reserve.is_low() {
            return Ok(false);
        }
        let Some(machine) = machine else {
            return Ok(true);
        };
        let bound = self.store.bound_to(&machine).await?;
        // Only keys bound by first use have a source.
        Ok(bound.is_none_or(|record| record.source.is_some()))
    }

    fn take_line(&self, machine: MachineId, code: &str, now: Timestamp) -> Line {
        let mut all = self.lines.lock();
        let start = now.plus_seconds(-PERIOD);
        if all.len() >= MACHINES && !all.contains_key(&machine) {
            all.retain(|_, lines| lines.since > start);
            let oldest = all.iter().min_by_key(|(_, lines)| lines.since).map(|(id, _)| *id);
            if let Some(oldest) = oldest.filter(|_| all.len() >= MACHINES) {
                all.remove(&oldest);
            }
        }
        let fresh = || Lines { since: now, written: 0, left_out: 0, codes: BTreeSet::new() };
        let lines = all.entry(machine).or_insert_with(fresh);
        // Also after the clock went back.
        let left_out = if lines.since <= start || lines.since > now {
            std::mem::replace(lines, fresh()).left_out
        } else {
            0
        };
        let is_new = lines.codes.len() < CODES && lines.codes.insert(code.to_owned());
        if lines.written >= LINES && !is_new {
            lines.left_out = lines.left_out.saturating_add(1);
            return Line::LeaveOut;
        }
        lines.written = lines.written.saturating_add(1);
        if left_out == 0 { Line::Write } else { Line::WriteAfter(left_out) }
    }
}

#[async_trait]
impl AuditSink for Sparing {
    async fn append(&self, event: &AuditEvent) -> Result<(), PortError> {
        let (AuditAction::KeyRefused, Some(machine)) = (event.action, event.machine) else {
            return self.store.append(event).await;
        };
        if self.refuses(Some(machine)).await? {
            return Ok(());
        }
        // The subject begins with the code.
        let code = event.subject.split(' ').next().unwrap_or_default();
        match self.take_line(machine, code, event.at) {
            Line::LeaveOut => return Ok(()),
            Line::Write => {}
            Line::WriteAfter(count) => {
                let subject = format!("{count} further refusals without a line");
                let line =
                    AuditEvent::new(event.at, AuditAction::KeyRefused, Some(machine), subject);
                self.store.append(&line).await?;
            }
        }
        self.store.append(event).await
    }
}

#[async_trait]
impl AttemptLog for Sparing {
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError> {
        if attempt.ladder.code.is_some() && self.refuses(attempt.machine).await? {
            tracing::warn!(attempt = %attempt.id, "attempt not recorded: the disk is nearly full");
            return Ok(());
        }
        self.store.record(attempt).await
    }

    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError> {
        AttemptLog::find(&*self.store, id).await
    }

    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError> {
        self.store.latest(machine, limit).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tec_core::ak::{ApprovedAk, SourceNetwork};
    use tec_core::code::Code;
    use tec_core::explain::Gate;
    use tec_core::port::{MachineRegistry as _, UnclaimedLimit};
    use tec_core::testing::sample;
    use tec_support::SystemEntropy;

    use super::*;

    struct Anchor {
        sparing: Sparing,
        _place: tempfile::TempDir,
    }

    /// Machine 1 has a key bound by first use, machine 2 one that an admin approved.
    async fn anchor(reserve_mib: u64) -> Anchor {
        let place = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&place.path().join("state"), &SystemEntropy).unwrap());
        for number in [1, 2] {
            let machine = sample::machine(number);
            store.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
            let mut key = sample::ak(number, number);
            key.source = (number == 1).then(|| SourceNetwork::of(IpAddr::from([192, 0, 2, 1])));
            let key = ApprovedAk::dangerous_assume_approved(key);
            store.bind(&key, &sample::line()).await.unwrap();
        }
        let reserve = Arc::new(Reserve::of(place.path(), reserve_mib));
        Anchor { sparing: Sparing::new(store, reserve), _place: place }
    }

    impl Anchor {
        fn lines(&self, machine: u64) -> Vec<String> {
            let all = self.sparing.store.audit_events(0, 10_000).unwrap();
            let of = |line: &AuditEvent| {
                line.action == AuditAction::KeyRefused
                    && line.machine == Some(sample::machine_id(machine))
            };
            let lines = all.into_iter().map(|entry| entry.event);
            lines.filter(of).map(|line| line.subject).collect()
        }

        async fn refuse(&self, number: u64, machine: u64, second: i64) {
            let mut attempt = sample::attempt_in_boot(number, 1);
            attempt.machine = Some(sample::machine_id(machine));
            attempt.ladder.fail(Gate::Pcrs, "differs");
            self.sparing.record(&attempt).await.unwrap();
            let line = AuditEvent::key_refused(sample::time(second), &attempt, Code::PcrMismatch);
            self.sparing.append(&line).await.unwrap();
        }

        async fn attempts(&self, machine: u64) -> usize {
            let id = Some(sample::machine_id(machine));
            self.sparing.latest(id, 100).await.unwrap().len()
        }
    }

    #[tokio::test]
    async fn little_space_is_for_machines_that_somebody_vouched_for() {
        let anchor = anchor(u64::MAX).await;
        anchor.refuse(1, 1, 1).await;
        anchor.refuse(2, 2, 1).await;
        assert_eq!((anchor.attempts(1).await, anchor.attempts(2).await), (0, 1));
        assert_eq!((anchor.lines(1).len(), anchor.lines(2).len()), (0, 1));
        // A release has its line in any case.
        let released = sample::attempt_in_boot(3, 2);
        anchor.sparing.record(&released).await.unwrap();
        let line = AuditEvent::new(
            sample::time(2),
            AuditAction::KeyReleased,
            Some(sample::machine_id(1)),
            "default/1/root",
        );
        let before = anchor.sparing.store.audit_events(0, 10_000).unwrap().len();
        anchor.sparing.append(&line).await.unwrap();
        assert_eq!(anchor.sparing.store.audit_events(0, 10_000).unwrap().len(), before + 1);
        assert_eq!(anchor.attempts(1).await, 1);
    }

    #[tokio::test]
    async fn with_space_a_machine_has_its_lines_and_then_a_count() {
        let anchor = anchor(0).await;
        for number in 0..100 {
            anchor.refuse(number, 1, 10).await;
        }
        anchor.refuse(100, 2, 10).await;
        assert_eq!(anchor.lines(1).len(), usize::try_from(LINES).unwrap());
        let other = Code::TpmSetBack;
        let attempt = sample::attempt(1, Some(1));
        let line = AuditEvent::key_refused(sample::time(11), &attempt, other);
        anchor.sparing.append(&line).await.unwrap();
        assert!(anchor.lines(1).last().unwrap().starts_with(other.as_str()), "another reason");
        assert_eq!(anchor.lines(2).len(), 1, "others have their own");
        anchor.refuse(101, 1, 10 + PERIOD).await;
        let lines = anchor.lines(1);
        let [.., count, last] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!(count, "70 further refusals without a line");
        assert!(last.starts_with("TEC-A412 attempt"), "{last}");
    }
}
