//! The registration endpoints as tower services: any HTTP server that speaks `http` types can
//! serve them.
//!
//! ```text
//! GET /ignition-clevis-pin-trustee ─► RegisterService ─► flow::register
//! PUT /register-ak ─────────────────► AkService ───────► flow::approve, flow::provision
//! PUT /register-ak/proof ───────────► AkService            (answer to a challenge of the TPM)
//! ```
//! Paths, methods, statuses and JSON match the existing operator, with additions only. Rate limits
//! and TLS are left to the server that runs them.

mod ak;
mod register;
mod reply;

pub use self::ak::{AkService, AkServiceConfig};
pub use self::register::{RegisterService, RegisterServiceConfig};
pub use self::reply::{ReplyBody, ReplyStyle, refusal};
pub use crate::challenge::ChallengeKey;

/// Maximum size of a request body, in bytes.
pub const MAX_BODY: usize = 64 * 1024;
