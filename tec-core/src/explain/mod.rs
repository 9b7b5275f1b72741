//! The ladder of gates: explains why a boot was refused, in the order of the boot.
//!
//! The first failing gate wins; later gates say "not reached". The same ladder gives the code that
//! a node receives, the output of `tec explain` for admins, and what conditions and events show.

mod component;
mod ladder;
mod mismatch;
mod pcrs;

pub use self::component::component_name;
pub use self::ladder::{Gate, Ladder, Step, StepState};
pub use self::mismatch::{
    ComponentMatch, EventFinding, ExpectedComponent, PcrMismatch, RegisterFindings, RegisterStates,
};
pub use self::pcrs::{Explained, explain_pcrs};
