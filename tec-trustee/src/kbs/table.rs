//! A bounded table of short-lived entries, by session.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::Extensions;
use tec_core::endpoint::network_of;
use tec_core::time::Timestamp;

use super::session_id::SessionId;

/// The part of a table that one client may fill, as a divisor: a flood from one address leaves room for all
/// others, and a fleet behind one address still gets a quarter.
const SHARE: usize = 4;

/// The network that a request came from, if the server reports it.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let ConnectInfo(address) = extensions.get::<ConnectInfo<SocketAddr>>()?;
    Some(network_of(address.ip()))
}

/// An entry and when it was opened.
#[derive(Debug)]
pub(crate) struct Entry<V> {
    pub(crate) opened: Timestamp,
    pub(crate) value: V,
    peer: Option<IpAddr>,
}

/// A bounded number of entries, each with the same lifetime, and at most a quarter of them for one client.
#[derive(Debug)]
pub(crate) struct Table<V> {
    entries: HashMap<SessionId, Entry<V>>,
    /// By the time they were opened, which is the order of their expiry.
    queue: BTreeSet<(Timestamp, SessionId)>,
    peers: HashMap<IpAddr, usize>,
    max: usize,
    kept_seconds: i64,
}

impl<V> Table<V> {
    pub(crate) fn new(max: usize, kept_seconds: i64) -> Self {
        Self {
            entries: HashMap::new(),
            queue: BTreeSet::new(),
            peers: HashMap::new(),
            max,
            kept_seconds,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is room for one more entry of this client.
    pub(crate) fn has_room(&self, peer: Option<IpAddr>) -> bool {
        let of_peer = peer.and_then(|peer| self.peers.get(&peer));
        let share = self.max.div_ceil(SHARE);
        self.entries.len() < self.max && of_peer.is_none_or(|count| *count < share)
    }

    /// Adds an entry; `false` if there is no room, or if there is already one with this ID.
    pub(crate) fn insert(
        &mut self,
        id: SessionId,
        peer: Option<IpAddr>,
        opened: Timestamp,
        value: V,
    ) -> bool {
        if !self.has_room(peer) || self.entries.contains_key(&id) {
            return false;
        }
        if let Some(peer) = peer {
            *self.peers.entry(peer).or_default() += 1;
        }
        self.queue.insert((opened, id));
        let entry = Entry { opened, value, peer };
        self.entries.insert(id, entry);
        true
    }

    pub(crate) fn get(&self, id: SessionId, now: Timestamp) -> Option<&Entry<V>> {
        let end = now.plus_seconds(-self.kept_seconds);
        self.entries.get(&id).filter(|entry| entry.opened > end)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId, now: Timestamp) -> Option<&mut Entry<V>> {
        let end = now.plus_seconds(-self.kept_seconds);
        self.entries.get_mut(&id).filter(|entry| entry.opened > end)
    }

    /// Removes one expired entry; the caller asks until there is none.
    pub(crate) fn pop_expired(&mut self, now: Timestamp) -> Option<V> {
        let (_, id) = *self.queue.first()?;
        if self.get(id, now).is_some() {
            return None;
        }
        self.queue.pop_first();
        let gone = self.entries.remove(&id)?;
        if let Some(peer) = gone.peer
            && let Some(count) = self.peers.get_mut(&peer)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.peers.remove(&peer);
            }
        }
        Some(gone.value)
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
        let mut table = Table::new(2, 300);
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
        let mut table = Table::new(3, 300);
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
        let mut table = Table::new(8, 300);
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let opened = (0..9).filter(|n| table.insert(id(*n), Some(one), at(0), ()));
        assert_eq!(opened.count(), 2);
        assert!(!table.has_room(Some(one)) && table.has_room(Some(other)));
        while table.pop_expired(at(300)).is_some() {}
        assert!(table.has_room(Some(one)) && table.peers.is_empty());
    }
}
