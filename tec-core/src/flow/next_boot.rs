//! Before a reboot: would the boot that a machine predicts for itself be accepted?

use std::collections::BTreeMap;

use crate::attest::Attested;
use crate::boot::{BootState, LiveImages};
use crate::digest::Sha256Digest;
use crate::flow::rotation::still_trusted;
use crate::flow::{Boots, ReleaseError};
use crate::pcr::{PcrIndex, PcrValues};
use crate::port::{AkRegistry, Clock};

/// Whether a predicted boot would be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextBoot {
    /// It is one of an approved image, or of a state between images.
    Accepted {
        /// The states, each as a sentence.
        states: Vec<String>,
    },
    /// It is not.
    Refused {
        /// Registers whose value is not accepted at all; empty if the values are only not accepted together.
        pcrs: Vec<PcrIndex>,
        /// Why some states of the images may also be refused.
        trouble: Option<String>,
    },
    /// Registers that must match are not predicted.
    Undetermined {
        /// The registers.
        pcrs: Vec<PcrIndex>,
    },
}

/// Answers for an attested machine. Firmware and Secure Boot policy are not judged: the baseline of the machine
/// follows signed updates, and what else changes there cannot be predicted.
///
/// # Errors
/// `Refused` if the machine or its attestation key has been revoked since the attestation; an error of a
/// port.
///
/// # Security
/// Changes and releases nothing. `predicted` is the claim of the machine, and only the machine relies on the
/// answer. It tells an attested machine whether values are accepted, never which ones are.
pub async fn next_boot(
    (aks, clock): (&dyn AkRegistry, &dyn Clock),
    Boots { images, pins, states }: Boots<'_>,
    attested: &Attested,
    predicted: &BTreeMap<PcrIndex, Sha256Digest>,
) -> Result<NextBoot, ReleaseError> {
    still_trusted(aks, attested).await?;
    let images = images.list().await?;
    let live = LiveImages::at(&images, clock.now());
    let values = PcrValues::predicted(|pcr| predicted.get(&pcr).copied());
    let admitted = pins.admit(states, &live, &values);
    if !admitted.is_empty() {
        let states = admitted.iter().map(BootState::sentence).collect();
        return Ok(NextBoot::Accepted { states });
    }
    let (known, unknown): (Vec<_>, Vec<_>) =
        pins.any(&live).iter().partition(|pcr| predicted.contains_key(pcr));
    if !unknown.is_empty() {
        return Ok(NextBoot::Undetermined { pcrs: unknown });
    }
    let occurs = |pcr: &PcrIndex| pins.values(states, &live, *pcr).contains(values.value(*pcr));
    let pcrs = known.into_iter().filter(|pcr| !occurs(pcr)).collect();
    Ok(NextBoot::Refused { pcrs, trouble: pins.trouble(states, &live) })
}
