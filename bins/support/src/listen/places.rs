//! The table of a listener's connections: bounded, in fair shares.
//!
//! A network at its own limit gives up the connection that has waited longest for its client. When all places
//! are taken, the network with the most connections gives one up for a network that has fewer, so that no
//! number of connections from a few addresses locks out the rest.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tec_core::endpoint::network_of;
use tokio::sync::Notify;

use super::activity::{Activity, Worth};
use super::counts::{Counts, Reason};
use crate::shared::SharedSources;

#[derive(Debug)]
struct Held {
    peer: IpAddr,
    activity: Arc<Activity>,
    displaced: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// In order of arrival.
    open: BTreeMap<u64, Held>,
    peers: HashMap<IpAddr, usize>,
}

/// All connections of a listener.
#[derive(Debug)]
pub struct Places {
    total: usize,
    per_peer: usize,
    shared: SharedSources,
    table: Mutex<Table>,
    counts: Arc<Counts>,
}

impl Places {
    /// This many places in total, and this many per network.
    pub fn new(total: usize, per_peer: usize, counts: Arc<Counts>) -> Arc<Self> {
        Self::shared_by(SharedSources::default(), total, per_peer, counts)
    }

    /// Like `new`, but a single address in these networks may take all places.
    pub fn shared_by(
        shared: SharedSources,
        total: usize,
        per_peer: usize,
        counts: Arc<Counts>,
    ) -> Arc<Self> {
        Arc::new(Self { total, per_peer, shared, table: Mutex::default(), counts })
    }

    /// Counters of the listener.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// A place for a connection from this address, possibly that of another connection, which is
    /// asked to end.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Place, Reason> {
        let peer = network_of(address);
        let per_peer = if self.shared.contains(address) { self.total } else { self.per_peer };
        let mut table = self.table.lock();
        let admitted = table.make_room(peer, self.total, per_peer);
        let displaced = admitted.inspect_err(|reason| self.counts.close(*reason))?;
        if displaced.is_some() {
            self.counts.close(Reason::Displaced);
        }
        self.counts.accept();
        Ok(table.insert(self, peer))
    }

    /// Gives up the connection that is worth least and is not being served, because the process is out of
    /// file descriptors.
    pub fn shed(&self) {
        let mut table = self.table.lock();
        let least = table.least_of(table.most(), None);
        if let Some((id, _)) = least.filter(|(_, worth)| *worth < Worth::Serving) {
            table.displace(id);
            self.counts.close(Reason::Displaced);
        }
    }
}

impl Table {
    /// The connection that must make room for one of this peer, if any.
    fn make_room(
        &mut self,
        peer: IpAddr,
        total: usize,
        per_peer: usize,
    ) -> Result<Option<u64>, Reason> {
        let own = self.count(peer);
        let victim = if own >= per_peer {
            let least = self.least_of(0, Some(peer));
            let waits = least.filter(|(_, worth)| *worth < Worth::Serving);
            Some(waits.ok_or(Reason::PeerLimit)?.0)
        } else if self.open.len() >= total {
            let most = self.most();
            // Between peers with equally many connections, one that is being served does not make room.
            let fewer = own.saturating_add(1) < most;
            let least = self.least_of(most, None);
            let allowed = least.filter(|(_, worth)| fewer || *worth < Worth::Serving);
            Some(allowed.ok_or(Reason::TotalLimit)?.0)
        } else {
            None
        };
        if let Some(id) = victim {
            self.displace(id);
        }
        Ok(victim)
    }

    fn insert(&mut self, places: &Arc<Places>, peer: IpAddr) -> Place {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let (activity, displaced) = (Activity::new(), Arc::new(Notify::new()));
        *self.peers.entry(peer).or_default() += 1;
        let held =
            Held { peer, activity: Arc::clone(&activity), displaced: Arc::clone(&displaced) };
        self.open.insert(id, held);
        Place { places: Arc::clone(places), id, activity, displaced }
    }

    fn count(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).copied().unwrap_or_default()
    }

    /// Number of connections of the peer with the most.
    fn most(&self) -> usize {
        self.peers.values().copied().max().unwrap_or_default()
    }

    /// The connection to give up first, either of this peer or of all peers with at least `count`
    /// connections.
    fn least_of(&self, count: usize, peer: Option<IpAddr>) -> Option<(u64, Worth)> {
        let candidates = self.open.iter().filter(|(_, held)| match peer {
            Some(peer) => held.peer == peer,
            None => self.count(held.peer) >= count,
        });
        candidates
            .map(|(id, held)| {
                let (worth, since) = held.activity.worth();
                (worth, since, Reverse(*id))
            })
            .min()
            .map(|(worth, _, Reverse(id))| (id, worth))
    }

    fn displace(&mut self, id: u64) {
        if let Some(held) = self.remove(id) {
            held.displaced.notify_one();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Held> {
        let held = self.open.remove(&id)?;
        if let Some(count) = self.peers.get_mut(&held.peer) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.peers.remove(&held.peer);
            }
        }
        Some(held)
    }
}

