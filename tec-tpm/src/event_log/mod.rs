//! TCG event logs: parsed within limits, replayed, and believed only as far as they replay.
//!
//! *What it is*: a reader of the logs that firmware and boot loaders write (TCG PC Client Platform
//! Firmware Profile 1.06, section 10), in the crypto-agile form and in the older SHA-1 form, and
//! the fold that turns a log into register values.
//!
//! *What it is not*: a judge. A log proves something only about registers whose fold equals a quoted value;
//! [`VerifiedLog`] is that proof. Of event data, only the bytes whose digest the event has are then proven
//! ([`VerifiedLog::measured`]); the types of events never are.
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
//! # #[cfg(feature = "test-util")] {
//! use tec_core::pcr::PcrIndex;
//! use tec_core::pcr::PcrSet;
//! use tec_tpm::compute::Guid;
//! use tec_tpm::event_log::Content;
//! use tec_tpm::event_log::EventKind;
//! use tec_tpm::event_log::EventLog;
//! use tec_tpm::event_log::EventLogBuilder;
//!
//! let (pcr7, kind) = (PcrIndex::SECURE_BOOT, EventKind::EFI_VARIABLE_DRIVER_CONFIG);
//! let bytes = EventLogBuilder::new()
//!     .variable(pcr7, kind, *Guid::GLOBAL.as_bytes(), "SecureBoot", &[1])
//!     .build();
//!
//! let log = EventLog::parse(&bytes)?;
//! let quoted = log.replay_sha256()?; // in earnest these come from a quote
//! let verified = log.verify(&quoted, PcrSet::default().with(pcr7))?;
//!
//! // Was Secure Boot on? The variable was measured with its name, so both are proven.
//! let secure_boot = verified.measured().find_map(|(event, _)| match event.content() {
//!     Content::Variable { vendor: Guid::GLOBAL, name, data } if name == "SecureBoot" => Some(data),
//!     _ => None,
//! });
//! assert_eq!(secure_boot, Some(&[1][..]));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bank;
// With the other doubles.
#[cfg(any(test, feature = "test-util"))]
#[path = "../testing/event_log.rs"]
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
mod systemd;
mod text;
mod verify;
mod view;

pub use bank::Bank;
#[cfg(any(test, feature = "test-util"))]
pub use build::EventLogBuilder;
pub(crate) use content::variable_data;
pub use content::{Content, Partition};
pub use diff::{Change, LogDiff, RegisterDiff};
pub use error::EventLogError;
pub use event::{Digests, Event};
pub use kind::EventKind;
pub use measured::DataProof;
pub use parse::{EventLog, Format};
pub use replay::Replayed;
pub(crate) use replay::extended;
pub use systemd::systemd_records;
pub use verify::{VerifiedLog, VerifyLogError, evidence};
pub use view::{EventView, LogView};

#[cfg(test)]
mod tests;
