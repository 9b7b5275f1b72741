//! The content of a desired state, and the journal of its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use tec_core::image::ApprovedImage;
use tec_core::secret::SecretBytes;

use super::super::item::{Fingerprint, Item};
use super::super::record::Position;

/// Number of removed items that the journal may hold in excess of the number of items.
const JOURNAL_SLACK: usize = 1024;

/// Policies, reference values, secrets and images, and what changed when.
#[derive(Debug, Default)]
pub(in super::super) struct State {
    /// Distinguishes this value from any other whose revisions look the same.
    identity: Arc<()>,
    revision: u64,
    items: BTreeMap<Item, Arc<Entry>>,
    /// Items that stay as they are at every target, none of them in `items`.
    kept: BTreeSet<Item>,
    /// Latest change of each item, including removed ones, and the items by change.
    changed: BTreeMap<Item, u64>,
    journal: BTreeMap<u64, Item>,
    /// Changes up to here are no longer in the journal.
    horizon: u64,
    images: Vec<ApprovedImage>,
}

/// An item's content.
#[derive(Debug)]
pub(in super::super) struct Entry {
    pub(in super::super) content: Content,
    pub(in super::super) fingerprint: Fingerprint,
}

/// What an item is.
#[derive(Debug)]
pub(in super::super) enum Content {
    Policy(String),
    Reference(Value),
    Secret(SecretBytes),
}

impl State {
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(in super::super) fn images(&self) -> &[ApprovedImage] {
        &self.images
    }

    pub(in super::super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(in super::super) fn items(&self) -> impl Iterator<Item = (&Item, &Entry)> {
        self.items.iter().map(|(item, entry)| (item, &**entry))
    }

    pub(in super::super) fn entry(&self, item: &Item) -> Option<&Arc<Entry>> {
        self.items.get(item)
    }

    /// Items that stay as they are at every target.
    pub(in super::super) fn kept(&self) -> &BTreeSet<Item> {
        &self.kept
    }

    pub(in super::super) fn reference(&self, item: &Item) -> Option<&Value> {
        match self.entry(item).map(|entry| &entry.content) {
            Some(Content::Reference(value)) => Some(value),
            _ => None,
        }
    }

    pub(in super::super) fn position(&self) -> Position {
        Position { identity: Arc::clone(&self.identity), revision: self.revision }
    }

    /// What changed since `position`; `None` if that is not known.
    pub(in super::super) fn changes_since(
        &self,
        position: Option<&Position>,
    ) -> Option<impl Iterator<Item = &Item>> {
        let position = position.filter(|position| {
            Arc::ptr_eq(&position.identity, &self.identity) && position.revision >= self.horizon
        })?;
        let later = position.revision.saturating_add(1)..;
        Some(self.journal.range(later).map(|(_, item)| item))
    }

    pub(super) fn set(&mut self, item: Item, content: Content) {
        self.kept.remove(&item);
        let fingerprint = content.fingerprint(&item);
        let known = self.entry(&item).map(|entry| entry.fingerprint);
        if known != Some(fingerprint) {
            let entry = Entry { content, fingerprint };
            self.items.insert(item.clone(), Arc::new(entry));
            self.note(item);
        }
    }

    pub(super) fn remove(&mut self, item: &Item) {
        let was_kept = self.kept.remove(item);
        if self.items.remove(item).is_some() || was_kept {
            self.note(item.clone());
        }
    }

    /// Changes nothing for an item whose content is known.
    pub(super) fn keep(&mut self, item: Item) {
        if !self.items.contains_key(&item) && self.kept.insert(item.clone()) {
            self.note(item);
        }
    }

    pub(super) fn set_images(&mut self, images: Vec<ApprovedImage>) {
        if self.images != images {
            self.images = images;
            self.revision += 1;
        }
    }

    fn note(&mut self, item: Item) {
        self.revision += 1;
        if let Some(earlier) = self.changed.insert(item.clone(), self.revision) {
            self.journal.remove(&earlier);
        }
        self.journal.insert(self.revision, item);
        if self.changed.len() > self.items.len().saturating_mul(2) + JOURNAL_SLACK {
            self.changed.clear();
            self.journal.clear();
            self.horizon = self.revision;
        }
    }
}

impl Content {
    fn fingerprint(&self, item: &Item) -> Fingerprint {
        match self {
            Self::Policy(text) => item.fingerprint(text.as_bytes()),
            Self::Reference(value) => item.fingerprint(canonical(value).as_bytes()),
            Self::Secret(secret) => {
                item.fingerprint(secret.expose("its fingerprint tells whether it changed"))
            }
        }
    }
}

/// Canonical JSON (RFC 8785), independent of the order of the members.
pub(in super::super) fn canonical(value: &Value) -> String {
    // Only numbers beyond the range of a double cannot be written; they have a text form too.
    serde_json_canonicalizer::to_string(value).unwrap_or_else(|_| value.to_string())
}
