//! What the plan that brings the vault up is told, and what it wants done.

use std::time::Duration;

use super::{Progress, Request, Response};
use crate::secret::SecretArray;
use crate::service::Fatal;

/// Randomness of one process.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "both parts are drawn by the caller")]
pub struct Fresh {
    /// The wrapping key, if there is none yet.
    pub key: SecretArray<32>,
    /// Seed of the nonces of this process.
    pub seed: SecretArray<32>,
}

/// The Secret of the wrapping key.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "shells make it")]
pub struct AesSecret {
    /// The wrapping key.
    pub key: SecretArray<32>,
    /// Its name.
    pub key_id: String,
    /// How far the bootstrap came.
    pub progress: Progress,
    /// Whether it is to be replaced.
    pub rotation: Rotation,
}

/// Where the replacement of the wrapping key stands.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "shells make it")]
pub enum Rotation {
    /// Nobody asked for one.
    None,
    /// A person asked for one.
    Wanted,
    /// The key is new; the wrapped key on disk may still be for the one before.
    Under {
        /// The wrapping key before.
        key: SecretArray<32>,
        /// Its name.
        key_id: String,
    },
}

/// What the plan is told.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "shells make them")]
pub enum Event {
    /// The process began.
    Start,
    /// The wait is over.
    Elapsed,
    /// The vault answered.
    Answered(Response),
    /// This is in the Secret; `None` if there is none.
    Secret(Option<AesSecret>),
    /// This is in the file; `None` if there is none.
    File(Option<Vec<u8>>),
    /// This is in the files of the other pods; `None` of one that does not tell.
    Files(Vec<Option<Vec<u8>>>),
    /// The authorities that a controller published, in PEM; `None` if none ever did.
    Authorities(Option<String>),
    /// The write is durable.
    Done,
    /// It failed, or nobody knows whether it happened.
    Failed,
}

/// What the plan wants done.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "shells carry them out")]
pub enum Effect {
    /// Call the vault. Answered by `Answered` or `Failed`.
    Call(Request),
    /// Read the Secret. Answered by `Secret` or `Failed`.
    ReadSecret,
    /// Create the Secret with progress `created`, unless there is one. Answered by `Done`.
    CreateSecret {
        /// The wrapping key.
        key: SecretArray<32>,
        /// Its name.
        key_id: String,
    },
    /// Read what a controller published when a vault was set up. Answered by `Authorities` or
    /// `Failed`.
    ReadAuthorities,
    /// Change the progress, if it still is `from`. Answered by `Done`.
    Advance {
        /// What it is.
        from: Progress,
        /// What it becomes.
        to: Progress,
    },
    /// Put a new wrapping key in the Secret, beside the one before, if that is still `from`. Answered by
    /// `Done`.
    Rotate {
        /// Name of the wrapping key of the moment.
        from: String,
        /// The new one.
        key: SecretArray<32>,
        /// Its name.
        key_id: String,
    },
    /// Take the wrapping key before this one out of the Secret. Answered by `Done`.
    Forget {
        /// Name of the wrapping key that stays.
        key_id: String,
    },
    /// Read the file of the wrapped key. Answered by `File`.
    ReadFile,
    /// Read the wrapped key of every other pod. Answered by `Files`.
    FetchFromPeers,
    /// Write the file: a temporary one, synced, renamed, the directory synced. Answered by `Done`.
    WriteFile(Vec<u8>),
    /// Remove the file, if there is one, and every request to empty the storage. Answered by `Done`.
    RemoveFile,
    /// Write, durably and beside the file, that the vault is about to be initialized under this
    /// wrapping key. Answered by `Done`.
    WriteIntent {
        /// Name of the wrapping key.
        key_id: String,
    },
    /// Read that. Answered by `File`, with the name of the wrapping key.
    ReadIntent,
    /// Remove that, if it is there. Answered by `Done`.
    RemoveIntent,
    /// Stop the vault, empty its storage, start it. Only ever asked for while it holds nothing.
    /// Answered by `Done`.
    ResetStorage,
    /// Wait. Answered by `Elapsed`.
    Wait(Duration),
    /// The end. Not answered.
    Finish(Result<Outcome, Fatal>),
}

/// How it ended, if nobody has to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers must know each")]
pub enum Outcome {
    /// The vault is unsealed, with its roles and policies.
    Up,
    /// It is sealed, and was to be left so.
    LeftSealed,
    /// It opened by itself and serves; but its key is lost, for this reason, and with it the way to
    /// mend what only root may write.
    WithoutKey(Fatal),
}

/// What is done about a vault that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it is opened or it is not")]
pub enum Sealed {
    /// It is unsealed.
    Open,
    /// It stays sealed: a person did that on purpose.
    Leave,
}
