//! A new attestation key that the present one certifies, until it has a handle.

use std::fmt;

use tec_core::ak::{SuccessionOffer, TpmBoot};

use super::Tpm;
use super::channel::{Channel, CommandError, failed};
use super::command::{Code, Command};
use super::object::{create, create_ek, evict, flushing, load};
use super::{object, read_ak};
use crate::ak::{AkAlgorithm, AkHandle, AttestationKey, successor_policy};
use crate::certify::UntrustedCertification;
use crate::public::{ALG_NULL, PublicArea};
use crate::quote::{MAX_MESSAGE, MAX_SIGNATURE};
use crate::tpm::TpmError;

/// An attestation key that is stored nowhere yet. Its private part is encrypted by the TPM that created it.
#[derive(Clone)]
pub struct NewAk {
    private: Vec<u8>,
    key: AttestationKey,
    offer: SuccessionOffer,
}

impl NewAk {
    /// The key.
    pub fn key(&self) -> &AttestationKey {
        &self.key
    }

    /// Its public area, certified by the present key.
    pub fn offer(&self) -> &SuccessionOffer {
        &self.offer
    }
}

impl fmt::Debug for NewAk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewAk").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Tpm {
    /// The handle of the attestation key in use: that [after](AkHandle::next) `handle` if it holds a key of
    /// [`create_successor`](Self::create_successor), else `handle`. Whatever else is stored there is ignored.
    ///
    /// # Errors
    /// [`TpmError::Command`].
    pub fn ak_in_use(&self, handle: AkHandle) -> Result<AkHandle, TpmError> {
        let Some(next) = handle.next() else {
            return Ok(handle);
        };
        let area = object::persistent_area(&mut self.channel(), next.as_u32())?;
        let area = area.and_then(|area| PublicArea::from_tpm2b(&area).ok());
        let is_ours = area.is_some_and(|area| {
            area.policy() == successor_policy().as_bytes()
                && AttestationKey::from_area(&area).is_ok()
        });
        Ok(if is_ours { next } else { handle })
    }

    /// Creates an attestation key like [`ensure_ak`](crate::tpm::AnyTpm::ensure_ak), and certifies it with the key at `present`. Nothing is
    /// stored in the TPM.
    ///
    /// # Errors
    /// [`TpmError::NoAk`], [`TpmError::Counters`], [`TpmError::Command`].
    pub fn create_successor(
        &self,
        present: AkHandle,
        algorithm: AkAlgorithm,
        qualifying: &[u8; 32],
    ) -> Result<NewAk, TpmError> {
        let channel = &mut self.channel();
        let (signer, _) = read_ak(channel, present)?;
        let (ek, _) = create_ek(channel, self.ek)?;
        let (private, tpm2b_public, (message, signature), boot) =
            flushing(channel, ek, |channel| {
                let operation = failed("create the attestation key");
                let policy = successor_policy();
                let (private, public) =
                    create(channel, ek, algorithm, policy.as_bytes()).map_err(&operation)?;
                let key = load(channel, ek, &private, &public).map_err(&operation)?;
                let certified = flushing(channel, key, |channel| {
                    let certified = certify(channel, key, present, qualifying);
                    certified.map_err(failed("certify the new attestation key"))
                })?;
                let boot = read_boot(channel).map_err(failed("read the TPM's clock"))?;
                Ok((private, object::tpm2b(&public), certified, boot))
            })?;
        let certified = UntrustedCertification::new(&message, &signature)
            .verify(signer.public(), qualifying, &tpm2b_public)
            .map_err(TpmError::Certification)?;
        // Otherwise a server could not tell whether the new key's counters follow those of the present one.
        if certified.clock().boot() != boot {
            return Err(TpmError::Counters { handle: present });
        }
        let key = certified.key().clone();
        Ok(NewAk { private, key, offer: SuccessionOffer { tpm2b_public, message, signature } })
    }

    /// Stores a new key at a handle, permanently.
    ///
    /// # Errors
    /// [`TpmError::Command`], for example if something is stored there.
    pub fn store_ak(&self, new: &NewAk, handle: AkHandle) -> Result<(), TpmError> {
        let channel = &mut self.channel();
        let public = new.offer.tpm2b_public.get(2..).unwrap_or_default();
        let (ek, _) = create_ek(channel, self.ek)?;
        flushing(channel, ek, |channel| {
            let key = load(channel, ek, &new.private, public);
            let key = key.map_err(failed("load the attestation key"))?;
            flushing(channel, key, |channel| evict(channel, key, handle))
        })
    }
}

/// TPM2_Certify with the signer's own scheme: TPMS_ATTEST and TPMT_SIGNATURE.
fn certify(
    channel: &mut Channel,
    key: u32,
    signer: AkHandle,
    qualifying: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), CommandError> {
    let command = Command::new(Code::Certify)
        .handle_by_password(key)
        .handle_by_password(signer.as_u32())
        .sized(qualifying)
        .u16(ALG_NULL);
    let answer = channel.run(&command)?;
    let mut reader = answer.parameters();
    let message = reader.sized(MAX_MESSAGE)?.to_vec();
    Ok((message, reader.rest(MAX_SIGNATURE)?.to_vec()))
}

/// The counters as statements of keys below the endorsement hierarchy show them: TPM2_ReadClock returns a
/// TPMS_TIME_INFO (Part 2, "TPMS_TIME_INFO").
fn read_boot(channel: &mut Channel) -> Result<TpmBoot, CommandError> {
    let answer = channel.run(&Command::new(Code::ReadClock))?;
    let mut reader = answer.parameters();
    let (_time, _clock) = (reader.u64()?, reader.u64()?);
    Ok(TpmBoot { resets: reader.u32()?, restarts: reader.u32()? })
}
