//! The contracts of ports and policies as executable suites.

mod ak;
mod attempt;
mod audit;
mod audited;
mod boot;
mod broker;
mod clock;
mod image;
mod machine;
mod matcher;
mod platform;
mod rotation;
mod secret;
mod trust;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

pub use self::ak::ak_registry;
pub use self::attempt::attempt_log;
pub use self::audit::audit_sink;
pub use self::audited::{AuditedPorts, audited_changes};
pub use self::boot::boot_states;
pub use self::broker::key_broker;
pub use self::clock::clock_log;
pub use self::image::image_registry;
pub use self::machine::machine_registry;
pub use self::matcher::ak_matcher;
pub use self::platform::platform_log;
pub use self::rotation::disk_keys;
pub use self::secret::secret_store;
pub use self::trust::trust_anchor;

use crate::port::{PortError, PortErrorKind};

/// The future that a port call returns, boxed by `async_trait`.
type PortFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, PortError>> + Send + 'a>>;

/// Runs calls concurrently, without a runtime; answers are in the order of the calls.
async fn at_once<T>(calls: Vec<PortFuture<'_, T>>) -> Vec<Result<T, PortError>> {
    let mut calls: Vec<_> = calls.into_iter().map(|call| (call, None)).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (call, answer) in &mut calls {
            if answer.is_none() {
                match call.as_mut().poll(context) {
                    Poll::Ready(value) => *answer = Some(value),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    calls.into_iter().filter_map(|(_, answer)| answer).collect()
}

/// The value of a call that must succeed.
#[track_caller]
#[expect(clippy::panic, reason = "a suite reports a broken contract by panicking")]
fn ok<T>(answer: Result<T, PortError>) -> T {
    match answer {
        Ok(value) => value,
        Err(error) => panic!("the call must succeed: {}", crate::port::chain(&error)),
    }
}

/// The failure kind of a call that must fail.
#[track_caller]
#[expect(clippy::panic, reason = "a suite reports a broken contract by panicking")]
fn kind<T: std::fmt::Debug>(answer: Result<T, PortError>) -> PortErrorKind {
    match answer {
        Ok(value) => panic!("the call must fail, and gave {value:?}"),
        Err(error) => error.kind(),
    }
}
