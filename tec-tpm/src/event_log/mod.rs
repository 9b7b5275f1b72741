//! TCG event logs: parsed within limits, replayed, and believed only as far as they replay.
//!
//! *What it is*: a reader of the logs that firmware and boot loaders write (TCG PC Client Platform
//! Firmware Profile 1.06, section 10), in the crypto-agile form and in the older SHA-1 form, and
//! the fold that turns a log into register values.
//!
//! *What it is not*: a judge. A log proves something only about registers whose fold equals a
//! quoted value; [`VerifiedLog`] is that proof. Event data is never proven, not even then.
//!
//! ```text
//! bytes ── EventLog::parse ──► EventLog ──┬─ replay(bank) ───────────► Replayed
//!                                         ├─ verify(quoted, chosen) ─► VerifiedLog
//!                                         ├─ diff(other, bank) ──────► LogDiff
//!                                         ├─ LogView ─► JSON, table
//!                                         └─ evidence_against ───────► LogEvidence
//! ```
//!
//! Padding: what follows the last event may be a run of bytes that are all `0x00` or all `0xff`,
//! as in the log areas that ACPI hands over. Anything else after the last event is an error.
//!
//! # Example
//! ```
//! use tec_core::pcr::PcrIndex;
//! use tec_core::pcr::PcrSet;
//! use tec_tpm::event_log::EventKind;
//! use tec_tpm::event_log::EventLog;
//! use tec_tpm::event_log::EventLogBuilder;
//!
//! let bytes = EventLogBuilder::new()
//!     .measure(PcrIndex::BOOT_MANAGER, EventKind::EFI_ACTION, b"Calling EFI Application")
//!     .build();
//!
//! let log = EventLog::parse(&bytes)?;
//! let quoted = log.replay_sha256()?; // in earnest these come from a quote
//! let chosen = PcrSet::default().with(PcrIndex::BOOT_MANAGER);
//! let verified = log.verify(&quoted, chosen)?;
//! assert_eq!(verified.events().count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bank;
mod build;
mod content;
mod cursor;
mod detail;
mod device_path;
mod diff;
mod error;
mod event;
mod kind;
mod measured;
mod parse;
mod replay;
mod text;
mod verify;
mod view;

pub use bank::Bank;
pub use build::EventLogBuilder;
pub use content::Content;
pub use content::Partition;
pub use diff::Change;
pub use diff::LogDiff;
pub use diff::RegisterDiff;
pub use error::EventLogError;
pub use event::Digests;
pub use event::Event;
pub use kind::EventKind;
pub use measured::DataProof;
pub use parse::EventLog;
pub use parse::Format;
pub use parse::Limits;
pub use replay::Replayed;
pub use verify::VerifiedLog;
pub use verify::VerifyLogError;
pub use verify::evidence;
pub use view::EventView;
pub use view::LogView;

#[cfg(test)]
mod tests;
