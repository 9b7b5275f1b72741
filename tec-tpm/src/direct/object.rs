//! Keys: created, loaded, stored, removed, used.

use tec_core::secret::SecretBytes;

use super::capability::handle_exists;
use super::channel::{Channel, CommandError, failed};
use super::command::{Code, Command};
use super::flush::{flush, flush_quietly};
use super::session::endorsed;
use super::template;
use super::template::{RH_ENDORSEMENT, RH_OWNER};
use crate::ak::{AkAlgorithm, AkHandle};
use crate::ek::EkAlgorithm;
use crate::public::MAX_AREA;
use crate::tpm::TpmError;
use crate::wire::push_sized;

/// TPM2B_SENSITIVE_CREATE with neither password nor data (TPM 2.0 Library Part 2,
/// "TPM2B_SENSITIVE_CREATE").
const NO_SENSITIVE: [u8; 6] = [0, 4, 0, 0, 0, 0];
/// TPML_PCR_SELECTION without a selection: the creation data is not used.
const NO_PCRS: [u8; 4] = [0; 4];
/// Largest TPM2B_PRIVATE: an RSA-4096 key takes less than 700 bytes.
const MAX_PRIVATE: usize = 2048;
/// Largest secret of a challenge: a digest.
const MAX_SECRET: usize = 64;

/// TPM2B_PUBLIC of the object at a persistent handle, if there is one.
pub(super) fn persistent_area(
    channel: &mut Channel,
    handle: u32,
) -> Result<Option<Vec<u8>>, TpmError> {
    if !handle_exists(channel, handle)? {
        return Ok(None);
    }
    let area = read_public(channel, handle);
    area.map(Some).map_err(failed("read the public area of a key"))
}

fn read_public(channel: &mut Channel, handle: u32) -> Result<Vec<u8>, CommandError> {
    let answer = channel.run(&Command::new(Code::ReadPublic).handle(handle))?;
    Ok(tpm2b(answer.parameters().sized(MAX_AREA)?))
}

fn tpm2b(content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_sized(&mut bytes, content);
    bytes
}

/// Creates the endorsement key of the template, a transient object, and reads its TPM2B_PUBLIC.
pub(super) fn create_ek(
    channel: &mut Channel,
    algorithm: EkAlgorithm,
) -> Result<(u32, Vec<u8>), TpmError> {
    let operation = failed("create the endorsement key");
    let command = Command::new(Code::CreatePrimary)
        .handle_by_password(RH_ENDORSEMENT)
        .raw(&NO_SENSITIVE)
        .sized(&template::endorsement_key(algorithm))
        .sized(&[]) // outsideInfo
        .raw(&NO_PCRS);
    let answer = channel.run(&command).map_err(&operation)?;
    let ek = answer.handle();
    let area = answer.parameters().sized(MAX_AREA).map(tpm2b);
    if area.is_err() {
        flush_quietly(channel, ek);
    }
    Ok((ek, area.map_err(|error| operation(error.into()))?))
}

/// Creates the key as a child of the endorsement key, like `tpm2_createak`, and stores it.
pub(super) fn create_ak(
    channel: &mut Channel,
    ek: EkAlgorithm,
    handle: AkHandle,
    algorithm: AkAlgorithm,
) -> Result<(), TpmError> {
    let (ek, _) = create_ek(channel, ek)?;
    flushing(channel, ek, |channel| {
        let key = create_loaded(channel, ek, algorithm);
        let key = key.map_err(failed("create the attestation key"))?;
        flushing(channel, key, |channel| evict(channel, key, handle))
    })
}

/// A transient attestation key: nothing of it outlives a crash.
fn create_loaded(
    channel: &mut Channel,
    ek: u32,
    algorithm: AkAlgorithm,
) -> Result<u32, CommandError> {
    let created = endorsed(channel, |channel, session| {
        let command = Command::new(Code::Create)
            .handle_by_session(ek, session)
            .raw(&NO_SENSITIVE)
            .sized(&template::attestation_key(algorithm))
            .sized(&[]) // outsideInfo
            .raw(&NO_PCRS);
        channel.run(&command)
    })?;
    let mut reader = created.parameters();
    let (private, public) = (reader.sized(MAX_PRIVATE)?, reader.sized(MAX_AREA)?);
    let loaded = endorsed(channel, |channel, session| {
        let command =
            Command::new(Code::Load).handle_by_session(ek, session).sized(private).sized(public);
        channel.run(&command)
    })?;
    Ok(loaded.handle())
}

/// TPM2_EvictControl: stores a transient object at the handle, or removes the existing one.
pub(super) fn evict(channel: &mut Channel, object: u32, handle: AkHandle) -> Result<(), TpmError> {
    let command = Command::new(Code::EvictControl)
        .handle_by_password(RH_OWNER)
        .handle(object)
        .u32(handle.as_u32());
    channel.run(&command).map(drop).map_err(failed("keep or remove the attestation key"))
}

/// Runs `work`, then removes a transient object, whatever the result.
pub(super) fn flushing<T>(
    channel: &mut Channel,
    object: u32,
    work: impl FnOnce(&mut Channel) -> Result<T, TpmError>,
) -> Result<T, TpmError> {
    let result = work(channel);
    let flushed = flush(channel, object);
    let value = result?;
    flushed?;
    Ok(value)
}

/// TPM2_ActivateCredential.
pub(super) fn activate(
    channel: &mut Channel,
    ak: u32,
    ek: u32,
    id_object: &[u8],
    secret: &[u8],
) -> Result<SecretBytes, TpmError> {
    let answer = endorsed(channel, |channel, session| {
        let command = Command::new(Code::ActivateCredential)
            .handle_by_password(ak)
            .handle_by_session(ek, session)
            .sized(id_object)
            .sized(secret);
        let answer = channel.run(&command)?;
        let mut reader = answer.parameters();
        Ok(SecretBytes::new(reader.sized(MAX_SECRET)?.to_vec()))
    });
    answer.map_err(|error| match error {
        CommandError::Refused(code) if !code.is_lockout() => {
            TpmError::ChallengeRefused(Box::new(error))
        }
        error => failed("answer a challenge")(error),
    })
}
