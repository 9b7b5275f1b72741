//! Checks of what a TPM stores and takes, however it is reached.

use tec_core::ak::Credential;

use super::TpmError;
use crate::ak::{AkAlgorithm, AkHandle, AkOrigin, AttestationKey, StoredAk};
use crate::wire::only_sized;

/// TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET: an RSA-4096 ciphertext is the largest.
const MAX_CREDENTIAL: usize = 512;

/// The object at `handle` as an attestation key.
pub(crate) fn attestation_key(
    handle: AkHandle,
    tpm2b_public: &[u8],
) -> Result<AttestationKey, TpmError> {
    AttestationKey::from_tpm2b(tpm2b_public)
        .map_err(|source| TpmError::HandleOccupied { handle, source: Some(source) })
}

/// The object at `handle` as an attestation key of this algorithm.
pub(crate) fn stored_ak(
    handle: AkHandle,
    algorithm: AkAlgorithm,
    tpm2b_public: Vec<u8>,
    origin: AkOrigin,
) -> Result<StoredAk, TpmError> {
    let key = attestation_key(handle, &tpm2b_public)?;
    if !algorithm.fits(key.public().kind()) {
        return Err(TpmError::HandleOccupied { handle, source: None });
    }
    Ok(StoredAk { key, tpm2b_public, origin })
}

/// The identity object and the secret of a challenge, without their sizes.
pub(crate) fn challenge(credential: &Credential) -> Result<(&[u8], &[u8]), TpmError> {
    let content = |part| only_sized(part, MAX_CREDENTIAL).map_err(TpmError::Challenge);
    Ok((content(&credential.id_object)?, content(&credential.encrypted_secret)?))
}
