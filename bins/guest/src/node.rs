//! What a distribution does around Ignition and Clevis, reduced to a minimum: load modules, set up the
//! network, choose between first boot and unlocking, hand over to the root, and report to the host what
//! happened when.
//!
//! ```text
//!  initial: modules ─ udev ─ network ─┬─ no binding: ignition fetch … disks ─┐
//!                                     └─ bound: clevis luks unlock ──────────┼─ mount ─ switch-root
//!                                                refused: a key that is typed ───┘
//!  root:    counts the boot, says so, waits for the unit of recovery keys if there is one, switches off
//! ```
//! Every step is a frame: its name, and the seconds since the kernel started.

pub mod content;
pub mod initial;
pub mod marks;
pub mod root;
