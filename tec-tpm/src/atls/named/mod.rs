//! The nonce as a server name, as older peers send it: 32 bytes in base64.
//!
//! That is no host name (RFC 6066, section 3), which rustls neither sends nor takes. So rustls is
//! told a host name of the same length instead, what travels is base64, and in the transcript that
//! both ends hash the one is put for the other:
//!
//! ```text
//!   rustls ── host name ──► Wire ── base64 ──► peer        and back
//!     └────── host name ──► Transcript ── base64 ──► hash
//! ```
//! A peer that sent such a host name itself would end with another transcript, and be refused.

mod hello;
mod transcript;
mod wire;

pub(super) use self::hello::host_name;
pub(super) use self::transcript::provider;
pub(super) use self::wire::Wire;
