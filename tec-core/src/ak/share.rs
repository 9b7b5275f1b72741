//! Fair shares of what is bounded and taken by strangers.

use std::collections::BTreeMap;

use super::{AkRecord, AkState, SourceNetwork};

/// Maximum number of keys that wait for a machine.
pub const MAX_WAITING: u64 = 4;
/// Number of networks that are counted. Whoever has more of them needs nobody else's share.
const NETWORKS: usize = 65_536;

/// How many of `most` places may be taken before a network that has `own` of them gets one more.
///
/// The more it has, the fewer: a network that has none gets the last place, and no network gets much more than
/// half. To take all, strangers need at least a quarter as many networks as there are places.
pub fn fair_limit(most: u64, own: u64) -> u64 {
    let half = most / 2;
    half + (most - half) / own.saturating_add(1)
}

/// Whether a key may wait for its machine, beside the waiting ones among `known`.
pub fn may_wait<'a>(key: &AkRecord, known: impl Iterator<Item = &'a AkRecord>) -> bool {
    let mut shares = Shares::default();
    for known in known {
        if known.machine == key.machine && known.state == AkState::Pending {
            shares.take(known.source);
        }
    }
    let (all, own) = shares.take(key.source);
    all < fair_limit(MAX_WAITING, own)
}

/// How many places each network has.
#[derive(Debug, Default)]
pub struct Shares {
    all: u64,
    each: BTreeMap<SourceNetwork, u64>,
}

impl Shares {
    /// Takes a place. Returns how many were taken before in total, and how many by this network; an unknown
    /// one has none.
    pub fn take(&mut self, source: Option<SourceNetwork>) -> (u64, u64) {
        if self.each.len() > NETWORKS {
            self.each.clear();
        }
        let own = source.map_or(0, |source| {
            let own = self.each.entry(source).or_default();
            *own += 1;
            *own - 1
        });
        self.all += 1;
        (self.all - 1, own)
    }

    /// Gives a place back.
    pub fn give_back(&mut self, source: Option<SourceNetwork>) {
        self.all = self.all.saturating_sub(1);
        if let Some(source) = source {
            let left = self.each.remove(&source).unwrap_or_default().saturating_sub(1);
            if left > 0 {
                self.each.insert(source, left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(number: u64) -> SourceNetwork {
        let [.., high, low] = number.to_be_bytes();
        SourceNetwork::of([192, 0, high, low].into())
    }

    /// How many places this network takes, one after the other.
    fn fill(shares: &mut Shares, most: u64, source: SourceNetwork) -> u64 {
        let source = Some(source);
        let mut taken = 0;
        loop {
            let (all, own) = shares.take(source);
            if all >= fair_limit(most, own) {
                shares.give_back(source);
                return taken;
            }
            taken += 1;
        }
    }

    #[test]
    fn no_network_takes_much_more_than_half_and_many_are_needed_for_all() {
        for most in [1, 2, 4, 32, 1000] {
            let mut shares = Shares::default();
            let (mut taken, mut networks) = (fill(&mut shares, most, network(0)), 1);
            assert!(taken <= most / 2 + 1, "{taken} of {most}");
            while taken < most {
                let more = fill(&mut shares, most, network(networks));
                assert!(more > 0, "a network that has none gets the last of {most}");
                (taken, networks) = (taken + more, networks + 1);
            }
            assert!(networks >= most.div_ceil(4), "{networks} took {most}");
            assert_eq!(fill(&mut shares, most, network(networks)), 0);
        }
    }

    #[test]
    fn what_is_given_back_counts_for_nobody() {
        let (mut shares, one) = (Shares::default(), Some(network(1)));
        for _ in 0..2 {
            assert_eq!(shares.take(one), (0, 0));
            assert_eq!(shares.take(one), (1, 1));
            assert_eq!(shares.take(None), (2, 0));
            assert_eq!(shares.take(None), (3, 0));
            for source in [None, None, one, one] {
                shares.give_back(source);
            }
            assert!(shares.each.is_empty());
        }
    }
}
