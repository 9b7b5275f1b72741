//! Which registers must match, image by image.
//!
//! ```text
//! live images ─ Pins::of ─► classes of images that pin the same registers
//!   each class ─► BootStates, with the registers of that class ─► states
//! ```

use std::cmp::Reverse;

use super::whole::distance;
use super::{BootState, BootStates, LiveImages, NearState};
use crate::digest::Sha256Digest;
use crate::evidence::{PinnedPcrs, VerifiedEvidence};
use crate::image::{ApprovedImage, ExpectedPcrs};
use crate::pcr::{PcrIndex, PcrSet, PcrValues};

/// Registers that depend on the image. PCR 4 covers the programs that the firmware starts. PCR 8 to
/// 15 are defined by the operating system (PC Client Platform Firmware Profile 1.06, 3.3.4): 8 and
/// 9 by GRUB and the kernel's EFI stub, 11 to 13 by systemd-stub, 14 by shim. PCR 0 to 3 and 5 to 7
/// cover the platform's code, configuration, and Secure Boot policy.
const OF_IMAGE: [PcrIndex; 7] = [
    PcrIndex::BOOT_MANAGER,
    PcrIndex::BOOT_COMMANDS,
    PcrIndex::BOOT_FILES,
    PcrIndex::KERNEL_BOOT,
    PcrIndex::KERNEL_CONFIG,
    PcrIndex::SYSTEM_EXTENSIONS,
    PcrIndex::MOK,
];
/// Maximum number of images named in a sentence.
const MAX_NAMED: usize = 3;

/// Which registers of a boot must match its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pins {
    /// For each image, those of PCR 4, 8, 9, 11, 12, 13 and 14 that its prediction contains.
    ///
    /// # Security
    /// An image without a value for PCR 4 pins nothing, and no boot of it is admitted.
    #[default]
    Predicted,
    /// The same registers for every image. An image without a value for one of them matches no
    /// boot.
    Exactly(PinnedPcrs),
}

impl Pins {
    /// The registers that depend on the image, in order.
    pub fn of_images() -> impl Iterator<Item = PcrIndex> {
        OF_IMAGE.into_iter()
    }

    /// The registers that a boot of this image must match; `None` if no boot of it is admitted.
    pub fn of(self, image: &ApprovedImage) -> Option<PinnedPcrs> {
        self.of_expected(&image.expected)
    }

    /// The registers that a boot of an image with this prediction must match.
    pub fn of_expected(self, expected: &ExpectedPcrs) -> Option<PinnedPcrs> {
        self.of_stated(|pcr| expected.pcr(*pcr).is_some())
    }

    /// The registers that a boot must match where values of these registers are stated.
    pub fn of_stated(self, is_stated: impl Fn(&PcrIndex) -> bool) -> Option<PinnedPcrs> {
        match self {
            Self::Exactly(pinned) => Some(pinned),
            Self::Predicted if is_stated(&PcrIndex::BOOT_MANAGER) => {
                PinnedPcrs::new(OF_IMAGE.into_iter().filter(is_stated).collect()).ok()
            }
            Self::Predicted => None,
        }
    }

    /// The registers that every live image pins; PCR 4 if there are none. A policy that does not
    /// know the images can demand these: any boot of a live image passes it.
    pub fn shared(self, live: &LiveImages<'_>) -> PinnedPcrs {
        let all = self.each(live).reduce(|all, pinned| {
            let both = all.iter().filter(|pcr| pinned.contains(*pcr)).collect();
            PinnedPcrs::new(both).unwrap_or(all)
        });
        all.unwrap_or_else(|| self.of_policies())
    }

    /// The registers that any live image pins; PCR 4 if there are none.
    pub fn any(self, live: &LiveImages<'_>) -> PinnedPcrs {
        let all: PcrSet = self.each(live).flat_map(PinnedPcrs::iter).collect();
        PinnedPcrs::new(all).unwrap_or_else(|_| self.of_policies())
    }

    /// The states of live images that match all quoted registers that those images pin: those that
    /// explain the most registers first, then whole images, then those with the fewest parts. Empty
    /// if there are none.
    ///
    /// # Security
    /// `quoted` must come from a quote whose signature and nonce have been verified. A state never
    /// combines images that pin different registers.
    pub fn admit(
        self,
        states: &dyn BootStates,
        live: &LiveImages<'_>,
        quoted: &PcrValues,
    ) -> Vec<BootState> {
        let classes = self.classes(live).into_iter();
        classes.flat_map(|(pinned, class)| states.admit(&class, quoted, pinned)).collect()
    }

