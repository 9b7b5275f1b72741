//! Deliberate faults: calls that fail, and calls whose answer is lost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};

use crate::ak::{AkRecord, ApprovedAk, ClockReading, Fingerprint, SourceNetwork};
use crate::attest::Attempt;
use crate::id::{AttemptId, ImageName, MachineId, ResourcePath};
use crate::image::ApprovedImage;
use crate::machine::{Machine, MachineChange};
use crate::migrate::{
    AdoptPage, Adopted, Authority, Epoch, SwapOutcome, Transition, TrustAnchor, TrustUnit, UnitName,
};
use crate::platform::Platform;
use crate::port::{
    AkRegistry, AttemptLog, AuditEvent, AuditSink, BeginOutcome, BindOutcome, CancelOutcome,
    Claims, ClockLog, ClockOutcome, CreateOutcome, DiskKeys, ImageRegistry, KeyBroker,
    MachineRegistry, PlatformEntry, PlatformLog, PlatformOutcome, PlatformRecord, PolicySlot,
    PortError, PortErrorKind, PutOutcome, SecretStore, UnclaimedLimit,
};
use crate::rotation::{Confirmation, Confirmed, Forget, KeyMark, Keys};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the call goes through.
    None,
    /// It fails before anything happens.
    Before,
    /// It happens, but the caller gets an error: the acknowledgement is lost.
    LostAck,
}

/// One call, as seen by a plan of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Number of the call across all ports of this wrapper, starting at 0.
    pub number: u64,
    /// Port and method, for example `AkRegistry::bind`.
    pub operation: &'static str,
}

/// Wraps an implementation of any port, and makes calls fail with kind `Unavailable` according to a
/// plan.
///
/// Implements every port that `T` implements. The inner value is shared: keep a clone of the `Arc`
/// to see what really happened.
pub struct Faulty<T> {
    inner: Arc<T>,
    plan: Box<dyn Fn(Call) -> Fault + Send + Sync>,
    calls: AtomicU64,
}

impl<T> fmt::Debug for Faulty<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl<T: Send + Sync> Faulty<T> {
    /// Consults `plan` for every call.
    pub fn new(inner: Arc<T>, plan: impl Fn(Call) -> Fault + Send + Sync + 'static) -> Self {
        Self { inner, plan: Box::new(plan), calls: AtomicU64::new(0) }
    }

    /// No faults.
    pub fn healthy(inner: Arc<T>) -> Self {
        Self::new(inner, |_| Fault::None)
    }

    /// Call `number` suffers `fault`, and every later call fails, as if the process had died there.
    pub fn crash_at(inner: Arc<T>, number: u64, fault: Fault) -> Self {
        Self::new(inner, move |call| match call.number.cmp(&number) {
            std::cmp::Ordering::Less => Fault::None,
            std::cmp::Ordering::Equal => fault,
            std::cmp::Ordering::Greater => Fault::Before,
        })
    }

    /// About `per_mille` of every 1000 calls suffer a fault, both kinds equally likely; the same `seed` gives
    /// the same faults.
    pub fn seeded(inner: Arc<T>, seed: u64, per_mille: u32) -> Self {
        let rng = Mutex::new(ChaCha20Rng::seed_from_u64(seed));
        Self::new(inner, move |_| {
            let mut rng = rng.lock();
            let (draw, sort) = (rng.next_u32() % 1000, rng.next_u32() % 2);
            match (draw < per_mille, sort) {
                (false, _) => Fault::None,
                (true, 0) => Fault::Before,
                (true, _) => Fault::LostAck,
            }
        })
    }

    /// The wrapped value.
    pub fn inner(&self) -> &Arc<T> {
        &self.inner
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Makes one call according to the plan, for ports that are defined elsewhere. `call` has not started: a
    /// future does nothing before it is polled.
    ///
    /// # Errors
    /// Those of the call, and `Unavailable` where the plan says so.
    pub async fn run<R: Send>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<R, PortError>> + Send,
    ) -> Result<R, PortError> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        match (self.plan)(Call { number, operation }) {
            Fault::None => call.await,
            Fault::Before => Err(injected(operation, "before the call")),
            Fault::LostAck => {
                call.await?;
                Err(injected(operation, "after the call"))
            }
        }
    }
}

fn injected(operation: &str, when: &'static str) -> PortError {
    PortError::new(PortErrorKind::Unavailable, operation.to_owned())
        .because(format!("fault injected {when}"))
}

