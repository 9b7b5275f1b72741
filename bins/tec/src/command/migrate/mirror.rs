//! `tec migrate mirror`: keeps the target in sync.

use std::time::Duration;

use tec_core::code::Code;
use tec_core::migrate::{Goal, Role};
use tec_core::port::{PortError, PortErrorKind};
use tec_support::exit::{CodedError, OK};
use tec_support::program;

use super::{Ended, Pair, carry_out, status};
use crate::output::Output;

/// Copies until the authority moves, an obstacle appears, or a signal arrives. Copies without changes are not
/// reported.
///
/// # Cancel safety
/// Can be dropped at any await, like a copy.
pub(super) async fn mirror(pair: &Pair, every: Duration, output: &Output) -> anyhow::Result<u8> {
    let stopped = program::stopped()?;
    tokio::select! {
        () = stopped => Ok(OK),
        ended = keep(pair, every, output) => ended,
    }
}

async fn keep(pair: &Pair, every: Duration, output: &Output) -> anyhow::Result<u8> {
    // A mirror that cannot even start is reported immediately.
    carry_out(pair, Goal::Copy).await?.tell(pair, Goal::Copy, output)?;
    loop {
        tokio::time::sleep(every).await;
        match step(pair, output).await {
            Ok(true) => {}
            Ok(false) => return status(pair, output).await,
            Err(error) if is_away(&error) => {
                tracing::warn!(error = format!("{error:#}"), "not copied; tried again");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Copies once more; returns whether to continue.
async fn step(pair: &Pair, output: &Output) -> anyhow::Result<bool> {
    let records = pair.records().await?;
    if records.source.role() != Role::Active || records.target.role() != Role::Standby {
        return Ok(false);
    }
    let ended: Ended = carry_out(pair, Goal::Copy).await?;
    let copy = &ended.done.copy;
    if copy.created + copy.updated > 0 || !ended.is_reached() {
        ended.tell(pair, Goal::Copy, output)?;
    }
    Ok(true)
}

/// Whether an anchor is temporarily unreachable, or the authority is being moved; the next check will show
/// which.
fn is_away(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<CodedError>().map(|coded| coded.code) {
        Some(Code::StoreUnavailable | Code::AuthorityMoved) => true,
        // The code for anything a port cannot classify, such as a missing permission.
        Some(Code::ClusterUnreachable) => {
            let port = error.chain().find_map(|cause| cause.downcast_ref());
            port.is_none_or(|port: &PortError| {
                port.is_retryable() || port.kind() == PortErrorKind::Conflict
            })
        }
        _ => false,
    }
}
