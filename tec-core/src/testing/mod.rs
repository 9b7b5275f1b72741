//! Doubles, faults and conformance suites for testing code over the ports without a network, a TPM
//! or a disk (feature `test-util`).
//!
//! *What it is*: in-memory implementations of every port ([`MemoryRegistry`], [`MemoryBroker`]), a
//! clock and randomness under the control of a test ([`ManualClock`], [`SeededEntropy`]), a wrapper
//! that makes calls fail or lose their answer ([`Faulty`]), a driver that kills a
//! [plan](crate::plan) at every step ([`crash_everywhere`]), sample values ([`sample`]), and one
//! conformance suite per port.
//!
//! *What it is not*: suitable for production. Nothing here is durable, and suites panic if an implementation
//! breaks its contract.
//!
//! # Conformance suites
//! A suite takes a factory that creates an *empty* implementation each time it is called, and
//! checks the contract in the trait's documentation:
//!
//! ```
//! use tec_core::testing;
//! use tec_core::testing::MemoryRegistry;
//!
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     let mut future = std::pin::pin!(future);
//! #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! #     loop {
//! #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
//! #             return value;
//! #         }
//! #     }
//! # }
//! block_on(testing::secret_store(async || MemoryRegistry::new()));
//! ```

mod broker;
mod clock;
mod entropy;
mod faulty;
mod memory;
mod plan;
mod platform;
pub mod sample;
mod suite;

pub use self::broker::MemoryBroker;
pub use self::clock::ManualClock;
pub use self::entropy::SeededEntropy;
pub use self::faulty::{Call, Fault, Faulty};
pub use self::memory::MemoryRegistry;
pub use self::plan::{Mishap, PlanRow, PlanRun, World, crash_everywhere, run_plan, seeded_mishaps};
pub use self::platform::PlatformBoot;
pub use self::suite::{
    AuditedPorts, ak_matcher, ak_registry, attempt_log, audit_sink, audited_changes, boot_states,
    clock_log, disk_keys, image_registry, key_broker, machine_registry, platform_log, secret_store,
    trust_anchor,
};

/// Runs a future that never has to wait, like those of the doubles.
///
/// # Panics
/// If the future waits.
#[expect(clippy::panic, reason = "a double that waits is a defect of the test")]
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a double does not wait"),
    }
}

#[cfg(test)]
mod defective;
#[cfg(test)]
mod tests;
