//! Trust moves: from a trust anchor outside to the cluster itself, or back, or to a backup.
//!
//! *What it is*: who of two anchors may approve ([`Authority`]), what an anchor holds as a stream of
//! [`TrustUnit`]s, the procedure that moves it ([`MigratePlan`]), and, with the feature `transfer`, the
//! one file that carries it where no network does.
//!
//! *What it is not*: shared state between anchors. Each keeps its own record of authority, swapped
//! by compare and swap; there is no third party, no clock and no lease.
//!
//! ```text
//!            plan, copy, verify              yield(n)          take(n)                 retire
//!  source  Active ─────────────────────────► ServeOnly ───────────────────► Forward ──► Retired
//!  target  (new) ─► Standby ── listen(n) ─── copy, verify ──► Active
//!                      └────────── yield(n+1): grant n is void ─► source takes n+1: rolled back
//! ```
//!
//! # Why there is never more than one authority
//! An anchor gives authority up at an epoch ([`Authority::yield_to`]), which writes that epoch into
//! its own record, and the other takes it at that very epoch ([`Authority::take`]), which its own
//! record must be *below*. Let both be active, the later of them at epoch `b` since the other, active
//! at `a`, gave up at `b`. Then the other took `a > b` afterwards, since the one had given up at
//! `a`; so the record of the one was at `a` before it took `b`, and `b < a` does not go.
//!
//! # Invariants
//! | name | |
//! |---|---|
//! | `one_authority` | at most one of two anchors is active |
//! | `epochs_only_grow` | no record of authority goes back |
//! | `no_key_is_lost` | a disk key or recovery key is at an anchor that releases, unless somebody removed the machine |
//! | `no_key_changes` | a key that exists is never made again and never overwritten |
//! | `shut_out_stays_out` | what was revoked is not let in again by a copy |
//! | `removed_stays_removed` | what the authority removed does not come back |
//!
//! They are checked by the proptest `whatever_happens_there_is_one_authority_and_no_key_is_lost`.

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
