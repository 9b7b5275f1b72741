//! Bytes that are kept for clients: bounded in total and per client network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Spent {
    total: usize,
    peers: HashMap<IpAddr, usize>,
}

/// A total number of bytes, and the part of it that one network may use.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    max: usize,
    per_peer: usize,
    spent: Arc<Mutex<Spent>>,
}

impl Budget {
    /// One network may use 1/`share` of the total.
    pub(crate) fn new(max: usize, share: usize) -> Self {
        Self { max, per_peer: max / share, spent: Arc::default() }
    }

    /// An empty charge. If the server does not report the client's address, only the total is
    /// bounded.
    pub(crate) fn charge(&self, peer: Option<IpAddr>) -> Charge {
        Charge { budget: self.clone(), peer, bytes: 0 }
    }
}

/// The bytes that something takes from a budget until it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Budget,
    peer: Option<IpAddr>,
    bytes: usize,
}

impl Charge {
    /// Whether this many bytes are within the part of one network, whatever others use.
    pub(crate) fn is_within_share(&self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let spent = self.budget.spent.lock();
        let own = self.peer.and_then(|peer| spent.peers.get(&peer)).copied().unwrap_or_default();
        self.peer.is_none() || own.saturating_add(more) <= self.budget.per_peer
    }

    /// Grows to this many bytes; `false`, and no change, if that many are not available.
    #[must_use]
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let mut spent = self.budget.spent.lock();
        let total = spent.total.saturating_add(more);
        let of_peer = self.peer.map(|peer| {
            let former = spent.peers.get(&peer).copied().unwrap_or_default();
            (peer, former.saturating_add(more))
        });
        let fits = total <= self.budget.max
            && of_peer.is_none_or(|(_, bytes)| bytes <= self.budget.per_peer);
        if fits {
            spent.total = total;
            spent.peers.extend(of_peer.filter(|(_, bytes)| *bytes > 0));
            self.bytes = self.bytes.saturating_add(more);
        }
        fits
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut spent = self.budget.spent.lock();
        spent.total = spent.total.saturating_sub(self.bytes);
        if let Some(peer) = self.peer
            && let Some(of_peer) = spent.peers.get_mut(&peer)
        {
            *of_peer = of_peer.saturating_sub(self.bytes);
            if *of_peer == 0 {
                spent.peers.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_has_its_share_and_all_have_the_whole() {
        let budget = Budget::new(100, 4);
        let [one, other] = [1, 2].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let (mut first, mut second) = (budget.charge(one), budget.charge(one));
        assert!(first.grow_to(20) && !second.grow_to(6) && second.grow_to(5));
        assert!(!first.grow_to(21), "what is refused changes nothing");
        assert!(budget.charge(other).grow_to(25));
        let mut unknown = budget.charge(None);
        assert!(unknown.grow_to(75) && !budget.charge(other).grow_to(1));
        drop((first, second, unknown));
        let spent = budget.spent.lock();
        assert!(spent.total == 0 && spent.peers.is_empty());
    }
}
