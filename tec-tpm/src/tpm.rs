//! A TPM as a node uses it, however it is reached.
//!
//! *What it is*: the trait [`AnyTpm`], and what is made of it: [`TpmAttester`], the attester port,
//! and `TpmMarker` (feature `node`), PCR 15 as the mark of a cluster.
//!
//! *What it is not*: a TPM stack. It knows what a node does at boot, and nothing else.
//!
//! ```text
//!  TpmAttester, TpmMarker, node-agent ──► AnyTpm ─┬─ direct::Tpm   the device, or swtpm's socket
//!                                                 └─ tss::Tpm      libtss2
//! ```

mod attester;
mod error;
#[cfg(feature = "node")]
mod marker;
#[cfg(feature = "atls")]
mod quoter;
#[cfg(any(feature = "direct", feature = "tss"))]
pub(crate) mod values;

use std::fmt;

use tec_core::ak::{Credential, EkOffer};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::secret::SecretBytes;

pub use self::attester::{EventLogSource, TpmAttester};
pub use self::error::TpmError;
#[cfg(feature = "node")]
pub use self::marker::TpmMarker;
use crate::ak::{AkAlgorithm, AkHandle, StoredAk};
use crate::evidence::TpmEvidence;

/// A TPM 2.0 with a SHA-256 bank.
///
/// *Contract*: calls block for as long as the TPM takes, and calls of several threads take turns.
/// A call leaves nothing behind in the TPM but what it is for, whether it succeeds or fails.
/// *Idempotence*: [`ensure_ak`](Self::ensure_ak) and [`evict_ak`](Self::evict_ak) may be called
/// again at any time; what extends a register may not. *Implemented by* `direct::Tpm` (feature
/// `direct`) and `tss::Tpm` (feature `tss`); one suite, tests/swtpm, is run over both.
///
/// # Security
/// Passwords of the hierarchies are taken to be empty, as they are on nodes that boot by
/// themselves. What goes over the bus of a discrete TPM is not encrypted: of it, only the answer to
/// a challenge is secret, and it is worth nothing without the attestation key.
pub trait AnyTpm: fmt::Debug + Send + Sync {
    /// The attestation key at `handle`; makes a restricted signing key under the endorsement key
    /// and keeps it there if the handle is free. Running it again gives the same key.
    ///
    /// # Errors
    /// [`TpmError::HandleOccupied`] when something else lies there; it is never evicted.
    fn ensure_ak(&self, handle: AkHandle, algorithm: AkAlgorithm) -> Result<StoredAk, TpmError>;

    /// TPM2B_PUBLIC of the attestation key at `handle`.
    ///
    /// # Errors
    /// [`TpmError::NoAk`] without a key, [`TpmError::HandleOccupied`] when something else lies there.
    fn ak_public_area(&self, handle: AkHandle) -> Result<Vec<u8>, TpmError>;

    /// Removes the attestation key at `handle`, for good; `false` when nothing lies there.
    ///
    /// # Errors
    /// [`TpmError::HandleOccupied`] when something else lies there.
    fn evict_ak(&self, handle: AkHandle) -> Result<bool, TpmError>;

    /// Quotes all 24 registers of the SHA-256 bank in one selection, with their values.
    ///
    /// # Errors
    /// [`TpmError::NoAk`] without a key, [`TpmError::Quote`] when registers keep moving.
    fn quote(&self, handle: AkHandle, nonce: &[u8; 32]) -> Result<TpmEvidence, TpmError>;

    /// The endorsement key of the default template, and its certificate if the TPM has one.
    ///
    /// # Errors
    /// [`TpmError::Command`] when the key cannot be made.
    fn read_ek(&self) -> Result<EkOffer, TpmError>;

    /// Answers a challenge (TPM2_ActivateCredential): the secret in it.
    ///
    /// # Errors
    /// [`TpmError::ChallengeRefused`] when it is not for this endorsement key and the attestation
    /// key at `handle`.
    fn activate_credential(
        &self,
        handle: AkHandle,
        credential: &Credential,
    ) -> Result<SecretBytes, TpmError>;

    /// Extends a register of the SHA-256 bank. Other banks keep their values: whoever relies on
    /// them must extend them, too.
    ///
    /// # Errors
    /// [`TpmError::Command`], for example when the locality may not extend this register.
    fn pcr_extend(&self, index: PcrIndex, event: &Sha256Digest) -> Result<(), TpmError>;

    /// Extends a register of every bank by the bank's own digest of `data`, as TPM2_PCR_Event does
    /// (TPM 2.0 Library Part 3, "TPM2_PCR_Event"): at most 1024 bytes.
    ///
    /// # Errors
    /// [`TpmError::Command`], for example when the locality may not extend this register.
    fn pcr_event(&self, index: PcrIndex, data: &[u8]) -> Result<(), TpmError>;

    /// All registers of the SHA-256 bank.
    ///
    /// # Errors
    /// [`TpmError::Bank`] when the TPM has no such bank.
    fn pcr_read(&self) -> Result<PcrValues, TpmError>;
}
