//! The last resort of identification: known components in known orders, each one omitted, replaced
//! by another image's, or repeated.

use std::collections::{BTreeMap, BTreeSet};

use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;

/// Maximum number of extends in one search, which takes about a tenth of a second.
const MAX_EXTENDS: u32 = 1 << 20;
/// Maximum number of consecutive measurements of one component; no more than two have been seen.
const MAX_REPEATS: u32 = 2;
/// Maximum number of sequences returned.
const MAX_FOUND: usize = 16;

/// A sequence of digests, with the number of repetitions of each.
pub(super) type Sequence = Vec<(Sha256Digest, u32)>;

pub(super) struct Search {
    pub(super) found: Vec<Sequence>,
    pub(super) exhaustive: bool,
}

/// Searches for sequences that extend to `value`.
pub(super) fn search(
    images: &[(&str, &ExpectedPcrs)],
    pcr: PcrIndex,
    value: &Sha256Digest,
) -> Search {
    let mut orders: BTreeSet<Vec<&str>> = BTreeSet::new();
    let mut digests: BTreeMap<&str, BTreeSet<Sha256Digest>> = BTreeMap::new();
    for (_, expected) in images {
        let Some(expected) = expected.pcr(pcr) else {
            continue;
        };
        let mut order: Vec<&str> = expected.events.iter().map(|e| e.id.as_str()).collect();
        order.dedup();
        orders.insert(order);
        for event in &expected.events {
            digests.entry(&event.id).or_default().insert(event.hash);
        }
    }
    let mut searcher = Searcher {
        digests,
        wanted: *value,
        left: MAX_EXTENDS,
        path: Vec::new(),
        found: BTreeSet::new(),
    };
    for order in &orders {
        searcher.step(order, Sha256Digest::ZERO);
    }
    Search {
        exhaustive: searcher.left > 0,
        found: searcher.found.into_iter().take(MAX_FOUND).collect(),
    }
}

struct Searcher<'a> {
    digests: BTreeMap<&'a str, BTreeSet<Sha256Digest>>,
    wanted: Sha256Digest,
    left: u32,
    path: Sequence,
    found: BTreeSet<Sequence>,
}

impl Searcher<'_> {
    fn step(&mut self, order: &[&str], value: Sha256Digest) {
        let Some((id, rest)) = order.split_first() else {
            if value == self.wanted && !self.path.is_empty() {
                self.found.insert(self.path.clone());
            }
            return;
        };
        let candidates: Vec<_> = self.digests.get(id).into_iter().flatten().copied().collect();
        for digest in candidates {
            let mut extended = value;
            for count in 1..=MAX_REPEATS {
                let Some(left) = self.left.checked_sub(1) else {
                    return;
                };
                self.left = left;
                extended = extended.extended(&digest);
                self.path.push((digest, count));
                self.step(rest, extended);
                self.path.pop();
            }
        }
        self.step(rest, value);
    }
}
