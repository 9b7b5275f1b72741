//! `tec platform`.

use std::path::Path;

use tec_core::code::Code;
use tec_core::port::PortError;
use tec_support::exit::OK;

use super::machine::id_of;
use crate::output::Output;
use crate::platform::{Anchor, PlatformCommand};
use crate::state::open_existing;

pub(crate) async fn platform(
    state_dir: &Path,
    command: PlatformCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    let code = |error: &PortError| error.code().unwrap_or(Code::StoreUnavailable);
    let anchor = Anchor { platforms: &*store, aks: &*store, code };
    match command {
        PlatformCommand::List => anchor.list(output).await?,
        PlatformCommand::Diff { machine } => {
            anchor.diff(id_of(&store, &machine).await?, output).await?;
        }
        PlatformCommand::Approve { machine, consent } => {
            anchor.approve(id_of(&store, &machine).await?, consent, output).await?;
        }
    }
    Ok(OK)
}
