//! The policy that knows only whole images.

use std::cmp::Reverse;

use super::{BootState, BootStates, LiveImages, NearState};
use crate::digest::Sha256Digest;
use crate::evidence::{LoggedEvent, PinnedPcrs, VerifiedEvidence};
use crate::image::{ApprovedImage, ExpectedPcr, ImageEvent};
use crate::pcr::{PcrIndex, PcrValues};

/// Only whole images are states: a machine between two images is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeImages;

impl BootStates for WholeImages {
    fn admit(
        &self,
        live: &LiveImages<'_>,
        quoted: &PcrValues,
        pinned: PinnedPcrs,
    ) -> Vec<BootState> {
        let images: Vec<_> = live
            .iter()
            .filter(|image| fits(image, quoted, pinned))
            .map(|image| image.name.clone())
            .collect();
        if images.is_empty() {
            return Vec::new();
        }
        vec![BootState::whole(images, pinned.iter())]
    }

    fn values(&self, live: &LiveImages<'_>, pcr: PcrIndex) -> Vec<Sha256Digest> {
        let expected = live.iter().filter_map(|image| image.expected.pcr(pcr));
        let mut values: Vec<_> = expected.map(|expected| expected.value).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    fn nearest(
        &self,
        live: &LiveImages<'_>,
        evidence: &VerifiedEvidence,
        pinned: PinnedPcrs,
    ) -> Option<NearState> {
        let images = live.iter().map(|image| (image, pinned));
        nearest(images, evidence).map(|(_, state)| state)
    }

    fn trouble(&self, _: &LiveImages<'_>, _: PinnedPcrs) -> Option<String> {
        None
    }
}

/// Whether all pinned registers have the image's values.
pub(crate) fn fits(image: &ApprovedImage, quoted: &PcrValues, pinned: PinnedPcrs) -> bool {
    pinned.iter().all(|pcr| {
        let expected = image.expected.pcr(pcr);
        expected.is_some_and(|expected| expected.value == *quoted.value(pcr))
    })
}

/// The image with the fewest differing components; among equals, the one approved last. Each image
/// comes with the registers that it pins.
pub(crate) fn nearest<'a>(
    images: impl Iterator<Item = (&'a ApprovedImage, PinnedPcrs)>,
    evidence: &VerifiedEvidence,
) -> Option<(PinnedPcrs, NearState)> {
    let distance = |(image, pinned): &(&ApprovedImage, PinnedPcrs)| -> usize {
        let registers = pinned.iter();
        registers.map(|pcr| distance(image.expected.pcr(pcr), evidence, pcr)).sum()
    };
    let (image, pinned) =
        images.min_by_key(|both| (distance(both), Reverse(both.0.approved_at)))?;
    Some((pinned, of_image(image, pinned)))
}

/// An image as a state.
pub(crate) fn of_image(image: &ApprovedImage, pinned: PinnedPcrs) -> NearState {
    let expected = pinned.iter().filter_map(|pcr| image.expected.pcr(pcr));
    let expected: Vec<_> = expected.cloned().collect();
    NearState::new(BootState::whole([image.name.clone()], pinned.iter()), expected)
}

/// Number of measurements of one register that only one side has; without a log, whether the values
/// differ.
pub(super) fn distance(
    expected: Option<&ExpectedPcr>,
    evidence: &VerifiedEvidence,
    pcr: PcrIndex,
) -> usize {
    match evidence.logged(pcr) {
        Some(logged) => {
            differing(&logged, expected.map_or(&[], |expected| expected.events.as_slice()))
        }
        None => usize::from(expected.is_none_or(|e| e.value != *evidence.pcrs.value(pcr))),
    }
}

/// Number of measurements that one side has and the other lacks, regardless of their position.
fn differing(logged: &[&LoggedEvent], expected: &[ImageEvent]) -> usize {
    let is_logged = |e: &&ImageEvent| logged.iter().any(|l| l.digest == e.hash);
    let found = expected.iter().filter(is_logged).count();
    expected.len() - found + logged.len().saturating_sub(found)
}
