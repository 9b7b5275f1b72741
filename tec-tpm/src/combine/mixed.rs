//! The policy for tec-core: which states of live images explain a boot.

use std::sync::Arc;

use parking_lot::Mutex;
use tec_core::attest::{PinnedPcrs, VerifiedEvidence};
use tec_core::boot::{BootPart, BootState, BootStates, LiveImages, NearState, WholeImages};
use tec_core::digest::Sha256Digest;
use tec_core::id::ImageName;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PcrIndex, PcrValues};

use super::source::Family;
use super::walk::Choice;
use super::{CombineError, Combined, Combiner};

/// Maximum number of sets kept: requests alternate between sets of images that pin the same registers.
const MAX_KEPT: usize = 8;

/// Admits machines that are between approved images: every state that a fleet passes through while
/// it is updated part by part, and no other.
///
/// The combination is computed once for a set of live images, and kept while the set is among the
/// last eight requested: names and measurements are compared each time, so an image that is revoked, is
/// replaced or expires is in no state from that moment on. Images that cannot be combined only count as whole
/// images.
///
/// ```
/// use tec_core::attest::PinnedPcrs;
/// use tec_core::boot::{BootStates, LiveImages};
/// use tec_core::digest::Sha256Digest;
/// use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
/// use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrValues};
/// use tec_core::time::Timestamp;
/// use tec_tpm::combine::MixedStates;
///
/// let pcr4 = PcrIndex::BOOT_MANAGER;
/// let boot = |shim: &str, kernel: &str| {
///     let event = |id: &str, file| ImageEvent::new("E", pcr4, Sha256Digest::of(file), id);
///     let events = [event("Pcr4Shim", shim), event("Pcr4Vmlinuz", kernel)];
///     ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr4, events)])
/// };
/// let now = Timestamp::from_unix_seconds(0);
/// let images = [
///     ApprovedImage::new("44.1".parse()?, "", boot("shim 15.8", "linux 6.1"), now),
///     ApprovedImage::new("44.2".parse()?, "", boot("shim 16.1", "linux 6.12"), now),
/// ];
///
/// // shim is updated, the kernel not yet.
/// let mut quoted = [Sha256Digest::ZERO; PCR_COUNT];
/// quoted[4] = boot("shim 16.1", "linux 6.1").pcr(pcr4).unwrap().value;
/// let live = LiveImages::at(&images, now);
/// let admitted = MixedStates::default().admit(&live, &PcrValues::new(quoted), PinnedPcrs::only(pcr4));
/// assert_eq!(admitted[0].to_string(), "bootloader of 44.2 + kernel of 44.1");
/// # Ok::<(), tec_core::id::ParseImageNameError>(())
/// ```
#[derive(Debug, Default)]
pub struct MixedStates {
    combiner: Combiner,
    /// The most recently requested set is last.
    kept: Mutex<Vec<Arc<Kept>>>,
}

impl MixedStates {
    /// Combines according to the rules of `combiner`.
    pub fn new(combiner: Combiner) -> Self {
        Self { combiner, kept: Mutex::default() }
    }

    /// The data for a set of images. Concurrent requests for the same new set wait instead of computing it as
    /// well.
    fn of(&self, live: &LiveImages<'_>) -> Arc<Kept> {
        let mut kept = self.kept.lock();
        let known = kept.iter().position(|known| known.is_of(live));
        let found = match known {
            Some(at) => kept.remove(at),
            None => Arc::new(Kept::new(&self.combiner, live)),
        };
        if kept.len() >= MAX_KEPT {
            kept.remove(0);
        }
        kept.push(Arc::clone(&found));
        found
    }
}

impl BootStates for MixedStates {
    fn admit(
        &self,
        live: &LiveImages<'_>,
        quoted: &PcrValues,
        pinned: PinnedPcrs,
    ) -> Vec<BootState> {
        match &self.of(live).combined {
            Ok(combined) => combined.admitted(quoted, pinned),
            Err(_) => WholeImages.admit(live, quoted, pinned),
        }
    }

    fn values(&self, live: &LiveImages<'_>, pcr: PcrIndex) -> Vec<Sha256Digest> {
        match &self.of(live).combined {
            Ok(combined) => combined.values(pcr),
            Err(_) => WholeImages.values(live, pcr),
        }
    }

    fn nearest(
        &self,
        live: &LiveImages<'_>,
        evidence: &VerifiedEvidence,
        pinned: PinnedPcrs,
    ) -> Option<NearState> {
        let kept = self.of(live);
        match &kept.combined {
            Ok(combined) => kept.near(combined, evidence, pinned),
            Err(_) => WholeImages.nearest(live, evidence, pinned),
        }
    }

