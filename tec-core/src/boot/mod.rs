//! What a machine booted, told in approved images: one of them, or, in the middle of an update, parts
//! of several.
//!
//! *What it is*: the policy [`BootStates`], which knows the states that machines with approved images
//! can be in, and the words in which a state is told ([`BootState`]). [`WholeImages`] knows images as
//! they come; the states between two images are what a model of the boot chain adds
//! (`tec_tpm::combine::MixedStates`).
//!
//! *What it is not*: a judge of approvals. It is only ever shown [`LiveImages`].
//!
//! ```text
//! registry ─ LiveImages::at(now) ─► Pins ─► BootStates ─┬─ admit ──► attest::appraise, flow::release
//!              images that pin the same registers       ├─ values ─► reference values of policies
//!                                                       └─ nearest ► what a refusal is told against
//! ```

mod live;
mod pins;
mod state;
mod whole;

use std::fmt;

pub use self::live::LiveImages;
pub use self::pins::Pins;
pub use self::state::{BootPart, BootState};
pub use self::whole::WholeImages;
pub(crate) use self::whole::{fits, nearest, of_image};

use crate::digest::Sha256Digest;
use crate::evidence::{PinnedPcrs, VerifiedEvidence};
use crate::image::ExpectedPcr;
use crate::pcr::{PcrIndex, PcrValues};

/// Says which state, made of live approved images, explains all pinned registers at once.
///
/// *Contract*: pure; equal arguments give equal answers. Every live image is a state when it is
/// booted as it comes. `admit` answers for one moment's set of images: an image that is not among
/// them takes part in no state. Implementations may remember what they computed for a set, as long
/// as it is asked for under exactly that set. [`Pins`] asks for each set of images that pin the same
/// registers, so several sets take turns.
/// *Implemented by* [`WholeImages`] and `tec_tpm::combine::MixedStates`.
/// *Conformance suite*: [`testing::boot_states`](crate::testing::boot_states).
///
/// # Security
/// A state that is not known must not be guessed: what cannot be computed is no state.
pub trait BootStates: fmt::Debug + Send + Sync {
    /// The states that have all pinned registers at once; whole images first, then those of the
    /// fewest parts. Empty when there is none.
    ///
    /// # Security
    /// `quoted` must come from a quote whose signature and nonce are verified.
    fn admit(
        &self,
        live: &LiveImages<'_>,
        quoted: &PcrValues,
        pinned: PinnedPcrs,
    ) -> Vec<BootState>;

    /// The values that a register has in these states, sorted, each once.
    fn values(&self, live: &LiveImages<'_>, pcr: PcrIndex) -> Vec<Sha256Digest>;

    /// The state with the fewest differing components, by the event log where it replays and by the
    /// values elsewhere. `None` without images.
    fn nearest(
        &self,
        live: &LiveImages<'_>,
        evidence: &VerifiedEvidence,
        pinned: PinnedPcrs,
    ) -> Option<NearState>;

    /// Why states are refused that these images may be in, where their registers are not known.
    fn trouble(&self, live: &LiveImages<'_>, pinned: PinnedPcrs) -> Option<String>;
}

/// A state that evidence comes close to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NearState {
    /// The state.
    pub state: BootState,
    /// What it leaves in the pinned registers, as far as it says anything about them.
    pub expected: Vec<ExpectedPcr>,
}

impl NearState {
    /// A state and its registers.
    pub fn new(state: BootState, expected: Vec<ExpectedPcr>) -> Self {
        Self { state, expected }
    }

    /// What it leaves in one register.
    pub fn pcr(&self, pcr: PcrIndex) -> Option<&ExpectedPcr> {
        self.expected.iter().find(|expected| expected.id == pcr)
    }
}
