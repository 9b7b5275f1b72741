//! What a key broker records of what strangers may cause, so that nobody fills the disk with it: an audit line must be
//! on disk before a key is released.
//!
//! ```text
//! refusal ─┬─ line in the audit log   at most LINES per machine and hour, and the first of each code; then one that
//!          │                          counts the others
//!          └─ attempt                 bounded by the log of attempts
//! little space: of a machine whose key is bound by first use alone, no refusal, and RELEASES per hour; whoever can
//! send a request has such a machine
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tec_core::attest::Attempt;
use tec_core::id::{AttemptId, MachineId};
use tec_core::port::{
    AkRegistry, AttemptLog, AuditAction, AuditEvent, AuditSink, PortError, PortErrorKind,
};
use tec_core::time::Timestamp;

use crate::reserve::Reserve;

/// Number of audit lines about refusals of one machine in [`PERIOD`]: more than a node causes that boots every few
/// minutes.
const LINES: u32 = 30;
/// Number of disk keys in [`PERIOD`] for a machine that is bound by first use, while there is little space.
const RELEASES: u32 = 4;
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
    released: u32,
    left_out: u64,
    /// Those of the period before.
    uncounted: u64,
    /// What was written: the first refusal of each kind always has its line.
    codes: BTreeSet<String>,
}

impl Lines {
    fn after(uncounted: u64, since: Timestamp) -> Self {
        Self { since, written: 0, released: 0, left_out: 0, uncounted, codes: BTreeSet::new() }
    }
}

/// An audit log and a log of attempts, sparing with their space.
#[derive(Debug)]
pub struct Sparing {
    aks: Arc<dyn AkRegistry>,
    attempts: Arc<dyn AttemptLog>,
    audit: Arc<dyn AuditSink>,
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
    /// Over these logs; the registry says which machines are bound by first use.
    pub fn new(
        aks: Arc<dyn AkRegistry>,
        attempts: Arc<dyn AttemptLog>,
        audit: Arc<dyn AuditSink>,
        reserve: Arc<Reserve>,
    ) -> Self {
        Self { aks, attempts, audit, reserve, lines: Mutex::default() }
    }

    /// Whether there is little space, and this machine is one of those that any stranger has.
    async fn saves(&self, machine: Option<MachineId>) -> Result<bool, PortError> {
        if !self.reserve.is_low() {
            return Ok(false);
        }
        let Some(machine) = machine else {
            return Ok(true);
        };
        let bound = self.aks.bound_to(&machine).await?;
        // Only keys bound by first use have a source.
        Ok(bound.is_none_or(|record| record.source.is_some()))
    }

    /// Calls `take` with the lines of a machine in this period.
    fn of<T>(&self, machine: MachineId, now: Timestamp, take: impl FnOnce(&mut Lines) -> T) -> T {
        let mut all = self.lines.lock();
        let start = now.plus_seconds(-PERIOD);
        if all.len() >= MACHINES && !all.contains_key(&machine) {
            all.retain(|_, lines| lines.since > start);
            let oldest = all.iter().min_by_key(|(_, lines)| lines.since).map(|(id, _)| *id);
            if let Some(oldest) = oldest.filter(|_| all.len() >= MACHINES) {
                all.remove(&oldest);
            }
        }
        let lines = all.entry(machine).or_insert_with(|| Lines::after(0, now));
        // Also after the clock went back.
        if lines.since <= start || lines.since > now {
            *lines = Lines::after(lines.uncounted.saturating_add(lines.left_out), now);
        }
        take(lines)
    }

    fn take_line(&self, machine: MachineId, code: &str, now: Timestamp) -> Line {
        self.of(machine, now, |lines| {
            let is_new = lines.codes.len() < CODES && lines.codes.insert(code.to_owned());
            if lines.written >= LINES && !is_new {
                lines.left_out = lines.left_out.saturating_add(1);
                return Line::LeaveOut;
            }
            lines.written = lines.written.saturating_add(1);
            match std::mem::take(&mut lines.uncounted) {
                0 => Line::Write,
                uncounted => Line::WriteAfter(uncounted),
            }
        })
    }

    /// Whether a machine that any stranger has gets one more key although there is little space.
    fn take_release(&self, machine: MachineId, now: Timestamp) -> bool {
        self.of(machine, now, |lines| {
            lines.released = lines.released.saturating_add(1);
            lines.released <= RELEASES
        })
    }

