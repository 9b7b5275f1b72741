//! Policy sessions, which the endorsement key requires.

use super::channel::{Channel, CommandError};
use super::command::{Code, Command};
use super::flush::flush_quietly;
use super::template::{RH_ENDORSEMENT, RH_NULL};
use crate::public::ALG_NULL;
use crate::quote::ALG_SHA256;

/// TPM_SE_POLICY (TPM 2.0 Library Part 2, "TPM_SE").
const POLICY: u8 = 1;
/// nonceCaller has at least 16 bytes (Part 3, "TPM2_StartAuthSession"). A session without a key
/// authenticates nothing with its nonces, so they need not be random.
const NONCE: [u8; 16] = [0; 16];

/// Runs a command in a session that satisfies the endorsement key's policy: the password of its
/// hierarchy. The session ends with the command, whatever the result.
pub(super) fn endorsed<T>(
    channel: &mut Channel,
    work: impl FnOnce(&mut Channel, u32) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    let session = start(channel)?;
    let result = authorize(channel, session).and_then(|()| work(channel, session));
    if result.is_err() {
        flush_quietly(channel, session);
    }
    result
}

fn start(channel: &mut Channel) -> Result<u32, CommandError> {
    let command = Command::new(Code::StartAuthSession)
        .handle(RH_NULL) // no salt
        .handle(RH_NULL) // not bound
        .sized(&NONCE)
        .sized(&[])
        .u8(POLICY)
        .u16(ALG_NULL)
        .u16(ALG_SHA256);
    Ok(channel.run(&command)?.handle())
}

/// TPM2_PolicySecret with the endorsement hierarchy (TCG EK Credential Profile, "Policy A").
fn authorize(channel: &mut Channel, session: u32) -> Result<(), CommandError> {
    let command = Command::new(Code::PolicySecret)
        .handle_by_password(RH_ENDORSEMENT)
        .handle(session)
        .sized(&[]) // nonceTPM
        .sized(&[]) // cpHashA
        .sized(&[]) // policyRef
        .u32(0); // no expiration
    channel.run(&command).map(drop)
}
