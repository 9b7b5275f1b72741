//! Registers: read, extended, quoted.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrIndex};

use super::channel::{Channel, CommandError, failed};
use super::command::{Code, Command};
use crate::public::ALG_NULL;
use crate::quote::{ALG_SHA256, MAX_MESSAGE, MAX_SIGNATURE};
use crate::tpm::{TpmError, values};
use crate::wire::{WireError, WireReader};

/// Bytes of a selection over 24 registers (TPM 2.0 Library Part 2, "TPMS_PCR_SELECT").
const SELECT: usize = 3;
/// Maximum number of banks that an answer may select from, and most values in one (Part 2, "TPML_DIGEST").
const MAX_BANKS: u32 = 16;
const MAX_VALUES: u32 = 24;
/// SHA-512 digest.
const MAX_DIGEST: usize = 64;

/// All registers of the SHA-256 bank.
pub(super) fn read(channel: &mut Channel) -> Result<[Sha256Digest; PCR_COUNT], TpmError> {
    values::collect(|missing| read_some(channel, missing).map_err(failed("read PCRs")))
}

/// Those of the registers that fit into one answer.
fn read_some(
    channel: &mut Channel,
    wanted: &[PcrIndex],
) -> Result<Vec<(usize, Sha256Digest)>, CommandError> {
    let answer = channel.run(&selecting(Command::new(Code::PcrRead), wanted))?;
    let mut reader = answer.parameters();
    reader.u32()?; // counter of updates
    let selected = selected(&mut reader)?;
    let count = bounded(&mut reader, MAX_VALUES)?;
    let mut found = Vec::new();
    for index in selected.into_iter().take(count) {
        let value = <[u8; 32]>::try_from(reader.sized(MAX_DIGEST)?);
        found.extend(value.ok().map(|value| (index, Sha256Digest::new(value))));
    }
    Ok(found)
}

/// Registers of the SHA-256 bank that an answer holds, in order.
fn selected(reader: &mut WireReader<'_>) -> Result<Vec<usize>, WireError> {
    let mut registers = Vec::new();
    for _ in 0..bounded(reader, MAX_BANKS)? {
        let algorithm = reader.u16()?;
        let size = reader.u8()?;
        let bits = reader.bytes(size)?;
        if algorithm == ALG_SHA256 {
            let all = bits.iter().enumerate();
            registers.extend(all.flat_map(|(byte, bits)| {
                let set = (0..8).filter(move |bit| bits >> bit & 1 == 1);
                set.map(move |bit| byte * 8 + bit)
            }));
        }
    }
    Ok(registers)
}

fn bounded(reader: &mut WireReader<'_>, most: u32) -> Result<usize, WireError> {
    let offset = reader.offset();
    let count = reader.u32()?;
    match usize::try_from(count) {
        Ok(fitting) if count <= most => Ok(fitting),
        _ => Err(WireError::Value { offset, value: count.into() }),
    }
}

/// Adds a TPML_PCR_SELECTION over the SHA-256 bank.
fn selecting(command: Command, registers: &[PcrIndex]) -> Command {
    let mut bits = [0_u8; SELECT];
    for register in registers {
        if let Some(byte) = bits.get_mut(register.as_usize() / 8) {
            *byte |= 1 << (register.as_usize() % 8);
        }
    }
    let command = command.u32(1).u16(ALG_SHA256);
    command.u8(u8::try_from(SELECT).unwrap_or_default()).raw(&bits)
}

/// TPMS_ATTEST and TPMT_SIGNATURE over all registers of the SHA-256 bank.
pub(super) fn quote(
    channel: &mut Channel,
    key: u32,
    nonce: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), TpmError> {
    try_quote(channel, key, nonce).map_err(failed("quote the PCRs"))
}

fn try_quote(
    channel: &mut Channel,
    key: u32,
    nonce: &[u8],
) -> Result<(Vec<u8>, Vec<u8>), CommandError> {
    let command = Command::new(Code::Quote).handle_by_password(key).sized(nonce).u16(ALG_NULL); // the key's own scheme
    let all: Vec<_> = PcrIndex::all().collect();
    let answer = channel.run(&selecting(command, &all))?;
    let mut reader = answer.parameters();
    let message = reader.sized(MAX_MESSAGE)?.to_vec();
    let signature = reader.rest(MAX_SIGNATURE)?.to_vec();
    Ok((message, signature))
}

/// Extends a register of the SHA-256 bank.
pub(super) fn extend(
    channel: &mut Channel,
    index: PcrIndex,
    event: &Sha256Digest,
) -> Result<(), TpmError> {
    let command = Command::new(Code::PcrExtend)
        .handle_by_password(handle(index))
        .u32(1)
        .u16(ALG_SHA256)
        .raw(event.as_bytes());
    let answer = channel.run(&command).map(drop);
    answer.map_err(failed("extend a PCR"))
}

/// Extends a register of every bank; the TPM computes the digests.
pub(super) fn event(channel: &mut Channel, index: PcrIndex, data: &[u8]) -> Result<(), TpmError> {
    let command = Command::new(Code::PcrEvent).handle_by_password(handle(index)).sized(data);
    let answer = channel.run(&command).map(drop);
    answer.map_err(failed("measure an event"))
}

/// Handles of registers are their numbers (Part 2, "TPM_HC").
fn handle(index: PcrIndex) -> u32 {
    u32::from(u8::from(index))
}
