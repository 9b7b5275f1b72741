//! A TPM as used by a node, however it is reached.
//!
//! *What it is*: the trait [`AnyTpm`], and the attester port over it: [`TpmAttester`].
//!
//! *What it is not*: a TPM stack. It covers what a node does at boot, and nothing else.
//!
//! ```text
//!  TpmAttester, tec-agent, tec-node ──► AnyTpm ─┬─ direct::Tpm   the device, or swtpm's socket
//!                                                 └─ tss::Tpm      libtss2
//! ```

mod attester;
mod error;
#[cfg(any(feature = "direct", feature = "tss"))]
pub(crate) mod stored;
#[cfg(any(feature = "direct", feature = "tss"))]
pub(crate) mod values;

use std::fmt;

use tec_core::ak::{Credential, EkOffer};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::secret::SecretBytes;

pub use self::attester::{EventLogSource, TpmAttester};
pub use self::error::TpmError;
use crate::ak::{AkAlgorithm, AkHandle, StoredAk};
use crate::evidence::TpmEvidence;

/// A TPM 2.0 with a SHA-256 bank.
///
/// *Contract*: calls block for as long as the TPM takes, and calls from several threads take turns.
/// Whether it succeeds or fails, a call leaves nothing behind in the TPM except its intended
/// result. *Idempotence*: [`ensure_ak`](Self::ensure_ak) and [`evict_ak`](Self::evict_ak) may be
/// repeated at any time; calls that extend a register may not. *Implemented by* `direct::Tpm`
/// (feature `direct`) and `tss::Tpm` (feature `tss`); one suite, tests/swtpm, runs over both.
///
/// # Security
/// The passwords of the hierarchies are assumed to be empty, as they are on nodes that boot
/// unattended. Traffic on the bus of a discrete TPM is not encrypted: the only secret in it is the
/// answer to a challenge, which is worthless without the attestation key.
pub trait AnyTpm: fmt::Debug + Send + Sync {
    /// The attestation key at `handle`; if the handle is free, creates a restricted signing key
    /// under the endorsement key and stores it there. Repeated calls return the same key.
    ///
    /// # Errors
    /// [`TpmError::HandleOccupied`] if something else is stored there; it is never evicted.
    fn ensure_ak(&self, handle: AkHandle, algorithm: AkAlgorithm) -> Result<StoredAk, TpmError>;

    /// TPM2B_PUBLIC of the attestation key at `handle`.
    ///
    /// # Errors
    /// [`TpmError::NoAk`] if there is no key, [`TpmError::HandleOccupied`] if something else is
    /// stored there.
    fn ak_public_area(&self, handle: AkHandle) -> Result<Vec<u8>, TpmError>;

    /// Removes the attestation key at `handle` permanently; `false` if there is nothing.
    ///
    /// # Errors
    /// [`TpmError::HandleOccupied`] if something else is stored there.
    fn evict_ak(&self, handle: AkHandle) -> Result<bool, TpmError>;

    /// Quotes all 24 registers of the SHA-256 bank in one selection, with their values.
    ///
    /// # Errors
    /// [`TpmError::NoAk`] if there is no key, [`TpmError::Quote`] if registers keep changing.
    fn quote(&self, handle: AkHandle, nonce: &[u8; 32]) -> Result<TpmEvidence, TpmError>;

    /// The endorsement key of the default template, and its certificate if the TPM has one.
    ///
    /// # Errors
    /// [`TpmError::Command`] if the key cannot be created.
    fn read_ek(&self) -> Result<EkOffer, TpmError>;

    /// Answers a challenge (TPM2_ActivateCredential): returns the secret in it.
    ///
    /// # Errors
    /// [`TpmError::ChallengeRefused`] if it is not for this endorsement key and the attestation key
    /// at `handle`.
    fn activate_credential(
        &self,
        handle: AkHandle,
        credential: &Credential,
    ) -> Result<SecretBytes, TpmError>;

    /// Extends a register of the SHA-256 bank. Other banks keep their values: callers that rely on
    /// them must extend them as well.
    ///
    /// # Errors
    /// [`TpmError::Command`], for example if the locality may not extend this register.
    fn pcr_extend(&self, index: PcrIndex, event: &Sha256Digest) -> Result<(), TpmError>;

    /// Extends a register of every bank with that bank's digest of `data`, like TPM2_PCR_Event (TPM
    /// 2.0 Library Part 3, "TPM2_PCR_Event"): at most 1024 bytes.
    ///
    /// # Errors
    /// [`TpmError::Command`], for example if the locality may not extend this register.
    fn pcr_event(&self, index: PcrIndex, data: &[u8]) -> Result<(), TpmError>;

    /// All registers of the SHA-256 bank.
    ///
    /// # Errors
    /// [`TpmError::Bank`] if the TPM has no such bank.
    fn pcr_read(&self) -> Result<PcrValues, TpmError>;
}
