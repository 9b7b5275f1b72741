//! The end of bootstrapping: announced once, and seen by everyone, whenever they start listening.

use tokio::sync::watch;

/// Stops the init server and the join client. Cheap to clone; all clones share one state.
#[derive(Clone, Debug)]
pub struct Cleaner(watch::Sender<bool>);

impl Default for Cleaner {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Cleaner {
    /// Creates a cleaner that has announced nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces the end; repeating it changes nothing. Never blocks, even if nobody listens.
    pub fn clean(&self) {
        self.0.send_replace(true);
    }

    /// A receiver that turns true on the announcement.
    pub fn stop(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }

    /// Resolves once the end is announced.
    pub async fn cleaned(&self) {
        // The sender lives as long as `self`.
        let _ = self.stop().wait_for(|stop| *stop).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn many_who_clean_at_once_stop_each_part_once() {
        let cleaner = Cleaner::new();
        let stopped = Arc::new(AtomicUsize::new(0));
        let mut parts = JoinSet::new();
        for _ in 0..4 {
            let (cleaner, stopped) = (cleaner.clone(), Arc::clone(&stopped));
            parts.spawn(async move {
                cleaner.cleaned().await;
                stopped.fetch_add(1, Ordering::SeqCst);
            });
        }
        for _ in 0..1000 {
            let cleaner = cleaner.clone();
            parts.spawn(async move { cleaner.clean() });
        }
        parts.join_all().await;
        assert_eq!(stopped.load(Ordering::SeqCst), 4);
    }

    #[tokio::test]
    async fn cleaning_before_anybody_listens_and_after_the_end_is_fine() {
        let cleaner = Cleaner::new();
        cleaner.clean();
        cleaner.cleaned().await;
        cleaner.clean();
        assert!(*cleaner.stop().borrow());
    }
}
