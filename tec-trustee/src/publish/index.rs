//! Notes that a publisher keeps in its target, so that a later one knows what is there.
//!
//! A Trustee lists neither its reference values nor, in most versions, its secrets, and returns no secrets
//! (Trustee, KBS admin API). So the names and fingerprints of what was published are stored next to it, as
//! reference values with reserved names:
//!
//! ```text
//! tec-index-epoch   random; written at each fresh start, and never again: it is gone
//!                   if the Trustee lost its state
//! tec-index         head: the epoch, a stamp, side and number of chunks, the latest notes
//! tec-index-a-<n>   chunks of notes; the other side, b, while the index is rewritten
//! ```
//! It is a log: a later note for an item overrides an earlier one. Items are noted as doubtful before they
//! are sent, and with their fingerprint once they are there; each time the head gets a new stamp, so a record
//! that misses one is known to be stale. A few notes rewrite only the head, which is small, and the log is
//! rewritten when most of it no longer counts.
//!
//! One loss leaves no trace: a Trustee that loses its state within a batch, and a publisher that ends before
//! it notices. Items of that batch sent after the loss are found again only if they are still desired, or
//! when the Trustee loses its state once more.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tec_core::port::{Entropy, KeyBroker, PortError, PortErrorKind};

use super::item::{Item, ParseItemError, ReferenceName, common_names};
use super::record::{Known, Record};

const HEAD: &str = "tec-index";
const EPOCH: &str = "tec-index-epoch";
/// Maximum number of notes in the head while nothing is under way. It is rewritten for each batch,
/// so it is short: two notes per machine, about 260 bytes together.
const MAX_TAIL: usize = 8;
/// Maximum number of notes in a chunk, and most steps in a batch.
pub(super) const MAX_CHUNK: usize = 128;
/// Maximum number of chunks that are read: four million machines. More is damage.
const MAX_CHUNKS: u32 = 65_536;
/// The index is rewritten when it has more notes than twice those that count, plus this.
const SLACK: usize = 1024;
/// And when it has more chunks than twice those needed, plus this: nodes that register one after the other
/// fill small ones.
const SLACK_CHUNKS: usize = 64;

/// The head of an index.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) epoch: String,
    pub(super) stamp: String,
    side: Side,
    chunks: u32,
    /// Notes in all chunks.
    listed: usize,
    tail: BTreeMap<Item, Mark>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    #[default]
    A,
    B,
}

/// What an item holds: a fingerprint, `-` for nothing that counts, `?` for anything.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Mark(Option<Known>);

impl From<Mark> for String {
    fn from(mark: Mark) -> Self {
        match mark.0 {
            Some(Known::Holds(fingerprint)) => fingerprint.to_string(),
            Some(Known::Nothing) => "-".to_owned(),
            None => "?".to_owned(),
        }
    }
}

impl TryFrom<String> for Mark {
    type Error = ParseItemError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Ok(Self(match text.as_str() {
            "-" => Some(Known::Nothing),
            "?" => None,
            text => Some(Known::Holds(text.parse()?)),
        }))
    }
}

/// The content of an index.
#[derive(Debug)]
pub(super) struct Notes {
    /// What each published item holds, including earlier ones; `None` if in doubt.
    pub(super) known: BTreeMap<Item, Option<Known>>,
    /// Whether all of it could be read. If not, no fingerprint counts.
    pub(super) is_whole: bool,
}

/// Whether a name is reserved for these notes.
pub(super) fn is_reserved(name: &ReferenceName) -> bool {
    name.as_str().starts_with(HEAD)
}

/// 128 random bits.
pub(super) fn random(entropy: &dyn Entropy) -> String {
    let mut bytes = [0; 16];
    entropy.fill(&mut bytes);
    hex::encode(bytes)
}

/// The head; `None` if there is none, or none that can be parsed.
pub(super) async fn head(broker: &dyn KeyBroker) -> Result<Option<Head>, PortError> {
    let head = broker.reference_value(HEAD).await?;
    let head = head.and_then(|value| serde_json::from_value::<Head>(value).ok());
    Ok(head.filter(|head| head.chunks <= MAX_CHUNKS))
}

