//! The ports: what the use cases need from their environment, as dyn-compatible async traits.
//!
//! Every port has an in-memory double, a fault wrapper and a conformance suite in
//! [`testing`](crate::testing). Implementations report failure as [`PortError`]; only its
//! [`kind`](PortError::kind) decides about retries.
//!
//! # Cancel safety
//! A call may be dropped at any `.await`: every write is create-if-absent, compare-and-swap or idempotent, so
//! that repeating it converges.

mod broker;
mod error;
mod platform;
mod registry;
mod rotation;
mod trust;

use std::fmt;

#[cfg(any(test, feature = "test-util"))]
pub use self::broker::MockKeyBroker;
pub use self::broker::{KeyBroker, PolicySlot};
pub use self::error::{PortError, PortErrorKind, causes, chain};
pub use self::platform::{PlatformEntry, PlatformLog, PlatformOutcome, PlatformRecord};
#[cfg(any(test, feature = "test-util"))]
pub use self::registry::MockAkRegistry;
#[cfg(any(test, feature = "test-util"))]
pub use self::registry::MockImageRegistry;
#[cfg(any(test, feature = "test-util"))]
pub use self::registry::MockMachineRegistry;
#[cfg(any(test, feature = "test-util"))]
pub use self::registry::MockSecretStore;
pub use self::registry::{
    AkRegistry, BindOutcome, Claims, CreateOutcome, ImageRegistry, MachineRegistry, PutOutcome,
    SecretStore, UnclaimedLimit,
};
pub use self::rotation::{BeginOutcome, CancelOutcome, DiskKeys};
pub use self::trust::{
    AttemptLog, AttestationEvidence, Attester, AuditAction, AuditEvent, AuditSink, ClockLog,
    ClockOutcome, EvidenceRequest, Verifier,
};

use crate::time::Timestamp;

/// Returns the time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// Source of fresh randomness, shared by threads.
///
/// *Contract*: always fills the whole slice and never panics; a source that may not work must fail at
/// startup.
pub trait Entropy: fmt::Debug + Send + Sync {
    /// Fills `bytes` with unpredictable bytes.
    fn fill(&self, bytes: &mut [u8]);
}

/// An [`Entropy`] as the `CryptoRng` that pure code takes.
#[derive(Debug)]
pub struct EntropyRng<'a>(&'a dyn Entropy);

impl<'a> EntropyRng<'a> {
    /// Draws randomness from `entropy`.
    pub fn new(entropy: &'a dyn Entropy) -> Self {
        Self(entropy)
    }
}

impl rand_core::TryRng for EntropyRng<'_> {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        self.0.fill(bytes);
        Ok(())
    }
}

impl rand_core::TryCryptoRng for EntropyRng<'_> {}
