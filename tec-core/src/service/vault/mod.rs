//! The vault: brought up from nothing, unsealed at every start, and kept as it shall be.
//!
//! *What it is*: two [`Plan`](crate::plan::Plan)s and what they read and write. [`BringUp`]
//! initializes, wraps and stores the key, unseals, and does with a short-lived root token what only
//! root may do. [`Setup`] then works with the controller's own login: engines, authorities, keys,
//! passwords, and the controller's certificate. Both begin anew after every crash, and both may be
//! run at any time to repair drift.
//!
//! *What it is not*: a client; the calls are values ([`Request`], [`Response`]).
//!
//! ```text
//!   Secret: wrapping key, progress      file: wrapped key        vault
//!   1 created ──────────────────────────────────────────────────── not initialized
//!   2 init-intent                       intent                     initialized, empty
//!   3                                   written, read back; no intent
//!   4 key-stored ───────────────────────────────────────────────── unsealed, auth, roles, policies
//!   5 configured:<digest> ──────────────────────────────────────── no root token is left
//! ```
//! A vault that is initialized without a file although the progress is `init-intent` is empty, since
//! nothing is put in before step 4: it alone may be reset, and only if its own volume says the same, and
//! nobody opened it. Work with a root token sets 5 back to 4 first, so that a crash is found.

mod bring_up;
pub mod call;
mod converge;
mod desired;
mod effect;
mod object;
pub mod password;
mod platform;
mod policy;
mod progress;
mod root;
mod setup;
mod wrap;

pub use self::bring_up::BringUp;
pub use self::desired::{NATS_KEYS, OPENSEARCH_USERS};
pub use self::effect::{AesSecret, Effect, Event, Fresh, Outcome, Rotation, Sealed};
pub use self::platform::{Ordinal, Peers, Platform, RootPart, SealKind};
pub use self::progress::{Progress, ProgressError};
pub use self::setup::{Published, Refused, Setup, SetupEffect, SetupEnd, SetupEvent};
pub use self::wrap::{Binding, WrapError, WrappedKey};
use super::answer;
pub(crate) use super::answer::secret;
pub use super::answer::{AnswerError, Method, Request, Response, Verdict};

/// Where the engines are mounted. None lies below another, which the vault would refuse.
pub(crate) struct Mounts {
    pub(crate) systems: &'static str,
    pub(crate) environments: &'static str,
    pub(crate) opensearch: &'static str,
    pub(crate) pki_root: &'static str,
    pub(crate) pki_intermediate: &'static str,
    pub(crate) transit: &'static str,
}

pub(crate) const MOUNTS: Mounts = Mounts {
    systems: "kubefox/kv-systems",
    environments: "kubefox/kv-env",
    opensearch: "kubefox/kv-opensearch",
    pki_root: "kubefox/pki-root",
    pki_intermediate: "kubefox/pki-int",
    transit: "kubefox/transit-nats",
};

#[cfg(test)]
mod tests;
