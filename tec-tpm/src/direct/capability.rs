//! What a TPM reports about itself.

use super::channel::{Channel, CommandError, failed};
use super::command::{Code, Command};
use crate::tpm::TpmError;

/// TPM_CAP_HANDLES and TPM_CAP_TPM_PROPERTIES (TPM 2.0 Library Part 2, "TPM_CAP").
const CAP_HANDLES: u32 = 1;
const CAP_PROPERTIES: u32 = 6;
/// TPM_PT_NV_BUFFER_MAX (Part 2, "TPM_PT"): most bytes that one NV command carries.
const NV_BUFFER_MAX: u32 = 0x12c;
/// What every PC TPM supports (TCG PC Client Platform TPM Profile, "Capabilities": the buffer is at
/// least this large).
const NV_BUFFER_LEAST: u16 = 512;

/// Whether an object or index lies at a handle; asking for it directly would make an absent one
/// look like any other failure.
pub(super) fn handle_exists(channel: &mut Channel, handle: u32) -> Result<bool, TpmError> {
    let first = first_handle(channel, handle).map_err(failed("list the TPM's handles"))?;
    Ok(first == Some(handle))
}

/// The first handle that is not below `from`.
fn first_handle(channel: &mut Channel, from: u32) -> Result<Option<u32>, CommandError> {
    let answer = channel.run(&request(CAP_HANDLES, from))?;
    let mut reader = answer.parameters();
    reader.yes_no()?; // moreData
    reader.u32()?; // the capability
    match reader.u32()? {
        0 => Ok(None),
        _ => Ok(Some(reader.u32()?)),
    }
}

/// Maximum number of bytes of one TPM2_NV_Read.
pub(super) fn nv_buffer(channel: &mut Channel) -> Result<u16, CommandError> {
    let answer = channel.run(&request(CAP_PROPERTIES, NV_BUFFER_MAX))?;
    let mut reader = answer.parameters();
    reader.yes_no()?; // moreData
    reader.u32()?; // the capability
    let found = match reader.u32()? {
        0 => None,
        _ => Some((reader.u32()?, reader.u32()?)),
    };
    Ok(match found {
        Some((NV_BUFFER_MAX, size)) if size > 0 => u16::try_from(size).unwrap_or(NV_BUFFER_LEAST),
        _ => NV_BUFFER_LEAST,
    })
}

/// One value of a capability.
fn request(capability: u32, property: u32) -> Command {
    Command::new(Code::GetCapability).u32(capability).u32(property).u32(1)
}