/// The place of one connection, freed on drop.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    id: u64,
    activity: Arc<Activity>,
    displaced: Arc<Notify>,
}

impl Place {
    /// What the connection is doing.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Counters of the listener.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.places.counts
    }

    /// Resolves when the connection has to make room for another one.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table.lock().remove(self.id);
        self.places.counts.end();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn places(total: usize, per_peer: usize) -> Arc<Places> {
        Places::new(total, per_peer, Counts::new("test"))
    }

    fn is_displaced(place: &Place) -> bool {
        !place.places.table.lock().open.contains_key(&place.id)
    }

    #[tokio::test(start_paused = true)]
    async fn ten_addresses_that_hold_everything_do_not_lock_out_an_eleventh() {
        let places = places(100, 50);
        let mut held = Vec::new();
        for number in 0..100 {
            held.push(places.admit(peer(number % 10)).unwrap());
            advance(Duration::from_millis(1)).await;
        }
        let requests: Vec<_> = held.iter().map(|place| place.activity.request()).collect();
        let mut eleventh = Vec::new();
        for _ in 0..9 {
            eleventh.push(places.admit(peer(10)).unwrap());
        }
        assert_eq!(held.iter().filter(|place| is_displaced(place)).count(), 9);
        assert!(!eleventh.iter().any(is_displaced));
        drop(requests);
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_waits_longest_makes_room_and_none_that_is_served() {
        let places = places(10, 3);
        let served = places.admit(peer(1)).unwrap();
        let _request = served.activity.request();
        advance(Duration::from_millis(1)).await;
        let silent = places.admit(peer(1)).unwrap();
        advance(Duration::from_millis(1)).await;
        let fresh = places.admit(peer(1)).unwrap();
        let newcomer = places.admit(peer(1)).unwrap();
        assert!(is_displaced(&silent));
        for place in [&served, &fresh, &newcomer] {
            assert!(!is_displaced(place));
        }
        silent.displaced().await;
        assert_eq!(places.counts.closed(Reason::Displaced), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_served_as_much_as_one_may_be_is_refused_more() {
        let places = places(4, 2);
        let held = [1, 1, 2, 2].map(|number| places.admit(peer(number)).unwrap());
        let _requests = [0, 1, 2, 3].map(|index: usize| held[index].activity.request());
        assert_eq!(places.admit(peer(1)).unwrap_err(), Reason::PeerLimit);
        let third = places.admit(peer(3)).unwrap();
        assert_eq!(held.iter().filter(|place| is_displaced(place)).count(), 1);
        let fourth = places.admit(peer(3)).err();
        assert_eq!(fourth, Some(Reason::TotalLimit), "1 + 1 are not fewer than 2");
        assert!(!is_displaced(&third));
        assert_eq!(places.counts.closed(Reason::TotalLimit), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fleet_behind_one_address_may_have_all_places_and_makes_room_for_others() {
        let shared = ["192.0.2.1/32".parse().unwrap()];
        let shared = SharedSources::from(&shared[..]);
        let places = Places::shared_by(shared, 6, 2, Counts::new("test"));
        let fleet: Vec<_> = (0..6).map(|_| places.admit(peer(1)).unwrap()).collect();
        assert!(!fleet.iter().any(is_displaced));
        let others = [places.admit(peer(2)).unwrap(), places.admit(peer(2)).unwrap()];
        assert_eq!(fleet.iter().filter(|place| is_displaced(place)).count(), 2);
        let _requests = others.each_ref().map(|place| place.activity.request());
        assert_eq!(places.admit(peer(2)).unwrap_err(), Reason::PeerLimit);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_of_each_connection_does_not_lock_out_the_next() {
        let places = places(3, 3);
        let held = [1, 2, 3].map(|number| places.admit(peer(number)).unwrap());
        let newcomer = places.admit(peer(4)).unwrap();
        assert_eq!(held.iter().filter(|place| is_displaced(place)).count(), 1);
        assert!(!is_displaced(&newcomer));
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_free_again_when_connections_end() {
        let places = places(2, 2);
        let held = [1, 1].map(|number| places.admit(peer(number)).unwrap());
        places.shed();
        assert_eq!(places.table.lock().open.len(), 1);
        assert_eq!(places.counts.open(), 2, "the one that was told to has not ended");
        drop(held);
        assert!(places.table.lock().open.is_empty() && places.table.lock().peers.is_empty());
        assert_eq!(places.counts.open(), 0);
    }
}
