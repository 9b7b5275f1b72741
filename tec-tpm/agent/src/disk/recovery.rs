//! The token that identifies the recovery key's slot.
//!
//! Until the slot is created, the token references no key slot of LUKS: it is an intent. A slot left by a
//! crash may be removed; a slot that another program has created there since must stay. A mark distinguishes
//! the two: the number of iterations of the slot's PBKDF2, which the intent records beforehand.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tec_core::port::Entropy;

use super::DiskError;

/// Type of the token.
const KIND: &str = "tec-recovery";
/// Key slots of a header are numbered 0 to 31 (LUKS2 On-Disk Format Specification, "Keyslots Object").
const LAST_SLOT: u32 = 31;

/// Identifies a recovery slot: the iterations of its PBKDF2.
///
/// The key has 159 bits of entropy, so no number of iterations is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct SlotMark(u32);

/// The minimum that cryptsetup accepts (cryptsetup(8), `--pbkdf-force-iterations`).
const LEAST_ITERATIONS: u32 = 1000;

impl SlotMark {
    /// A mark that no other slot has by chance: other slots stretch a password, with many more iterations.
    pub fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; 2];
        entropy.fill(&mut bytes);
        Self(LEAST_ITERATIONS + u32::from(u16::from_be_bytes(bytes)))
    }

    /// The iterations.
    pub fn iterations(self) -> u32 {
        self.0
    }
}

/// A recovery key token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryToken {
    /// Its number.
    pub id: u32,
    /// The key slot.
    pub slot: u32,
    /// Whether the slot is known to be the recovery key's.
    pub state: RecoveryState,
    /// The mark of the slot; none in tokens of older versions.
    pub mark: Option<SlotMark>,
}

/// Progress of creating a recovery slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryState {
    /// The slot is yet to be created, or was created just before a crash.
    Intended,
    /// The slot holds an escrowed recovery key.
    Active,
}

/// Key slots and recovery tokens of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryView {
    /// Key slots that are in use.
    pub slots: Vec<u32>,
    /// The marks of those that use PBKDF2.
    pub marks: BTreeMap<u32, SlotMark>,
    /// Recovery key tokens, by number.
    pub tokens: Vec<RecoveryToken>,
}

#[derive(Deserialize)]
struct Metadata {
    keyslots: BTreeMap<u32, Value>,
    #[serde(default)]
    tokens: BTreeMap<u32, Value>,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    slot: u32,
    #[serde(default)]
    iterations: Option<SlotMark>,
}

/// A key slot (LUKS2 On-Disk Format Specification, "Keyslots Object").
#[derive(Deserialize)]
struct WireSlot {
    kdf: WireKdf,
}

#[derive(Deserialize)]
struct WireKdf {
    /// Argon2 has none.
    iterations: Option<SlotMark>,
}

impl RecoveryView {
    /// Reads the metadata of a header.
    pub(super) fn read(metadata: &[u8]) -> Result<Self, DiskError> {
        let metadata: Metadata = serde_json::from_slice(metadata).map_err(DiskError::Metadata)?;
        let tokens = metadata.tokens.iter();
        let mark = |value| WireSlot::deserialize(value).ok()?.kdf.iterations;
        let marks = metadata.keyslots.iter();
        Ok(Self {
            marks: marks.filter_map(|(slot, value)| Some((*slot, mark(value)?))).collect(),
            slots: metadata.keyslots.into_keys().collect(),
            tokens: tokens.filter_map(|(id, value)| RecoveryToken::read(*id, value)).collect(),
        })
    }

    /// Whether the slot exists and was created for this token.
    pub fn is_of(&self, token: &RecoveryToken) -> bool {
        let mark = self.marks.get(&token.slot).copied();
        self.slots.contains(&token.slot) && token.mark.is_some() && mark == token.mark
    }

    /// The highest free key slot: other programs take the lowest.
    pub fn free_slot(&self) -> Result<u32, DiskError> {
        let intended = |slot| self.tokens.iter().any(|token| token.slot == slot);
        (0..=LAST_SLOT)
            .rev()
            .find(|slot| !self.slots.contains(slot) && !intended(*slot))
            .ok_or(DiskError::Full)
    }
}

impl RecoveryToken {
    fn read(id: u32, value: &Value) -> Option<Self> {
        let wire = Wire::deserialize(value).ok()?;
        let is_assigned = wire.keyslots.contains(&wire.slot.to_string());
        let state = if is_assigned { RecoveryState::Active } else { RecoveryState::Intended };
        (wire.kind == KIND).then_some(Self { id, slot: wire.slot, state, mark: wire.iterations })
    }

    /// The JSON of a token.
    pub(super) fn render(slot: u32, state: RecoveryState, mark: SlotMark) -> String {
        let keyslots = match state {
            RecoveryState::Intended => vec![],
            RecoveryState::Active => vec![slot.to_string()],
        };
        let token = json!({
            "type": KIND, "keyslots": keyslots, "slot": slot, "iterations": mark,
        });
        token.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_and_active_slots_are_told_apart_and_free_ones_found_from_above() {
        let active = RecoveryToken::render(31, RecoveryState::Active, SlotMark(1001));
        let intended = RecoveryToken::render(30, RecoveryState::Intended, SlotMark(1002));
        let metadata = format!(
            r#"{{"keyslots":{{"0":{{"kdf":{{"type":"argon2id","time":4}}}},
                              "31":{{"kdf":{{"type":"pbkdf2","iterations":1001}}}}}},
                "tokens":{{"0":{{"type":"clevis","keyslots":["0"]}},"1":{active},"2":{intended}}}}}"#
        );
        let view = RecoveryView::read(metadata.as_bytes()).unwrap();
        let states: Vec<_> = view.tokens.iter().map(|token| (token.slot, token.state)).collect();
        assert_eq!(states, [(31, RecoveryState::Active), (30, RecoveryState::Intended)]);
        assert_eq!(view.free_slot().unwrap(), 29);
        let own: Vec<_> = view.tokens.iter().map(|token| view.is_of(token)).collect();
        assert_eq!(own, [true, false]);
    }
}
