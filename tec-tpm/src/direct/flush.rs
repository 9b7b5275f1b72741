//! Removing what was loaded.

use super::channel::{Channel, failed};
use super::command::{Code, Command};
use crate::tpm::TpmError;

/// Removes a transient object or a session.
pub(super) fn flush(channel: &mut Channel, handle: u32) -> Result<(), TpmError> {
    let command = Command::new(Code::FlushContext).u32(handle);
    channel.run(&command).map(drop).map_err(failed("remove a temporary object"))
}

/// Removes what an earlier failure left behind; that failure is the one to report.
pub(super) fn flush_quietly(channel: &mut Channel, handle: u32) {
    let _ = flush(channel, handle);
}
