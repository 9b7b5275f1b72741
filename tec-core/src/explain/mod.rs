//! The ladder of gates: why a boot was refused, told in the order in which a boot meets them.
//!
//! The first failing gate wins; later gates say "not reached". The same ladder is what a node is
//! told as a code, what an admin reads with `tec explain`, and what conditions and events show.

mod ladder;
mod pcrs;

pub use self::ladder::Gate;
pub use self::ladder::Ladder;
pub use self::ladder::Step;
pub use self::ladder::StepState;
pub use self::pcrs::ComponentMatch;
pub use self::pcrs::EventFinding;
pub use self::pcrs::ExpectedComponent;
pub use self::pcrs::PcrMismatch;
pub use self::pcrs::RegisterStates;
pub use self::pcrs::explain_pcrs;