    fn trouble(&self, live: &LiveImages<'_>, pinned: PinnedPcrs) -> Option<String> {
        match &self.of(live).combined {
            Ok(combined) => combined.gaps(pinned),
            Err(error) => Some(format!("no states between images are known: {error}")),
        }
    }
}

/// A set of images, and what is derived from it.
#[derive(Debug)]
struct Kept {
    images: Vec<(ImageName, ExpectedPcrs)>,
    combined: Result<Combined, CombineError>,
}

impl Kept {
    fn new(combiner: &Combiner, live: &LiveImages<'_>) -> Self {
        let named: Vec<_> =
            live.iter().map(|image| (image.name.as_str(), &image.expected)).collect();
        let own =
            |image: &tec_core::image::ApprovedImage| (image.name.clone(), image.expected.clone());
        Self { combined: combiner.combine(&named), images: live.iter().map(own).collect() }
    }

    fn is_of(&self, live: &LiveImages<'_>) -> bool {
        let known = self.images.iter().map(|(name, expected)| (name, expected));
        known.eq(live.iter().map(|image| (&image.name, &image.expected)))
    }

    fn near(
        &self,
        combined: &Combined,
        evidence: &VerifiedEvidence,
        pinned: PinnedPcrs,
    ) -> Option<NearState> {
        let nearest = combined.nearest(evidence, pinned)?;
        let state = combined.boot_state(nearest.family, &nearest.choice, pinned);
        let expected = nearest.measured.iter().map(|(pcr, digests)| {
            let events = digests.iter().map(|digest| self.event(&state, *pcr, digest));
            ExpectedPcr::from_events(*pcr, events)
        });
        let expected = expected.collect();
        Some(NearState::new(state, expected))
    }

    /// The event of an image that is part of the state, or else of any image.
    fn event(&self, state: &BootState, pcr: PcrIndex, digest: &Sha256Digest) -> ImageEvent {
        let takes_part = |name: &ImageName| state.images().any(|image| image == name);
        let (first, others): (Vec<_>, Vec<_>) =
            self.images.iter().partition(|(name, _)| takes_part(name));
        let registers = first.iter().chain(&others);
        let mut events = registers
            .filter_map(|(_, expected)| expected.pcr(pcr))
            .flat_map(|expected| &expected.events);
        let found = events.find(|event| event.hash == *digest).cloned();
        // A level stored by the firmware is the only measurement that comes from no image.
        found.unwrap_or_else(|| ImageEvent::new("", pcr, *digest, format!("Pcr{pcr}SbatLevel")))
    }
}

impl Combined {
    /// The states that have all pinned values, whole images first.
    fn admitted(&self, quoted: &PcrValues, pinned: PinnedPcrs) -> Vec<BootState> {
        let mut states: Vec<_> = self
            .fitting(quoted, pinned)
            .map(|(family, choice)| self.boot_state(family, &choice, pinned))
            .collect();
        states.sort_by(|a, b| (a.parts().len(), a).cmp(&(b.parts().len(), b)));
        states.dedup();
        states
    }

    fn boot_state(&self, family: &Family, choice: &Choice, pinned: PinnedPcrs) -> BootState {
        let provenance = self.provenance_of(family, choice);
        // The names were created from image names.
        let names = |images: &[String]| -> Vec<ImageName> {
            let parsed = images.iter().filter_map(|name| name.parse().ok());
            parsed.collect()
        };
        if let [whole] = provenance.origins() {
            return BootState::whole(names(&whole.images), pinned.iter());
        }
        let part = |origin: &super::Origin| {
            let in_register =
                |pcr: &PcrIndex| origin.groups.iter().any(|g| family.measures(*pcr, *g));
            BootPart::new(
                origin.groups.iter().map(ToString::to_string).collect(),
                pinned.iter().filter(in_register),
                names(&origin.images),
            )
        };
        BootState::mixed(provenance.origins().iter().map(part).collect())
    }

    /// Describes states whose pinned registers are unknown.
    fn gaps(&self, pinned: PinnedPcrs) -> Option<String> {
        let is_pinned = |pcr| pinned.iter().any(|other| other == pcr);
        let mut gaps = self.families.iter().flat_map(|enumerated| {
            let registers = enumerated.registers.iter();
            let pinned = registers.filter(move |outcome| is_pinned(outcome.pcr));
            pinned.flat_map(move |outcome| {
                let gaps = outcome.gaps.iter();
                gaps.map(move |gap| (&enumerated.family, outcome.pcr, gap))
            })
        });
        let (family, pcr, gap) = gaps.next()?;
        let state = self.provenance_of(family, &gap.choice);
        let more = match gaps.count() {
            0 => String::new(),
            more => format!("; and of {more} more"),
        };
        Some(format!("PCR {pcr} of {state} is not known: {}{more}", gap.reason))
    }
}

#[cfg(test)]
mod tests;
