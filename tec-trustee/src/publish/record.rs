//! What is known about a target.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::item::{Fingerprint, Item};

/// A publisher's position in the changes of a particular desired state.
#[derive(Clone, Debug)]
pub(super) struct Position {
    pub(super) identity: Arc<()>,
    pub(super) revision: u64,
}

impl Position {
    /// Number of the latest change before it.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}

/// What a publisher knows about its target: names and fingerprints, never content.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// Written into the target when its state was last started anew.
    pub(super) epoch: Option<String>,
    /// Possible stamps of the head of the target's index: one, or two if a write of it was not answered.
    pub(super) stamps: BTreeSet<String>,
    /// Whether to ignore the target's own notes.
    pub(super) is_distrustful: bool,
    /// Items that the target's notes mark as doubtful, because a batch was announced and not confirmed.
    announced: BTreeSet<Item>,
    known: BTreeMap<Item, Known>,
    /// Items among them that may hold something else; a subset of the keys.
    doubts: BTreeSet<Item>,
    /// Where [`doubt_next`](Self::doubt_next) continues.
    cursor: Option<Item>,
    position: Option<Position>,
}

/// What an item holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Content with this fingerprint.
    Holds(Fingerprint),
    /// Nothing that counts.
    Nothing,
}

impl Record {
    /// Number of items that are known, or in doubt.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether the item is certainly as `wanted`; nothing wanted is the same as nothing there.
    pub(super) fn is(&self, item: &Item, wanted: Option<Fingerprint>) -> bool {
        if self.doubts.contains(item) {
            return false;
        }
        match (self.known.get(item), wanted) {
            (Some(Known::Holds(there)), Some(wanted)) => *there == wanted,
            (None | Some(Known::Nothing), None) => true,
            _ => false,
        }
    }

    pub(super) fn knows(&self, item: &Item) -> bool {
        self.known.contains_key(item)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.known.keys()
    }

    /// What an item certainly holds; `None` if that is in doubt.
    pub(super) fn known(&self, item: &Item) -> Option<Known> {
        let known = self.known.get(item).copied();
        (!self.doubts.contains(item)).then(|| known.unwrap_or(Known::Nothing))
    }

    pub(super) fn doubts(&self) -> impl Iterator<Item = &Item> {
        self.doubts.iter()
    }

    pub(super) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Everything that was desired at that position is stored.
    pub(super) fn reached(&mut self, position: Position) {
        self.position = Some(position);
    }

    /// The target's notes mark these as doubtful from now on.
    pub(super) fn announced<'a>(&mut self, items: impl Iterator<Item = &'a Item>) {
        self.announced.extend(items.cloned());
    }

    /// Items that the target's notes mark as doubtful.
    pub(super) fn unconfirmed(&self) -> &BTreeSet<Item> {
        &self.announced
    }

    /// The target's notes now match what is known about all of them.
    pub(super) fn confirmed(&mut self) {
        self.announced.clear();
    }

    /// The item may hold anything.
    pub(super) fn doubt(&mut self, item: &Item) {
        if let Entry::Vacant(vacant) = self.known.entry(item.clone()) {
            vacant.insert(Known::Nothing);
        }
        self.doubts.insert(item.clone());
    }

    pub(super) fn note(&mut self, item: &Item, known: Known) {
        self.doubts.remove(item);
        self.known.insert(item.clone(), known);
    }

    pub(super) fn forget(&mut self, item: &Item) {
        self.doubts.remove(item);
        self.known.remove(item);
    }

    /// Everything may hold anything, and the target's notes are not ours.
    pub(super) fn doubt_all(&mut self) {
        self.doubts = self.known.keys().cloned().collect();
        self.epoch = None;
        self.stamps.clear();
        self.announced.clear();
        self.is_distrustful = true;
        self.position = None;
    }

    /// Takes over the target's notes, with `None` for what they mark as doubtful. Items that are known here
    /// and that the notes omit or contradict are in doubt.
    pub(super) fn adopt(&mut self, notes: BTreeMap<Item, Option<Known>>, epoch: &str, stamp: &str) {
        let mut theirs = Self {
            epoch: Some(epoch.to_owned()),
            stamps: BTreeSet::from([stamp.to_owned()]),
            ..Self::default()
        };
        for (item, known) in notes {
            let ours = self.known.get(&item);
            match known {
                Some(known) if ours.is_none_or(|ours| *ours == known) => theirs.note(&item, known),
                _ => theirs.doubt(&item),
            }
        }
        let unheard = self.known.keys().filter(|item| !theirs.known.contains_key(item));
        let unheard: Vec<&Item> = unheard.chain(&self.doubts).collect();
        for item in unheard {
            theirs.doubt(item);
        }
        theirs.cursor = self.cursor.take();
        *self = theirs;
    }

    /// Doubts the next `count` items, cycling through all of them.
    pub(super) fn doubt_next(&mut self, count: usize) {
        let start = self.cursor.take().map_or(Bound::Unbounded, Bound::Excluded);
        let after = self.known.range((start, Bound::Unbounded));
        let around = after.chain(self.known.iter()).take(self.known.len().min(count));
        let next: Vec<Item> = around.map(|(item, _)| item.clone()).collect();
        self.cursor = next.last().cloned();
        self.doubts.extend(next);
    }
}
