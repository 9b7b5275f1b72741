//! The content of an [`Attested`], for another process of the same server.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Attested, NoPinnedPcrError, PinnedPcrs};
use crate::ak::Fingerprint;
use crate::boot::{BootState, Pins};
use crate::digest::Sha256Digest;
use crate::id::{AttemptId, MachineId};
use crate::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};

/// The content of an [`Attested`] as data. It proves nothing: anyone can write one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttestedSnapshot {
    machine: MachineId,
    ak: Fingerprint,
    booted: BootState,
    /// The registers that images may pin; a release checks no others.
    quoted: BTreeMap<PcrIndex, Sha256Digest>,
    /// Whether each image pins the registers that its prediction contains; otherwise all of
    /// `quoted` is pinned.
    predicted: bool,
    attempt: AttemptId,
}

impl Attested {
    /// Returns the content, to be carried to another replica of this server.
    pub fn snapshot(&self) -> AttestedSnapshot {
        let value = |pcr| (pcr, *self.judged.value(pcr));
        AttestedSnapshot {
            machine: self.machine,
            ak: self.ak,
            booted: self.booted.clone(),
            quoted: match self.pins {
                Pins::Predicted => Pins::of_images().map(value).collect(),
                Pins::Exactly(pinned) => pinned.iter().map(value).collect(),
            },
            predicted: self.pins == Pins::Predicted,
            attempt: self.attempt,
        }
    }

    /// Turns data back into a proof without checking any evidence.
    ///
    /// # Security
    /// Only for bytes that this very server wrote from [`snapshot`](Self::snapshot) and
    /// authenticated with a secret key of its own, together with their age: whoever can choose the
    /// snapshot can impersonate any machine. Later revocations still count, because a release reads
    /// the registries again.
    pub fn dangerous_reopen(snapshot: AttestedSnapshot) -> Result<Self, NoPinnedPcrError> {
        let AttestedSnapshot { machine, ak, booted, quoted, predicted, attempt } = snapshot;
        let carried = PinnedPcrs::new(quoted.keys().copied().collect::<PcrSet>())?;
        let pins = if predicted { Pins::Predicted } else { Pins::Exactly(carried) };
        let mut values = [Sha256Digest::ZERO; PCR_COUNT];
        for (value, pcr) in values.iter_mut().zip(PcrIndex::all()) {
            *value = quoted.get(&pcr).copied().unwrap_or(Sha256Digest::ZERO);
        }
        Ok(Self { machine, ak, booted, judged: PcrValues::new(values), pins, attempt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    fn attested(pins: Pins) -> Attested {
        let mut values = [Sha256Digest::ZERO; PCR_COUNT];
        for (number, value) in values.iter_mut().enumerate() {
            *value = Sha256Digest::of([u8::try_from(number).unwrap()]);
        }
        Attested {
            machine: sample::machine_id(1),
            ak: sample::public_key(1).fingerprint(),
            booted: BootState::whole([sample::image_name(1)], [PcrIndex::BOOT_MANAGER]),
            judged: PcrValues::new(values),
            pins,
            attempt: sample::attempt_id(1),
        }
    }

    fn exactly() -> PinnedPcrs {
        PinnedPcrs::new([PcrIndex::BOOT_MANAGER, PcrIndex::MOK].into_iter().collect()).unwrap()
    }

    #[test]
    fn what_a_release_looks_at_survives_and_nothing_else_is_carried() {
        let images: Vec<PcrIndex> = Pins::of_images().collect();
        for (pins, wanted) in
            [(Pins::Exactly(exactly()), exactly().iter().collect()), (Pins::Predicted, images)]
        {
            let before = attested(pins);
            let json = serde_json::to_string(&before.snapshot()).unwrap();
            let after = Attested::dangerous_reopen(serde_json::from_str(&json).unwrap()).unwrap();
            assert_eq!(after.snapshot(), before.snapshot());
            assert_eq!(after.pins(), before.pins());
            for pcr in PcrIndex::all() {
                let carried = after.judged().value(pcr);
                if wanted.contains(&pcr) {
                    assert_eq!(carried, before.judged().value(pcr));
                } else {
                    assert_eq!(*carried, Sha256Digest::ZERO);
                }
            }
        }
    }

    #[test]
    fn a_snapshot_without_pinned_registers_is_no_proof() {
        let mut snapshot = attested(Pins::Predicted).snapshot();
        snapshot.quoted.clear();
        assert!(Attested::dangerous_reopen(snapshot).is_err());
    }
}