    /// The first of these states, with the registers that its images pin.
    pub(crate) fn first_admitted(
        self,
        states: &dyn BootStates,
        live: &LiveImages<'_>,
        quoted: &PcrValues,
    ) -> Option<(PinnedPcrs, BootState)> {
        self.classes(live).into_iter().find_map(|(pinned, class)| {
            Some((pinned, states.admit(&class, quoted, pinned).into_iter().next()?))
        })
    }

    /// The values that a register has in the admitted states, sorted, without duplicates.
    pub fn values(
        self,
        states: &dyn BootStates,
        live: &LiveImages<'_>,
        pcr: PcrIndex,
    ) -> Vec<Sha256Digest> {
        let classes = self.classes(live).into_iter();
        let mut values: Vec<_> =
            classes.flat_map(|(_, class)| states.values(&class, pcr)).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// The state with the fewest differing components, and what its images pin. `None` without
    /// images.
    pub(crate) fn nearest(
        self,
        states: &dyn BootStates,
        live: &LiveImages<'_>,
        evidence: &VerifiedEvidence,
    ) -> Option<(PinnedPcrs, NearState)> {
        let near = self.classes(live).into_iter().filter_map(|(pinned, class)| {
            let near = states.nearest(&class, evidence, pinned)?;
            Some((pinned, near))
        });
        near.min_by_key(|(pinned, near)| -> usize {
            let registers = pinned.iter();
            registers.map(|pcr| distance(near.pcr(pcr), evidence, pcr)).sum()
        })
    }

    /// Why boots of these images may be refused although they are neither damaged nor unknown.
    pub fn trouble(self, states: &dyn BootStates, live: &LiveImages<'_>) -> Option<String> {
        let mut troubles = Vec::new();
        let without: Vec<_> = live.iter().filter(|image| self.of(image).is_none()).collect();
        if !without.is_empty() {
            let names = names(without.into_iter());
            troubles
                .push(format!("no boot is approved of {names}, which states no value of PCR 4"));
        }
        let classes = self.classes(live);
        if classes.len() > 1 {
            let told = |(pinned, class): &(PinnedPcrs, LiveImages<'_>)| {
                format!("{} {pinned}", names(class.iter()))
            };
            let told: Vec<_> = classes.iter().map(told).collect();
            let told = told.join("; ");
            troubles.push(format!(
                "no state is approved between images that pin different registers: {told}"
            ));
        }
        let of_class = classes.iter().filter_map(|(pinned, class)| states.trouble(class, *pinned));
        troubles.extend(of_class);
        (!troubles.is_empty()).then(|| troubles.join("; "))
    }

    /// The live images that pin exactly these registers.
    pub(crate) fn class<'a>(self, live: &LiveImages<'a>, pinned: PinnedPcrs) -> LiveImages<'a> {
        let same = live.iter().filter(|image| self.of(image) == Some(pinned));
        LiveImages::some_of(same.collect())
    }

    /// Live images grouped by what they pin; the groups that pin the most come first.
    pub fn classes<'a>(self, live: &LiveImages<'a>) -> Vec<(PinnedPcrs, LiveImages<'a>)> {
        if let Self::Exactly(pinned) = self {
            return vec![(pinned, live.clone())];
        }
        let mut pinned: Vec<PinnedPcrs> = Vec::new();
        for one in self.each(live) {
            if !pinned.contains(&one) {
                pinned.push(one);
            }
        }
        pinned.sort_by_key(|pinned| Reverse(pinned.iter().count()));
        pinned.into_iter().map(|pinned| (pinned, self.class(live, pinned))).collect()
    }

    fn each(self, live: &LiveImages<'_>) -> impl Iterator<Item = PinnedPcrs> {
        live.iter().filter_map(move |image| self.of(image))
    }

    /// The registers that a policy can demand regardless of images approved later: a boot of any
    /// admitted image matches them. PCR 4, unless the registers are the same for all images.
    pub fn of_policies(self) -> PinnedPcrs {
        match self {
            Self::Exactly(pinned) => pinned,
            Self::Predicted => PinnedPcrs::boot_manager(),
        }
    }
}

impl From<PinnedPcrs> for Pins {
    fn from(pinned: PinnedPcrs) -> Self {
        Self::Exactly(pinned)
    }
}

fn names<'a>(images: impl Iterator<Item = &'a ApprovedImage>) -> String {
    let names: Vec<_> = images.map(|image| image.name.as_str()).collect();
    let named = names.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