/// Implements a port by passing each method through [`Faulty::run`].
macro_rules! pass_through {
    ($port:ident { $(fn $method:ident($($name:ident: $kind:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl<T: $port> $port for Faulty<T> {
            $(async fn $method(&self, $($name: $kind),*) -> Result<$answer, PortError> {
                let operation = concat!(stringify!($port), "::", stringify!($method));
                self.run(operation, $port::$method(&*self.inner, $($name),*)).await
            })*
        }
    };
}

pass_through!(MachineRegistry {
    fn create(machine: &Machine, limit: UnclaimedLimit) -> CreateOutcome;
    fn find(id: &MachineId) -> Option<Machine>;
    fn list(after: Option<MachineId>, limit: usize) -> Vec<Machine>;
    fn revoke(id: &MachineId, line: &AuditEvent) -> ();
    fn change(id: &MachineId, change: MachineChange, line: &AuditEvent) -> ();
    fn remove(id: &MachineId) -> ();
    fn expire_unclaimed(before: Timestamp) -> u64;
});

pass_through!(AkRegistry {
    fn submit(record: &AkRecord, line: &AuditEvent) -> CreateOutcome;
    fn bind(ak: &ApprovedAk, line: &AuditEvent) -> BindOutcome;
    fn find(key: &Fingerprint) -> Option<AkRecord>;
    fn find_with_machine(key: &Fingerprint) -> Option<(AkRecord, Option<Machine>)>;
    fn bound_to(machine: &MachineId) -> Option<AkRecord>;
    fn list(machine: Option<MachineId>) -> Vec<AkRecord>;
    fn claims(source: &SourceNetwork) -> Claims;
    fn revoke(key: &Fingerprint, line: &AuditEvent) -> ();
});

pass_through!(ImageRegistry {
    fn put(image: &ApprovedImage) -> ();
    fn find(name: &ImageName) -> Option<ApprovedImage>;
    fn list() -> Vec<ApprovedImage>;
    fn revoke(name: &ImageName, line: &AuditEvent) -> ();
});

pass_through!(SecretStore {
    fn put_new(path: &ResourcePath, secret: &SecretBytes, line: &AuditEvent) -> PutOutcome;
    fn find(path: &ResourcePath) -> Option<SecretBytes>;
    fn exists(path: &ResourcePath) -> bool;
    fn remove(path: &ResourcePath) -> ();
});

pass_through!(DiskKeys {
    fn rotation(machine: &MachineId) -> Option<Keys<KeyMark>>;
    fn begin(machine: &MachineId, pending: &SecretBytes, line: &AuditEvent) -> BeginOutcome;
    fn confirm(
        machine: &MachineId,
        confirmation: Confirmation,
        key: &KeyMark,
        line: &AuditEvent
    ) -> Confirmed<KeyMark>;
    fn cancel(machine: &MachineId, forget: Forget, line: &AuditEvent) -> CancelOutcome;
});

pass_through!(ClockLog {
    fn advance(key: &Fingerprint, machine: MachineId, reading: &ClockReading) -> ClockOutcome;
    fn last(key: &Fingerprint) -> Option<ClockReading>;
    fn forget(machine: &MachineId, line: &AuditEvent) -> ();
});

pass_through!(PlatformLog {
    fn admit(
        key: &Fingerprint,
        machine: MachineId,
        seen: &Platform,
        at: Timestamp
    ) -> PlatformOutcome;
    fn find(key: &Fingerprint) -> Option<PlatformRecord>;
    fn list() -> Vec<PlatformEntry>;
    fn approve(key: &Fingerprint, seen: &Platform, line: &AuditEvent) -> Vec<MachineId>;
});

pass_through!(AuditSink {
    fn append(event: &AuditEvent) -> ();
});

pass_through!(AttemptLog {
    fn record(attempt: &Attempt) -> ();
    fn find(id: &AttemptId) -> Option<Attempt>;
    fn latest(machine: Option<MachineId>, limit: usize) -> Vec<Attempt>;
});

pass_through!(TrustAnchor {
    fn authority() -> Authority;
    fn swap(change: &Transition, line: &AuditEvent) -> SwapOutcome;
    fn export(after: Option<&UnitName>, limit: usize) -> Vec<TrustUnit>;
    fn weigh(units: &[TrustUnit]) -> Vec<Adopted>;
    fn adopt(page: &AdoptPage) -> Vec<Adopted>;
    fn progress(epoch: Epoch) -> Option<UnitName>;
    fn shred(line: &AuditEvent) -> u64;
});

pass_through!(KeyBroker {
    fn put(path: &ResourcePath, secret: &SecretBytes) -> ();
    fn remove(path: &ResourcePath) -> ();
    fn list() -> Option<Vec<ResourcePath>>;
    fn set_policy(slot: PolicySlot, rego: &str) -> ();
    fn set_reference_value(name: &str, value: &serde_json::Value) -> ();
    fn reference_value(name: &str) -> Option<serde_json::Value>;
});
