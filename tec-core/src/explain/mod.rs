//! The ladder of gates: why a boot was refused, told in the order in which a boot meets them.
//!
//! The first failing gate wins; later gates say "not reached". The same ladder is what a node is
//! told as a code, what an admin reads with `tec explain`, and what conditions and events show.

mod component;
mod ladder;
mod mismatch;
mod pcrs;

pub use self::component::component_name;
pub use self::ladder::{Gate, Ladder, Step, StepState};
pub use self::mismatch::{
    ComponentMatch, EventFinding, ExpectedComponent, PcrMismatch, RegisterFindings, RegisterStates,
};
pub use self::pcrs::explain_pcrs;
