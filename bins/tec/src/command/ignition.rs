//! `tec ignition`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::id::MachineId;
use tec_core::ignition::{MergeSource, PinGenerator as _, render_merge};
use tec_support::exit::OK;

use crate::output::Output;
use crate::state::Endpoints;

#[derive(Debug, Subcommand)]
pub(crate) enum IgnitionCommand {
    /// The merge directive for the installer's config.
    Merge {
        /// Registration server, if not the one that runs on this state directory.
        #[arg(long, requires = "ca")]
        url: Option<BaseUrl>,
        /// CA bundle of that server.
        #[arg(long, requires = "url")]
        ca: Option<PathBuf>,
        /// File with the registration token.
        #[arg(long)]
        token_file: Option<PathBuf>,
    },
    /// The config of a machine, as the registration server would hand it out.
    Machine {
        /// Which.
        id: MachineId,
    },
}

pub(crate) async fn ignition(
    state_dir: &Path,
    command: IgnitionCommand,
    output: Output,
) -> anyhow::Result<u8> {
    let bytes = match command {
        IgnitionCommand::Merge { url, ca, token_file } => {
            let service = if let (Some(url), Some(ca)) = (url, ca) {
                Endpoint::new(url, tec_support::tls::ca_pem(&ca)?)
            } else {
                let own = Endpoints::read(state_dir)?;
                Endpoint::new(own.register, own.ca)
            };
            let mut source = MergeSource::new(service);
            if let Some(path) = token_file {
                let token = std::fs::read_to_string(&path)
                    .with_context(|| format!("read the token in {}", path.display()))?;
                source.token = Some(token.trim().to_owned());
            }
            render_merge(&source)?
        }
        IgnitionCommand::Machine { id } => {
            Endpoints::read(state_dir)?.pins()?.render_ignition(&id)?
        }
    };
    // An Ignition config is JSON in either form of output.
    let config: serde_json::Value = serde_json::from_slice(&bytes)?;
    output.print(&config, ToString::to_string)?;
    Ok(OK)
}
