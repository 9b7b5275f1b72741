//! Looks at the record of authority, shared by many writers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tec_core::port::PortError;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Time between two looks. Many concurrent writers would otherwise cause looks without pause, each for only a
/// few of them. The first write after a pause does not wait.
const PAUSE: Duration = Duration::from_millis(10);

/// A look answers everyone who asked before it began, so that concurrent writes share one look. A look
/// already under way answers no new callers: the record may have changed after it was read.
#[derive(Debug)]
pub(super) struct Fence<T> {
    /// Number of looks begun; increases only under the lock.
    begun: AtomicU64,
    found: Mutex<Option<Found<T>>>,
}

/// The last completed look.
#[derive(Clone, Copy, Debug)]
struct Found<T> {
    number: u64,
    record: T,
    at: Instant,
}

impl<T> Default for Fence<T> {
    fn default() -> Self {
        Self { begun: AtomicU64::new(0), found: Mutex::new(None) }
    }
}

impl<T: Copy> Fence<T> {
    /// The record, from a look that begins after this call.
    ///
    /// # Cancel safety
    /// The next caller looks anew.
    pub(super) async fn look(
        &self,
        look: impl Future<Output = Result<T, PortError>>,
    ) -> Result<T, PortError> {
        let before = self.begun.load(Ordering::SeqCst);
        let mut found = self.found.lock().await;
        if let Some(last) = *found {
            if last.number > before {
                return Ok(last.record);
            }
            sleep_until(last.at + PAUSE).await;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let record = look.await?;
        *found = Some(Found { number, record, at: Instant::now() });
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tec_core::migrate::Authority;
    use tokio::sync::oneshot;

    use super::*;

    fn record() -> Authority {
        let id = "0190a2f0-0000-7000-8000-000000000001";
        Authority::founded(id.parse().expect("it is one"))
    }

    #[tokio::test]
    async fn a_look_answers_who_asked_before_it_and_nobody_who_asked_during_it() {
        let fence = Fence::default();
        let looks = AtomicU64::new(0);
        let gate = Mutex::new(());
        let closed = gate.lock().await;
        let look = || async {
            looks.fetch_add(1, Ordering::SeqCst);
            drop(gate.lock().await);
            Ok(record())
        };
        let mut first = Box::pin(fence.look(look()));
        assert!(first.as_mut().now_or_never().is_none(), "it is under way");
        let mut late = [0; 3].map(|_| Box::pin(fence.look(look())));
        for ask in &mut late {
            assert!(ask.as_mut().now_or_never().is_none(), "the first is not for it");
        }
        drop(closed);
        assert!(first.await.is_ok());
        for answer in futures::future::join_all(late).await {
            assert!(answer.is_ok());
        }
        assert_eq!(looks.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn writers_that_come_in_turn_share_looks() {
        let (fence, looks) = (Fence::default(), AtomicU64::new(0));
        let write = async |number: u64| {
            tokio::time::sleep(Duration::from_millis(number)).await;
            let looked = fence.look(async {
                looks.fetch_add(1, Ordering::SeqCst);
                Ok(record())
            });
            assert!(looked.await.is_ok());
        };
        futures::future::join_all((0..20).map(write)).await;
        assert!(looks.load(Ordering::SeqCst) <= 4, "{looks:?}");
    }

    #[tokio::test]
    async fn a_look_that_fails_or_is_broken_off_answers_nobody() {
        let fence = Fence::default();
        let failed =
            async { Err(PortError::new(tec_core::port::PortErrorKind::Unavailable, "no")) };
        assert!(fence.look(failed).await.is_err());
        let (_open, never) = oneshot::channel::<()>();
        let broken = fence.look(async {
            let _ = never.await;
            Ok(record())
        });
        assert!(broken.now_or_never().is_none());
        let mut looked = false;
        let record = fence.look(async {
            looked = true;
            Ok(record())
        });
        assert!(record.await.is_ok());
        assert!(looked);
    }
}
