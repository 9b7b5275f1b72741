//! What a machine booted, in terms of approved images: one of them or, in the middle of an update,
//! parts of several.
//!
//! *What it is*: the policy [`BootStates`], which knows the states that machines with approved
//! images can be in, and [`BootState`], which describes a state. [`WholeImages`] knows only whole
//! images; states between two images need a model of the boot chain
//! (`tec_tpm::combine::MixedStates`).
//!
//! *What it is not*: a judge of approvals. It only ever sees [`LiveImages`].
//!
//! ```text
//! registry ─ LiveImages::at(now) ─► Pins ─► BootStates ─┬─ admit ──► attest::appraise, flow::release
//!              images that pin the same registers ├─ values ─► reference values of policies └─
//!              nearest ► what a refusal is compared with
//! ```

mod coverage;
mod live;
mod measured;
mod pins;
mod settle;
mod state;
mod unpinned;
mod whole;
pub(crate) mod words;

use std::fmt;

pub use self::coverage::{Coverage, CoverageRow, CoveredBy, CoveredPart};
pub use self::live::LiveImages;
pub(crate) use self::measured::measured;
pub use self::measured::{FIRMWARE, as_image, proves_text};
pub use self::pins::Pins;
pub(crate) use self::settle::{Settled, is_constant, is_separator, leave_out_words, settled};
pub use self::state::{BootPart, BootState};
pub use self::unpinned::{BootInput, Unpinned};
pub use self::whole::WholeImages;
pub(crate) use self::whole::{fits, nearest, of_image};
pub use self::words::{SYSTEMD, add_systemd, words_after};

use crate::digest::Sha256Digest;
use crate::evidence::{PinnedPcrs, VerifiedEvidence};
use crate::image::ExpectedPcr;
use crate::pcr::{PcrIndex, PcrValues};

/// Finds the state, built from live approved images, that explains all pinned registers together.
///
/// *Contract*: pure; equal arguments give equal answers. Every live image, booted unmodified, is a
/// state. `admit` answers for the set of images of one moment: an image outside that set is part of
/// no state. Implementations may remember what they computed for a set, as long as they return it only for
/// exactly that set. [`Pins`] calls `admit` for each set of images that pin the same registers, so calls
/// alternate between sets. *Implemented by* [`WholeImages`] and `tec_tpm::combine::MixedStates`. *Conformance
/// suite*: [`testing::boot_states`](crate::testing::boot_states).
///
/// # Security
/// Never guess an unknown state: what cannot be computed is not a state.
pub trait BootStates: fmt::Debug + Send + Sync {
    /// The states that match all pinned registers together; whole images first, then those with the
    /// fewest parts. Empty if there are none.
    ///
    /// # Security
    /// `quoted` must come from a quote whose signature and nonce have been verified.
    fn admit(
        &self,
        live: &LiveImages<'_>,
        quoted: &PcrValues,
        pinned: PinnedPcrs,
    ) -> Vec<BootState>;

    /// The values that a register has in these states, sorted, without duplicates.
    fn values(&self, live: &LiveImages<'_>, pcr: PcrIndex) -> Vec<Sha256Digest>;

    /// The state with the fewest differing components, compared by the event log if it replays and
    /// by register values otherwise. `None` without images.
    fn nearest(
        &self,
        live: &LiveImages<'_>,
        evidence: &VerifiedEvidence,
        pinned: PinnedPcrs,
    ) -> Option<NearState>;

    /// Why states that these images may be in are refused: states whose registers cannot be
    /// computed.
    fn trouble(&self, live: &LiveImages<'_>, pinned: PinnedPcrs) -> Option<String>;
}

/// The state that is closest to the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NearState {
    /// The state.
    pub state: BootState,
    /// The values that the state leaves in the pinned registers, as far as known.
    pub expected: Vec<ExpectedPcr>,
}

impl NearState {
    /// A state and its registers.
    pub fn new(state: BootState, expected: Vec<ExpectedPcr>) -> Self {
        Self { state, expected }
    }

    /// The value that the state leaves in one register.
    pub fn pcr(&self, pcr: PcrIndex) -> Option<&ExpectedPcr> {
        self.expected.iter().find(|expected| expected.id == pcr)
    }
}
