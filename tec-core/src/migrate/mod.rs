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
//! An anchor gives up the authority at an epoch ([`Authority::yield_to`]), which writes that epoch into its
//! own record; the other takes it at the same epoch ([`Authority::take`]), which requires its own record to
//! be *below* that epoch. Suppose two anchors X and Y were both active: X took at `a` the authority that Y
//! gave up at `a`, and Y took at `b` what X gave up at `b`. X is still active, so it took `a` after giving up
//! at `b`, and `b < a`. Y is still active, so it took `b` after giving up at `a`, and `a < b`. Both cannot
//! hold.
//!
//! # Invariants
//! | name | |
//! |---|---|
//! | `one_authority` | at most one of two anchors is active |
//! | `no_key_is_lost` | every disk or recovery key is at a releasing anchor, unless its machine was removed |
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
