//! `tec ignition`.

use std::path::Path;

use anyhow::Context as _;
use tec_core::endpoint::Endpoint;
use tec_core::ignition::{MergeSource, PinGenerator as _, render_merge};
use tec_support::exit::OK;

use super::machine::id_of;
use crate::ignition::IgnitionCommand;
use crate::output::Output;
use crate::state::{Endpoints, open_existing};

pub(crate) async fn ignition(
    state_dir: &Path,
    command: IgnitionCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let bytes = match command {
        IgnitionCommand::Merge { url, ca, token_file } => {
            let service = if let Some(url) = url {
                let ca = ca.context("--url needs --ca, the CA bundle of that server")?;
                Endpoint::new(url, tec_support::tls::ca_pem(&ca)?)
            } else {
                let own = Endpoints::read(state_dir)?;
                Endpoint::new(own.register, own.ca)
            };
            let mut source = MergeSource::new(service);
            if let Some(path) = token_file {
                let token = std::fs::read_to_string(&path)
                    .with_context(|| format!("cannot read the token in {}", path.display()))?;
                source.token = Some(token.trim().to_owned());
            }
            render_merge(&source)?
        }
        IgnitionCommand::Machine { machine } => {
            let pins = Endpoints::read(state_dir)?.pins()?;
            let id = match machine.machine.parse() {
                Ok(id) => id,
                Err(_) => id_of(&*open_existing(state_dir)?, &machine).await?,
            };
            pins.render_ignition(&id)?
        }
    };
    // An Ignition config is JSON in either output format.
    let config: serde_json::Value = serde_json::from_slice(&bytes)?;
    output.print(&config, ToString::to_string)?;
    Ok(OK)
}
