//! The register values that occur in a fleet while machines are updated, part by part, between any of the
//! approved images.
//!
//! *What it is*: an enumeration of the states of a fleet. An image is divided into [`Group`]s that
//! are updated as one (boot loader, kernel, unified kernel image, …); a state combines any image's
//! alternative for each group; its values result from extending the registers with the measurements that such
//! a machine makes. Besides the values of single registers, it determines which values occur *together*, and
//! which image each part comes from.
//!
//! *What it is not*: a guess. If the images do not reveal what a mix measures, there is no value but an entry
//! in [`Combined::undetermined`]. Nothing is approved here.
//!
//! ```text
//! images ─ families ─► groups with alternatives ─ walk (common beginnings once) ─► Combined
//!   Combined ─┬─ values(pcr) ────────► for lists of reference values
//!             ├─ joint(4, 7, 14) ────► tuples that occur together
//!             ├─ provenance(pcr, v) ─► "bootloader of 44.2 + kernel of 44.1"
//!             └─ admit(quoted, …) ───► the states that explain all pinned registers at once
//! MixedStates ─ the policy `tec_core::boot::BootStates`: Combined, kept for a set of live images
//! ```
//!
//! # The rules
//! * The boot loader decides which measurements are made, in which order and how many times; the
//!   other groups only contribute the digests. So a kernel that is measured twice under one GRUB
//!   may be measured once under another.
//! * A measurement that several groups decide together (an authority in PCR 7) is taken from an
//!   image that has all of them, or is used if every image that has one of them agrees; otherwise
//!   it is undetermined.
//! * A stored SbatLevel only increases: shim measures its own level, or a newer one of the set.
//! * Chains of different types (GRUB with kernel, UKI), or with Secure Boot on and off, are never
//!   mixed.
//!
//! # Example
//! ```
//! use tec_core::digest::Sha256Digest;
//! use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
//! use tec_core::pcr::PcrIndex;
//! use tec_tpm::combine::Combiner;
//!
//! let pcr4 = PcrIndex::BOOT_MANAGER;
//! let event = |id: &str, file: &str| ImageEvent::new("E", pcr4, Sha256Digest::of(file), id);
//! let image = |shim: &str, kernel: &str| {
//!     let events = [event("Pcr4Shim", shim), event("Pcr4Vmlinuz", kernel)];
//!     ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr4, events)])
//! };
//! let (old, new) = (image("shim 15.8", "linux 6.1"), image("shim 16.1", "linux 6.12"));
//!
//! let combined = Combiner::new().combine(&[("44.1", &old), ("44.2", &new)])?;
//! assert_eq!(combined.values(pcr4).len(), 4);
//! let mixed = image("shim 16.1", "linux 6.1").pcr(pcr4).unwrap().value;
//! let made_by = &combined.provenance(pcr4, &mixed)[0];
//! assert_eq!(made_by.to_string(), "bootloader of 44.2 + kernel of 44.1");
//! # Ok::<(), tec_tpm::combine::CombineError>(())
//! ```

mod admit;
mod combined;
mod group;
mod identify;
mod joint;
mod loose;
mod mixed;
mod nearest;
mod provenance;
mod sbat;
mod source;
mod walk;

use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;

pub use self::combined::{Combined, Undetermined};
pub use self::group::{Group, Grouping, Loaders, MokLists};
pub use self::identify::{Catalog, Identification, IdentifiedEvent, KnownEvent, Liberty, Made};
pub use self::joint::JointState;
pub use self::mixed::MixedStates;
pub use self::provenance::{Origin, Provenance};
pub use self::sbat::{SbatLevelError, SbatLevels};

/// Maximum number of images; alternatives are counted in 16 bits.
const MAX_IMAGES: usize = 10_000;

/// Images cannot be combined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CombineError {
    /// The value of a register does not follow from its events.
    #[error("image {image}: the events of PCR {pcr} do not produce its value")]
    Inconsistent {
        /// The image.
        image: String,
        /// The register.
        pcr: PcrIndex,
    },
    /// An image has two entries for one register.
    #[error("image {image} has two entries for PCR {pcr}")]
    RepeatedRegister {
        /// The image.
        image: String,
        /// The register.
        pcr: PcrIndex,
    },
    /// There are too many images.
    #[error("{count} images are more than the limit of {limit}")]
    TooManyImages {
        /// Number of images given.
        count: usize,
        /// Limit.
        limit: usize,
    },
    /// The events have more than 65,535 IDs.
    #[error("the events have more than 65535 different IDs")]
    TooManyComponents,
    /// A register would have more values than any verifier accepts.
    #[error("PCR {pcr} would have more than {limit} values")]
    TooManyValues {
        /// The register.
        pcr: PcrIndex,
        /// Limit.
        limit: usize,
    },
}

/// The reason why the value of a mix is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// An image does not state the register.
    #[error("one of the images does not state the register")]
    RegisterUnknown,
    /// The loader measures a part that is not measured in the part's own image.
    #[error("the loader measures a part that the other image may not have")]
    NotMeasured,
    /// Parts of both images decide it together, and no image has both.
    #[error("a measurement depends on parts of both images")]
    Entangled,
    /// It is unknown which of two revocation levels is newer.
    #[error("it is not known which of two revocation levels is newer")]
    LevelOrder,
}

/// Combines the expected measurements of images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Combiner {
    grouping: Grouping,
    levels: SbatLevels,
}

impl Combiner {
    /// shim and GRUB as one unit, lists of machine owner keys determined by shim.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses another grouping.
    pub fn with_grouping(mut self, grouping: Grouping) -> Self {
        self.grouping = grouping;
        self
    }

    /// Adds known revocation levels.
    pub fn with_sbat_levels(mut self, levels: SbatLevels) -> Self {
        self.levels = levels;
        self
    }

    /// The states of machines that move between these named images.
    ///
    /// # Errors
    /// [`CombineError`] for images whose values do not follow from their events, and for sets whose
    /// states cannot be listed.
    pub fn combine(&self, images: &[(&str, &ExpectedPcrs)]) -> Result<Combined, CombineError> {
        if images.len() > MAX_IMAGES {
            return Err(CombineError::TooManyImages { count: images.len(), limit: MAX_IMAGES });
        }
        let families = source::families(images, self.grouping, &self.levels)?;
        let names = images.iter().map(|(name, _)| (*name).to_owned()).collect();
        Combined::enumerate(names, families, self.clone())
    }
}

#[cfg(test)]
mod tests;
