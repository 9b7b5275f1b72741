//! Objects to reconcile, each by one worker at a time, and failed ones after a growing delay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tec_core::port::Entropy;
use tokio::sync::Notify;
use tokio::time::Instant;

/// First delay after a failure, and the longest one.
const DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(5));

/// When to reconcile an object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// When an event occurs.
    Wait,
    /// When the watch reports the last write; there is then more to do.
    Again,
    /// After this time at the latest.
    After(Duration),
}

/// A queue of keys, each with the time at which it is due.
#[derive(Debug)]
pub(super) struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    entropy: Arc<dyn Entropy>,
}

#[derive(Debug)]
struct State<K> {
    due: BTreeMap<K, Instant>,
    /// Those of `due` that no worker has, in the order in which they are taken.
    order: BTreeSet<(Instant, K)>,
    running: BTreeSet<K>,
    failures: BTreeMap<K, u32>,
}

impl<K: Clone + Ord> State<K> {
    fn schedule(&mut self, key: K, at: Instant) {
        if let Some(known) = self.due.get(&key).copied() {
            if known <= at {
                return;
            }
            self.order.remove(&(known, key.clone()));
        }
        if !self.running.contains(&key) {
            self.order.insert((at, key.clone()));
        }
        self.due.insert(key, at);
    }

    fn take(&mut self) -> Option<K> {
        let (_, key) = self.order.pop_first()?;
        self.due.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    fn put_back(&mut self, key: &K) {
        self.running.remove(key);
        if let Some(at) = self.due.get(key) {
            self.order.insert((*at, key.clone()));
        }
    }
}

impl<K: Clone + Ord> Queue<K> {
    pub(super) fn new(entropy: Arc<dyn Entropy>) -> Self {
        Self {
            state: Mutex::new(State {
                due: BTreeMap::new(),
                order: BTreeSet::new(),
                running: BTreeSet::new(),
                failures: BTreeMap::new(),
            }),
            changed: Notify::new(),
            entropy,
        }
    }

    /// An event occurred for the object: it is due now, however often it failed before.
    pub(super) fn wake(&self, key: K) {
        self.schedule(key, Duration::ZERO);
    }

    /// It is due after this time, if nothing occurs before.
    pub(super) fn wake_after(&self, key: K, after: Duration) {
        self.schedule(key, after);
    }

    fn schedule(&self, key: K, after: Duration) {
        self.state.lock().schedule(key, Instant::now() + after);
        self.changed.notify_one();
    }

    /// Number of objects that wait or are being reconciled.
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock();
        state.due.len() + state.running.len()
    }

    /// The next object that is due and that no worker has.
    pub(super) async fn next(&self) -> K {
        loop {
            let wait = match self.take() {
                Ok(key) => return key,
                Err(wait) => wait,
            };
            let changed = self.changed.notified();
            match wait {
                Some(until) => {
                    // Whichever comes first, the queue is checked again.
                    let _ = tokio::time::timeout_at(until, changed).await;
                }
                None => changed.await,
            }
        }
    }

    fn take(&self) -> Result<K, Option<Instant>> {
        let mut state = self.state.lock();
        match state.order.first() {
            Some((at, _)) if *at > Instant::now() => Err(Some(*at)),
            _ => state.take().ok_or(None),
        }
    }

    /// The object was reconciled.
    pub(super) fn done(&self, key: &K, next: Next) {
        let mut state = self.state.lock();
        state.put_back(key);
        state.failures.remove(key);
        drop(state);
        match next {
            Next::Wait | Next::Again => self.changed.notify_one(),
            Next::After(delay) => self.schedule(key.clone(), delay),
        }
    }

    /// Reconciling the object failed. Returns when it is retried.
    pub(super) fn failed(&self, key: &K) -> Duration {
        let mut state = self.state.lock();
        state.put_back(key);
        let failures = state.failures.entry(key.clone()).or_insert(0);
        *failures = failures.saturating_add(1);
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        drop(state);
        let most = DELAYS.0.saturating_mul(factor).min(DELAYS.1);
        let delay = self.jittered(most);
        self.schedule(key.clone(), delay);
        delay
    }

    /// A random time between half of `most` and all of it, so that objects that failed together are not
    /// retried together.
    fn jittered(&self, most: Duration) -> Duration {
        let mut random = [0; 2];
        self.entropy.fill(&mut random);
        let half = most / 2;
        half + half * u32::from(u16::from_le_bytes(random)) / u32::from(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::SeededEntropy;

    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::new(Arc::new(SeededEntropy::new(1)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_never_looked_at_twice_at_once() {
        let queue = queue();
        queue.wake("a");
        assert_eq!(queue.next().await, "a");
        queue.wake("a");
        let again = tokio::time::timeout(Duration::from_mins(1), queue.next()).await;
        assert!(again.is_err(), "it is being looked at");
        queue.done(&"a", Next::Wait);
        assert_eq!(queue.next().await, "a", "what happened meanwhile counts");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_longest_comes_first_and_who_is_needed_earlier_moves_up() {
        let queue = queue();
        for (key, delay) in [("late", 3), ("b", 1), ("a", 2)] {
            queue.schedule(key, Duration::from_secs(delay));
        }
        queue.schedule("late", Duration::from_secs(9));
        queue.wake("a");
        for key in ["a", "b", "late"] {
            assert_eq!(queue.next().await, key);
        }
        assert_eq!(queue.len(), 3, "all of them are being looked at");
    }

    #[tokio::test(start_paused = true)]
    async fn delays_grow_to_a_limit_and_end_with_success() {
        let queue = queue();
        let mut last = Duration::ZERO;
        for _ in 0..40 {
            queue.wake("a");
            queue.next().await;
            last = queue.failed(&"a");
            assert!(last <= DELAYS.1);
        }
        assert!(last >= DELAYS.1 / 2);
        queue.wake("a");
        queue.next().await;
        queue.done(&"a", Next::Wait);
        queue.wake("a");
        queue.next().await;
        assert!(queue.failed(&"a") <= DELAYS.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_object_does_not_hold_up_others() {
        let queue = queue();
        queue.wake("a");
        queue.next().await;
        queue.failed(&"a");
        queue.wake("b");
        assert_eq!(queue.next().await, "b");
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn an_object_that_fails_for_good_keeps_the_alert_firing() {
        use crate::signal::{Alert, Condition};
        let alert = Alert::ALL.iter().find(|alert| alert.name == "TecReconcileFails").unwrap();
        let Some(Condition::Grows(_, _, than, minutes)) = alert.any_of.first() else {
            panic!("{alert:?} is not about growth");
        };
        // The window may begin right after a try.
        let tries = u64::from(*minutes) * 60 / DELAYS.1.as_secs() - 1;
        assert!(tries > u64::from(*than), "{tries} tries in {minutes} minutes");
    }
}
