//! Limits on objects that strangers can create, without a request for each of them.
//!
//! Within one process a limit is exact. With several replicas, each counts again after it has filled one of
//! [`SHARE`] parts of the free places; between counts, it knows only about its own objects. The operator then
//! removes the excess.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tec_core::id::MachineId;
use tec_core::port::PortError;
use tec_core::time::Timestamp;

/// Seconds for which a count is valid in any case, so that strangers cannot cause a count with each of their
/// requests; and its longest validity, since others create objects too.
const FRESH: i64 = 1;
const OLD: i64 = 300;
/// This many replicas fill all free places before one of them counts again.
const SHARE: u64 = 8;
/// Number of keys of one machine that are admitted without counting: an honest node has one, and one in
/// reserve.
const UNCOUNTED_KEYS: u64 = 2;
/// Number of machines whose keys are counted at the same time.
const MACHINES: usize = 10_000;

/// All objects that have a limit.
#[derive(Debug)]
pub(super) struct Rooms {
    machines: Arc<Room>,
    keys: Mutex<BTreeMap<MachineId, Arc<Room>>>,
}

impl Default for Rooms {
    fn default() -> Self {
        Self { machines: Arc::new(Room::counted_beyond(0)), keys: Mutex::default() }
    }
}

impl Rooms {
    /// Room for machines without an attestation key.
    pub(super) fn of_machines(&self) -> Arc<Room> {
        Arc::clone(&self.machines)
    }

    /// Called when this process may have made room: earlier counts are no longer valid.
    pub(super) fn freed(&self) {
        lock(&self.machines.state).counted = None;
        for room in lock(&self.keys).values() {
            lock(&room.state).counted = None;
        }
    }

    /// Room for keys that wait for this machine.
    pub(super) fn of_keys(&self, machine: MachineId) -> Arc<Room> {
        let mut keys = lock(&self.keys);
        if keys.len() >= MACHINES {
            // Unused rooms are forgotten; their machines are counted again.
            keys.retain(|_, room| Arc::strong_count(room) > 1);
        }
        let room =
            keys.entry(machine).or_insert_with(|| Arc::new(Room::counted_beyond(UNCOUNTED_KEYS)));
        Arc::clone(room)
    }
}

/// Places, and who has taken one.
#[derive(Debug)]
pub(super) struct Room {
    /// While this process has taken fewer places than this, nothing is counted.
    uncounted: u64,
    /// Held while counting, so that one caller counts for all.
    counting: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: u64,
    /// When everything was counted, and the number at which it is counted again.
    counted: Option<(Timestamp, u64)>,
    /// Objects being created: a list may or may not contain them.
    entering: BTreeSet<String>,
}

/// A place for an object that is being created.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    name: String,
    is_used: bool,
}

impl Place {
    /// The object was created.
    pub(super) fn keep(mut self) {
        self.is_used = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.room.state);
        state.entering.remove(&self.name);
        if !self.is_used {
            state.taken = state.taken.saturating_sub(1);
        }
    }
}

impl Room {
    fn counted_beyond(uncounted: u64) -> Self {
        Self { uncounted, counting: tokio::sync::Mutex::default(), state: Mutex::default() }
    }

    /// Takes a place for the object `name`, or reports that all `most` are taken. `list` names the objects
    /// that have one.
    pub(super) async fn enter(
        self: Arc<Self>,
        name: &str,
        most: u64,
        now: Timestamp,
        list: impl Future<Output = Result<BTreeSet<String>, PortError>> + Send,
    ) -> Result<Option<Place>, PortError> {
        let one_at_a_time = self.counting.lock().await;
        // Callers that enter in the meantime wait for the lock, so these are the only objects that a list may
        // lack.
        if self.must_count(most, now) {
            let mut names = lock(&self.state).entering.clone();
            names.extend(list.await?);
            let mut state = lock(&self.state);
            state.taken = u64::try_from(names.len()).unwrap_or(u64::MAX);
            let share = most.saturating_sub(state.taken) / SHARE;
            state.counted = Some((now, state.taken.saturating_add(share)));
        }
        let mut state = lock(&self.state);
        if state.taken >= most {
            return Ok(None);
        }
        state.taken += 1;
        state.entering.insert(name.to_owned());
        drop(state);
        drop(one_at_a_time);
        Ok(Some(Place { name: name.to_owned(), is_used: false, room: self }))
    }

    fn must_count(&self, most: u64, now: Timestamp) -> bool {
        let state = lock(&self.state);
        match state.counted {
            None => state.taken >= self.uncounted.min(most),
            Some((at, enough)) => {
                let is_full = state.taken >= enough && now >= at.plus_seconds(FRESH);
                is_full || now >= at.plus_seconds(OLD) || now < at
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A room, and how many objects there are.
    #[derive(Default)]
    struct Hall {
        room: Arc<Room>,
        others: u64,
        counts: AtomicU64,
    }

    impl Default for Room {
        fn default() -> Self {
            Self::counted_beyond(0)
        }
    }

    impl Hall {
        /// Whether one more was admitted, with at most `most` in total.
        async fn enter(&self, name: u64, most: u64, second: i64) -> bool {
            let list = async {
                self.counts.fetch_add(1, Ordering::Relaxed);
                let kept = 1000..1000 + self.others;
                Ok(kept.map(|number| number.to_string()).collect())
            };
            let now = Timestamp::from_unix_seconds(second);
            let room = Arc::clone(&self.room);
            let place = room.enter(&name.to_string(), most, now, list).await.unwrap();
            place.map(Place::keep).is_some()
        }

        fn counts(&self) -> u64 {
            self.counts.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn an_eighth_of_the_free_places_is_filled_before_all_are_counted_again() {
        let hall = Hall { others: 20, ..Hall::default() };
        for name in 0..10 {
            assert!(hall.enter(name, 100, 5).await);
        }
        assert_eq!(hall.counts(), 1);
        assert!(hall.enter(10, 100, 6).await);
        assert_eq!(hall.counts(), 2);
        assert!(hall.enter(11, 100, 305).await);
        assert_eq!(hall.counts(), 2);
        assert!(hall.enter(12, 100, 306).await);
        assert_eq!(hall.counts(), 3);
    }

    #[tokio::test]
    async fn the_limit_holds_and_those_who_are_refused_cost_one_count_a_second() {
        let hall = Hall { others: 3, ..Hall::default() };
        assert!(hall.enter(1, 4, 5).await);
        for name in 2..50 {
            assert!(!hall.enter(name, 4, 5).await);
        }
        assert_eq!(hall.counts(), 1);
        let freed = Hall { others: 0, room: hall.room, ..Hall::default() };
        assert!(freed.enter(2, 4, 6).await);
        assert_eq!(freed.counts(), 1);
    }
}
