//! The vault: brought up from nothing, unsealed at every start, and kept in its desired state.
//!
//! *What it is*: two [`Plan`](tec_core::plan::Plan)s, and what they read and write. [`BringUp`] initializes the
//! vault, wraps and stores its key, unseals it, and uses a short-lived root token for what only root may do.
//! [`Setup`] then works with the controller's own login: engines, CAs, keys, passwords, and the controller's
//! certificate. Both start over after every crash, and both may run at any time to repair drift.
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
//! A vault that is initialized without a file while the progress is `init-intent` is empty, since
//! nothing is stored in it before step 4. Such a vault, and no other, may be reset, and only if its own
//! volume records the same and nobody has unsealed it. Work with a root token first sets 5 back to 4, so that
//! a crash is detected.

mod bring_up;
pub mod call;
mod converge;
mod desired;
mod effect;
mod keyring;
mod object;
pub mod password;
mod platform;
mod policy;
mod progress;
mod rekey;
pub mod restore;
mod root;
mod setup;
pub mod snapshot;
mod succession;
mod wrap;

pub use self::bring_up::BringUp;
pub use self::desired::{NATS_KEYS, OPENSEARCH_USERS};
pub use self::effect::{AesSecret, Effect, Event, Fresh, Outcome, Rotation, Sealed};
pub use self::platform::{Ordinal, Peers, Platform, RootPart, SealKind};
pub use self::progress::{Progress, ProgressError};
pub use self::rekey::Rekey;
pub use self::setup::{OnDrift, Published, Refused, Setup, SetupEffect, SetupEnd, SetupEvent};
pub use self::succession::{
    Damaged, NATS_ACCOUNTS, NATS_OPERATOR, Record, Signers, Stage, Stored, Wish, overlap,
};
pub use self::wrap::{Binding, WrapError, WrappedKey};
use super::answer;
pub(crate) use super::answer::secret;
pub use super::answer::{AnswerError, Method, Request, Response, Verdict};

/// Mount paths of the engines. None is below another, which the vault would refuse.
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
pub(crate) mod tests;