/// Whether the target has kept its state since the epoch was written. It answers no only after a second look,
/// since that answer is expensive.
pub(super) async fn has_epoch(broker: &dyn KeyBroker, epoch: &str) -> Result<bool, PortError> {
    for _ in 0..2 {
        let there = broker.reference_value(EPOCH).await?;
        if there.as_ref().and_then(Value::as_str) == Some(epoch) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) async fn set_epoch(broker: &dyn KeyBroker, epoch: &str) -> Result<(), PortError> {
    broker.set_reference_value(EPOCH, &epoch.into()).await
}

/// All notes of an index. A chunk is reported missing or damaged only after a second look.
pub(super) async fn notes(broker: &dyn KeyBroker, head: &Head) -> Result<Notes, PortError> {
    let (mut marks, mut is_whole) = (BTreeMap::new(), true);
    for number in 0..head.chunks {
        match chunk(broker, &chunk_name(head.side, number)).await? {
            Some(chunk) => marks.extend(chunk),
            None => is_whole = false,
        }
    }
    marks.extend(head.tail.clone());
    marks.retain(|item, _| !matches!(item, Item::Reference(name) if is_reserved(name)));
    let known = marks.into_iter().map(|(item, mark)| (item, mark.0));
    Ok(Notes { known: known.collect(), is_whole })
}

impl Notes {
    /// Without the names of items that were withdrawn and are no longer in use.
    pub(super) fn counting(mut self) -> BTreeMap<Item, Option<Known>> {
        let common = common_names();
        self.known.retain(|item, known| *known != Some(Known::Nothing) || common.contains(item));
        self.known
    }
}

async fn chunk(
    broker: &dyn KeyBroker,
    name: &str,
) -> Result<Option<BTreeMap<Item, Mark>>, PortError> {
    for _ in 0..2 {
        let chunk = broker.reference_value(name).await?;
        if let Some(chunk) = chunk.and_then(|chunk| serde_json::from_value(chunk).ok()) {
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

impl Head {
    /// An index of the content of `record`, replacing `old`. Its chunks go to the other side, so that the old
    /// one stays intact until the head is written.
    pub(super) fn anew(old: Option<&Self>, record: &Record) -> Self {
        let side = match old.map(|old| old.side) {
            Some(Side::A) => Side::B,
            _ => Side::A,
        };
        let notes = record.items().map(|item| (item, record.known(item)));
        Self {
            epoch: record.epoch.clone().unwrap_or_default(),
            side,
            tail: notes.map(|(item, known)| (item.clone(), Mark(known))).collect(),
            ..Self::default()
        }
    }

    /// Whether rewriting the index, with `more` notes, for the `live` ones is worthwhile.
    pub(super) fn is_bloated(&self, live: usize, more: usize) -> bool {
        let notes = self.listed.saturating_add(self.tail.len()).saturating_add(more);
        let chunks = usize::try_from(self.chunks).unwrap_or(usize::MAX);
        notes > live.saturating_mul(2).saturating_add(SLACK)
            || chunks > live.saturating_mul(2) / MAX_CHUNK + SLACK_CHUNKS
    }

    /// Notes that these items may soon hold anything. Reads back: an item that is not in the index is not
    /// found again.
    pub(super) async fn announce<'a>(
        &mut self,
        broker: &dyn KeyBroker,
        items: impl IntoIterator<Item = &'a Item>,
        stamp: &str,
    ) -> Result<(), PortError> {
        // Notes left by an earlier batch that was interrupted.
        self.spill(broker, MAX_TAIL.saturating_add(MAX_CHUNK)).await?;
        for item in items {
            self.tail.insert(item.clone(), Mark(None));
        }
        stamp.clone_into(&mut self.stamp);
        written(broker, HEAD, &self.as_value()?).await
    }

    /// Notes what these items now hold.
    pub(super) async fn confirm<'a>(
        &mut self,
        broker: &dyn KeyBroker,
        items: impl IntoIterator<Item = &'a Item>,
        record: &Record,
        stamp: &str,
    ) -> Result<(), PortError> {
        for item in items {
            self.tail.insert(item.clone(), Mark(record.known(item)));
        }
        self.spill(broker, MAX_TAIL).await?;
        stamp.clone_into(&mut self.stamp);
        broker.set_reference_value(HEAD, &self.as_value()?).await
    }

    /// Writes chunks until at most `most` notes are left in the head.
    async fn spill(&mut self, broker: &dyn KeyBroker, most: usize) -> Result<(), PortError> {
        while self.tail.len() > most {
            let after = self.tail.keys().nth(MAX_CHUNK).cloned();
            let rest = after.map(|after| self.tail.split_off(&after));
            let chunk = std::mem::replace(&mut self.tail, rest.unwrap_or_default());
            let name = chunk_name(self.side, self.chunks);
            written(broker, &name, &as_value(&chunk)?).await?;
            self.listed = self.listed.saturating_add(chunk.len());
            self.chunks = self.chunks.saturating_add(1);
        }
        Ok(())
    }

    fn as_value(&self) -> Result<Value, PortError> {
        as_value(self)
    }
}

fn as_value(notes: &impl Serialize) -> Result<Value, PortError> {
    serde_json::to_value(notes).map_err(|error| {
        PortError::new(PortErrorKind::Internal, "write notes as JSON").because(error)
    })
}

/// Writes a value and reads it back.
async fn written(broker: &dyn KeyBroker, name: &str, value: &Value) -> Result<(), PortError> {
    broker.set_reference_value(name, value).await?;
    if broker.reference_value(name).await?.as_ref() == Some(value) {
        return Ok(());
    }
    Err(PortError::new(PortErrorKind::Unavailable, "write the index")
        .because(format!("the target did not keep {name}")))
}

fn chunk_name(side: Side, number: u32) -> String {
    let side = match side {
        Side::A => 'a',
        Side::B => 'b',
    };
    format!("{HEAD}-{side}-{number}")
}