    async fn append_refusal(
        &self,
        machine: MachineId,
        event: &AuditEvent,
    ) -> Result<(), PortError> {
        // The subject begins with the code.
        let code = event.subject.split(' ').next().unwrap_or_default();
        match self.take_line(machine, code, event.at) {
            Line::LeaveOut => return Ok(()),
            Line::Write => {}
            Line::WriteAfter(count) => {
                let subject = format!("{count} further refusals without a line");
                let line =
                    AuditEvent::new(event.at, AuditAction::KeyRefused, Some(machine), subject);
                self.audit.append(&line).await?;
            }
        }
        self.audit.append(event).await
    }
}

#[async_trait]
impl AuditSink for Sparing {
    /// Fails with `Unavailable` for a release that there is no space to record, so that it does not happen.
    async fn append(&self, event: &AuditEvent) -> Result<(), PortError> {
        let Some(machine) = event.machine else {
            return self.audit.append(event).await;
        };
        match event.action {
            AuditAction::KeyRefused if self.saves(Some(machine)).await? => Ok(()),
            AuditAction::KeyRefused => self.append_refusal(machine, event).await,
            AuditAction::KeyReleased
                if self.saves(Some(machine)).await? && !self.take_release(machine, event.at) =>
            {
                let what = format!(
                    "record a further disk key of machine {machine}, which is bound by first use"
                );
                let why = format!("{what}: the disk is nearly full");
                Err(PortError::new(PortErrorKind::Unavailable, why))
            }
            _ => self.audit.append(event).await,
        }
    }
}

#[async_trait]
impl AttemptLog for Sparing {
    async fn record(&self, attempt: &Attempt) -> Result<(), PortError> {
        if attempt.ladder.code.is_some() && self.saves(attempt.machine).await? {
            tracing::warn!(attempt = %attempt.id, "attempt not recorded: the disk is nearly full");
            return Ok(());
        }
        self.attempts.record(attempt).await
    }

    async fn find(&self, id: &AttemptId) -> Result<Option<Attempt>, PortError> {
        self.attempts.find(id).await
    }

    async fn latest(
        &self,
        machine: Option<MachineId>,
        limit: usize,
    ) -> Result<Vec<Attempt>, PortError> {
        self.attempts.latest(machine, limit).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;

    use tec_core::ak::{ApprovedAk, SourceNetwork};
    use tec_core::code::Code;
    use tec_core::explain::Gate;
    use tec_core::port::{MachineRegistry as _, UnclaimedLimit};
    use tec_core::testing::{MemoryRegistry, sample};

    use super::*;

    struct Anchor {
        sparing: Sparing,
        log: Arc<MemoryRegistry>,
    }

    /// Machine 1 has a key bound by first use, machine 2 one that an admin approved.
    async fn anchor(reserve_mib: u64) -> Anchor {
        let log = Arc::new(MemoryRegistry::default());
        for number in [1, 2] {
            let machine = sample::machine(number);
            log.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
            let mut key = sample::ak(number, number);
            key.source = (number == 1).then(|| SourceNetwork::of(IpAddr::from([192, 0, 2, 1])));
            let key = ApprovedAk::dangerous_assume_approved(key);
            log.bind(&key, &sample::line()).await.unwrap();
        }
        let reserve = Arc::new(Reserve::of(Path::new("/"), reserve_mib));
        Anchor { sparing: Sparing::new(log.clone(), log.clone(), log.clone(), reserve), log }
    }

    impl Anchor {
        fn lines(&self, machine: u64) -> Vec<String> {
            let of = |line: &AuditEvent| {
                line.action == AuditAction::KeyRefused
                    && line.machine == Some(sample::machine_id(machine))
            };
            self.log.events().into_iter().filter(of).map(|line| line.subject).collect()
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
        // A release has its line, or does not happen.
        let mut last = None;
        for (machine, second, released) in [(1, 2, 4), (2, 2, 100), (1, 2 + PERIOD, 4)] {
            let line = AuditEvent::new(
                sample::time(second),
                AuditAction::KeyReleased,
                Some(sample::machine_id(machine)),
                "default/1/root",
            );
            let before = anchor.log.events().len();
            for _ in 0..100 {
                last = anchor.sparing.append(&line).await.err().or(last);
            }
            assert_eq!(anchor.log.events().len() - before, released);
        }
        assert_eq!(last.unwrap().kind(), PortErrorKind::Unavailable);
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
