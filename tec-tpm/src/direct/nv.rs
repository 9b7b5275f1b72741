//! Non-volatile storage, which holds certificates of endorsement keys and reports of paravisors.

use super::capability::{handle_exists, nv_buffer};
use super::channel::{Channel, CommandError, failed};
use super::command::{Code, Command};
use super::template::RH_OWNER;
use crate::tpm::TpmError;

/// TPMA_NV_AUTHREAD (TPM 2.0 Library Part 2, "TPMA_NV"): the index's own password reads it.
const AUTH_READ: u32 = 1 << 18;
/// Largest index that is read: certificates have less than 2 KiB, reports less than 4.
const MAX_INDEX: u16 = 8192;
/// Largest TPM2B_NV_PUBLIC: index, algorithm, attributes, SHA-512 policy, size.
const MAX_NV_PUBLIC: usize = 78;
/// SHA-512 digest.
const MAX_POLICY: usize = 64;

/// The content of an index; `None` when there is none.
pub(super) fn read(
    channel: &mut Channel,
    index: u32,
    operation: &'static str,
) -> Result<Option<Vec<u8>>, TpmError> {
    if !handle_exists(channel, index)? {
        return Ok(None);
    }
    let content = read_existing(channel, index);
    content.map(Some).map_err(failed(operation))
}

fn read_existing(channel: &mut Channel, index: u32) -> Result<Vec<u8>, CommandError> {
    let (attributes, size) = describe(channel, index)?;
    let authorization = if attributes & AUTH_READ == 0 { RH_OWNER } else { index };
    let most = nv_buffer(channel)?;
    let mut content = Vec::new();
    let mut left = size.min(MAX_INDEX);
    while left > 0 {
        let part = left.min(most);
        let command = Command::new(Code::NvRead)
            .handle_by_password(authorization)
            .handle(index)
            .u16(part)
            .u16(size.min(MAX_INDEX) - left);
        let answer = channel.run(&command)?;
        let mut reader = answer.parameters();
        let bytes = reader.sized(part.into())?;
        if bytes.is_empty() {
            break;
        }
        content.extend(bytes);
        left = left.saturating_sub(u16::try_from(bytes.len()).unwrap_or(part));
    }
    Ok(content)
}

/// Attributes and size of an index.
fn describe(channel: &mut Channel, index: u32) -> Result<(u32, u16), CommandError> {
    let answer = channel.run(&Command::new(Code::NvReadPublic).handle(index))?;
    let mut reader = answer.parameters();
    let area = reader.sized(MAX_NV_PUBLIC)?;
    let mut area = crate::wire::WireReader::new(area);
    area.u32()?; // the index
    area.u16()?; // algorithm of its name
    let attributes = area.u32()?;
    area.sized(MAX_POLICY)?;
    Ok((attributes, area.u16()?))
}
