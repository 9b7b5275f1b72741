//! A bounded table of short-lived entries, by session.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::Extensions;
use tec_core::endpoint::network_of;
use tec_core::time::Timestamp;

use super::budget::Charge;
use super::session_id::SessionId;

/// The part of a table that one client may fill, as a divisor: a flood from one address leaves room for all
/// others, and a fleet behind one address still gets a quarter.
const SHARE: usize = 4;
/// Number of entries that are remembered after they made room, as a multiple of those in a table. They take a
/// tenth of the bytes.
const DISPLACED: usize = 4;

/// The network that a request came from, if the server reports it.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let ConnectInfo(address) = extensions.get::<ConnectInfo<SocketAddr>>()?;
    Some(network_of(address.ip()))
}

/// An entry and when it was opened.
#[derive(Debug)]
pub(crate) struct Entry<K, V> {
    pub(crate) opened: Timestamp,
    pub(crate) value: V,
    /// Another key that finds it, until it is removed.
    pub(crate) key: Option<K>,
    peer: Option<IpAddr>,
}

/// A bounded number of entries, each with the same lifetime, and at most a quarter of them for one client.
///
/// If it is full, the client that has the most makes room for one that has fewer: a flood from a few addresses
/// shuts nobody out.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    entries: HashMap<SessionId, Entry<K, V>>,
    keys: HashMap<K, SessionId>,
    /// By the time they were opened, which is the order of their expiry.
    queue: BTreeSet<(Timestamp, SessionId)>,
    /// The same for each client.
    peers: HashMap<IpAddr, BTreeSet<(Timestamp, SessionId)>>,
    /// The clients by their number of entries.
    sizes: BTreeSet<(usize, IpAddr)>,
    /// Entries that made room. They do not come back: their nonces may be spent.
    displaced: BTreeSet<(Timestamp, SessionId)>,
    max: usize,
    kept_seconds: i64,
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    pub(crate) fn new(max: usize, kept_seconds: i64) -> Self {
        Self {
            entries: HashMap::new(),
            keys: HashMap::new(),
            queue: BTreeSet::new(),
            peers: HashMap::new(),
            sizes: BTreeSet::new(),
            displaced: BTreeSet::new(),
            max,
            kept_seconds,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn count(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).map_or(0, BTreeSet::len)
    }

    /// Whether there is room for one more entry of this client, possibly in place of another's.
    #[cfg(any(test, feature = "guard"))]
    pub(crate) fn has_room(&self, peer: Option<IpAddr>) -> bool {
        self.has_share(peer) && (self.entries.len() < self.max || self.largest(peer).is_some())
    }

    fn has_share(&self, peer: Option<IpAddr>) -> bool {
        peer.is_none_or(|peer| self.count(peer) < self.max.div_ceil(SHARE))
    }

    /// The client that makes room for this one: it has at least two entries more, so that two clients do not
    /// displace each other in turn.
    fn largest(&self, peer: Option<IpAddr>) -> Option<IpAddr> {
        let own = self.count(peer?);
        let (count, largest) = self.sizes.last()?;
        if self.displaced.len() >= self.max.saturating_mul(DISPLACED) {
            return None;
        }
        (*count > own.saturating_add(1)).then_some(*largest)
    }

    /// Takes the bytes of one more entry of this client, if need be those of the oldest entry of the client that has
    /// the most, which is then forgotten, and whose place is free. `false` if there is no room.
    pub(crate) fn make_room(
        &mut self,
        peer: Option<IpAddr>,
        charge: &mut Charge,
        bytes: usize,
    ) -> bool {
        if !charge.is_within_share(bytes) {
            return false;
        }
        if !self.is_full() && charge.grow_to(bytes) {
            return true;
        }
        let Some(gone) = self.displace(peer) else {
            return false;
        };
        // It gives its bytes back.
        drop(gone);
        charge.grow_to(bytes)
    }

    /// Removes the oldest entry of the client that has the most, if that one has to make room for this one.
    fn displace(&mut self, peer: Option<IpAddr>) -> Option<V> {
        let largest = self.largest(peer).filter(|_| self.has_share(peer))?;
        let oldest = *self.peers.get(&largest)?.first()?;
        self.displaced.insert(oldest);
        self.remove(oldest.1)
    }

    /// Whether the entry made room for another one.
    pub(crate) fn was_displaced(&self, id: SessionId, opened: Timestamp) -> bool {
        self.displaced.contains(&(opened, id))
    }

    /// Whether all places are taken.
    fn is_full(&self) -> bool {
        self.entries.len() >= self.max
    }

    /// Adds an entry; `false` if there is no place, or if there is already one with this ID.
    pub(crate) fn insert(
        &mut self,
        id: SessionId,
        peer: Option<IpAddr>,
        opened: Timestamp,
        value: V,
    ) -> bool {
        let is_known = self.entries.contains_key(&id) || self.was_displaced(id, opened);
        if self.is_full() || !self.has_share(peer) || is_known {
            return false;
        }
        if let Some(peer) = peer {
            self.change(peer, |own| own.insert((opened, id)));
        }
        self.queue.insert((opened, id));
        let entry = Entry { opened, value, key: None, peer };
        self.entries.insert(id, entry);
        true
    }

    fn remove(&mut self, id: SessionId) -> Option<V> {
        let gone = self.entries.remove(&id)?;
        self.queue.remove(&(gone.opened, id));
        if let Some(peer) = gone.peer {
            self.change(peer, |own| own.remove(&(gone.opened, id)));
        }
        if let Some(key) = gone.key {
            self.keys.remove(&key);
        }
        Some(gone.value)
    }

    fn change(
        &mut self,
        peer: IpAddr,
        change: impl FnOnce(&mut BTreeSet<(Timestamp, SessionId)>) -> bool,
    ) {
        let own = self.peers.entry(peer).or_default();
        self.sizes.remove(&(own.len(), peer));
        change(own);
        if own.is_empty() {
            self.peers.remove(&peer);
        } else {
            self.sizes.insert((own.len(), peer));
        }
    }

    pub(crate) fn get(&self, id: SessionId, now: Timestamp) -> Option<&Entry<K, V>> {
        let end = now.plus_seconds(-self.kept_seconds);
        self.entries.get(&id).filter(|entry| entry.opened > end)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId, now: Timestamp) -> Option<&mut Entry<K, V>> {
        let end = now.plus_seconds(-self.kept_seconds);
        self.entries.get_mut(&id).filter(|entry| entry.opened > end)
    }

    /// From now on, this key also finds the entry.
    pub(crate) fn set_key(&mut self, id: SessionId, key: K) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.key = Some(key);
            self.keys.insert(key, id);
        }
    }

    /// The entry with this key.
    pub(crate) fn find(&self, key: &K) -> Option<SessionId> {
        self.keys.get(key).copied()
    }

    /// Removes all expired entries.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        while self.pop_expired(now).is_some() {}
    }

    fn pop_expired(&mut self, now: Timestamp) -> Option<V> {
        let end = now.plus_seconds(-self.kept_seconds);
        while self.displaced.first().is_some_and(|(opened, _)| *opened <= end) {
            self.displaced.pop_first();
        }
        let (_, id) = *self.queue.first()?;
        if self.get(id, now).is_some() {
            return None;
        }
        self.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn id(number: u32) -> SessionId {
        SessionId::parse(&format!("{number:032x}")).unwrap()
    }

    #[test]
    fn the_table_is_bounded_and_expired_entries_make_room() {
        let mut table = Table::<(), _>::new(2, 300);
        assert!(table.insert(id(1), None, at(0), ()));
        assert!(!table.insert(id(1), None, at(0), ()), "an id counts once");
        assert!(table.insert(id(2), None, at(10), ()));
        assert!(!table.insert(id(3), None, at(299), ()));
        assert!(table.get(id(1), at(299)).is_some() && table.get(id(1), at(300)).is_none());
        assert!(table.pop_expired(at(299)).is_none());
        assert!(table.pop_expired(at(300)).is_some() && table.pop_expired(at(300)).is_none());
        assert!(table.insert(id(3), None, at(300), ()));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn entries_expire_by_their_time_in_whatever_order_they_come() {
        let mut table = Table::<(), _>::new(3, 300);
        for (number, opened) in [(1, 10), (2, 60), (3, 5)] {
            assert!(table.insert(id(number), None, at(opened), number));
        }
        assert_eq!(table.pop_expired(at(304)), None);
        assert_eq!(table.pop_expired(at(310)), Some(3));
        assert_eq!(table.pop_expired(at(310)), Some(1));
        assert_eq!((table.pop_expired(at(310)), table.len()), (None, 1));
    }

    #[test]
    fn one_client_has_a_quarter_and_others_the_rest() {
        let mut table = Table::<(), _>::new(8, 300);
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let opened = (0..9).filter(|n| table.insert(id(*n), Some(one), at(0), ()));
        assert_eq!(opened.count(), 2);
        assert!(!table.has_room(Some(one)) && table.has_room(Some(other)));
        while table.pop_expired(at(300)).is_some() {}
        assert!(table.has_room(Some(one)) && table.peers.is_empty() && table.sizes.is_empty());
    }

    #[test]
    fn a_full_table_has_room_for_a_client_that_has_less_than_others() {
        let mut table = Table::<(), _>::new(8, 300);
        let peer = |last| Some(IpAddr::from([192, 0, 2, last]));
        for number in 0..8_u8 {
            let opened = at(i64::from(number));
            assert!(table.insert(id(number.into()), peer(number / 2), opened, number));
        }
        assert!(!table.insert(id(8), peer(9), at(8), 8) && table.has_room(peer(9)));
        assert_eq!(table.displace(peer(9)), Some(6), "the oldest of a client that has the most");
        assert!(table.insert(id(8), peer(9), at(8), 8));
        // It has as many as the others then, and no one has to make room for it or for an unknown client.
        assert!(!table.has_room(peer(9)) && table.displace(peer(9)).is_none());
        assert!(!table.has_room(None) && table.displace(None).is_none());
        assert!(table.get(id(6), at(8)).is_none() && table.get(id(7), at(8)).is_some());
        assert!(table.pop_expired(at(300)).is_some());
        assert!(!table.insert(id(6), peer(10), at(6), 6), "its nonce may be spent");
        while table.pop_expired(at(400)).is_some() {}
        assert!(table.queue.is_empty() && table.peers.is_empty());
        assert!(table.sizes.is_empty() && table.displaced.is_empty());
    }
}
