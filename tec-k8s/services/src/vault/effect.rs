//! Events and effects of the plan that brings the vault up.

use std::time::Duration;

use tec_core::secret::SecretArray;

use super::{Progress, Request, Response, Wish};
use crate::Fatal;

/// Randomness of one process.
#[derive(Debug)]
pub struct Fresh {
    /// The wrapping key to use if none exists yet.
    pub key: SecretArray<32>,
    /// Seed for the nonces of this process.
    pub seed: SecretArray<32>,
}

/// The Secret of the wrapping key.
#[derive(Debug)]
pub struct AesSecret {
    /// The wrapping key.
    pub key: SecretArray<32>,
    /// Its name.
    pub key_id: String,
    /// How far the bootstrap got.
    pub progress: Progress,
    /// Whether the wrapping key must be replaced.
    pub rotation: Rotation,
    /// Whether the vault's own key must be replaced.
    pub vault_key: Wish,
}

/// State of the replacement of the wrapping key.
#[derive(Debug)]
pub enum Rotation {
    /// Not requested.
    None,
    /// Requested by an admin.
    Wanted,
    /// The key is new; the wrapped key on disk may still use the previous one.
    Under {
        /// The previous wrapping key.
        key: SecretArray<32>,
        /// Its name.
        key_id: String,
    },
}

/// An event that the plan receives.
#[derive(Debug)]
pub enum Event {
    /// The process started.
    Start,
    /// The wait is over.
    Elapsed,
    /// The vault answered.
    Answered(Response),
    /// Content of the Secret; `None` if there is none.
    Secret(Option<AesSecret>),
    /// Content of the file; `None` if there is none.
    File(Option<Vec<u8>>),
    /// Content of the files of the other pods; `None` for a pod that does not answer.
    Files(Vec<Option<Vec<u8>>>),
    /// The CA certificates that a controller published, in PEM; `None` if none ever did.
    Authorities(Option<String>),
    /// The write is durable.
    Done,
    /// The write failed, or it is unknown whether it happened.
    Failed,
}

/// An effect that the plan requests.
#[derive(Debug)]
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
    /// Read what a controller published after a vault was set up. Answered by `Authorities` or
    /// `Failed`.
    ReadAuthorities,
    /// Change the progress, if it is still `from`. Answered by `Done`.
    Advance {
        /// The current progress.
        from: Progress,
        /// The new progress.
        to: Progress,
    },
    /// Put a new wrapping key into the Secret, next to the previous one, if the current one is
    /// still `from`. Answered by `Done`.
    Rotate {
        /// Name of the current wrapping key.
        from: String,
        /// The new key.
        key: SecretArray<32>,
        /// Its name.
        key_id: String,
    },
    /// Remove the previous wrapping key from the Secret. Answered by `Done`.
    Forget {
        /// Name of the wrapping key that stays.
        key_id: String,
    },
    /// Remove the request for another key of the vault, if there is one. Answered by `Done`.
    ClearVaultKey,
    /// Read the file of the wrapped key. Answered by `File`.
    ReadFile,
    /// Read the wrapped key of every other pod. Answered by `Files`.
    FetchFromPeers,
    /// Write the file: write a temporary file, sync, rename, sync the directory. Answered by
    /// `Done`.
    WriteFile(Vec<u8>),
    /// Remove the file, if it exists, and every request to empty the storage. Answered by `Done`.
    RemoveFile,
    /// Write, durably and next to the file, that the vault is about to be initialized under this
    /// wrapping key. Answered by `Done`.
    WriteIntent {
        /// Name of the wrapping key.
        key_id: String,
    },
    /// Read that intent. Answered by `File`, with the name of the wrapping key.
    ReadIntent,
    /// Remove that intent, if it exists. Answered by `Done`.
    RemoveIntent,
    /// Stop the vault, empty its storage, and start it. Requested only while the vault is empty. Answered by
    /// `Done`.
    ResetStorage,
    /// Wait. Answered by `Elapsed`.
    Wait(Duration),
    /// Finished. Not answered.
    Finish(Result<Outcome, Fatal>),
}

/// Outcome, if no admin needs to intervene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The vault is unsealed, with its roles and policies.
    Up,
    /// It is sealed, and stays so as requested.
    LeftSealed,
    /// It unsealed itself and serves, but its key is lost, for this reason: what only root may write can no
    /// longer be repaired.
    WithoutKey(Fatal),
}

/// How to handle a sealed vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// Unseal it.
    Open,
    /// Leave it sealed: someone sealed it on purpose.
    Leave,
}
