//! Moving trust: from an external trust anchor into the cluster itself, back again, or to a backup.
//!
//! *What it is*: which of two anchors may approve ([`Authority`]), what an anchor holds as a stream
//! of [`TrustUnit`]s, the procedure that moves it ([`MigratePlan`]), and, with the feature
//! `transfer`, a single file that carries it if there is no network.
//!
//! *What it is not*: shared state between anchors. Each keeps its own record of authority, changed
//! by compare-and-swap; there is no third party, no clock and no lease.
//!
//! ```text
//!            plan, copy, verify              yield(n)          take(n)                 retire
//!  source  Active ─────────────────────────► ServeOnly ───────────────────► Forward ──► Retired
//!  target  (new) ─► Standby ── listen(n) ─── copy, verify ──► Active
//!                      └────────── yield(n+1): grant n is void ─► source takes n+1: rolled back
//! ```
//!
//! # Why there is never more than one authority
//! An anchor gives up authority at an epoch ([`Authority::yield_to`]), which writes that epoch into
//! its own record, and the other takes it at that same epoch ([`Authority::take`]), which requires
//! its own record to be *below* it. Suppose both were active, the later of them at epoch `b`
//! because the other, active at `a`, gave up at `b`. Then the other took `a > b` afterwards, since
//! the one had given up at `a`; so the record of the one was at `a` before it took `b`, which `b <
//! a` rules out.
//!
//! # Invariants
//! | name | |
//! |---|---|
//! | `one_authority` | at most one of two anchors is active |
//! | `no_key_is_lost` | every disk or recovery key is at a releasing anchor, unless its machine was removed |
//! | `no_key_is_lost` | a disk key or recovery key is at an anchor that releases it, unless someone removed the machine |
//! | `no_key_changes` | an existing key is never regenerated and never overwritten |
//! | `shut_out_stays_out` | a copy never re-admits what was revoked |
//! | `removed_stays_removed` | what the authority removed does not come back |
//!
//! The proptest `whatever_happens_there_is_one_authority_and_no_key_is_lost` checks them.

mod authority;
pub mod belonging;
mod copy;
mod epoch;
mod merge;
mod plan;
mod port;
mod proof;
mod role;
mod shell;
#[cfg(feature = "transfer")]
pub mod transfer;
mod unit;

pub use self::authority::{Authority, Grant, Refused, Transition};
pub use self::copy::{Conflict, CopyReport, Observer, Quiet, compare, copy};
pub use self::epoch::{AnchorId, Epoch, Intake, ParseAnchorIdError};
pub use self::merge::{Clash, Merged, merge_image, merge_machine};
pub use self::plan::{Goal, MigrateEffect, MigrateEvent, MigrateOutcome, MigratePlan, Side};
pub use self::port::{AdoptPage, Adopted, SwapOutcome, TrustAnchor};
pub use self::proof::{Difference, Mismatch, Proof, prove, verify};
pub use self::role::{Deed, NoAuthority, Role};
pub use self::shell::{Outcome, migrate};
pub use self::unit::{MachineUnit, TrustUnit, UnitName};
