//! `tec ignition`.

use std::path::Path;

use anyhow::Context as _;
use tec_core::endpoint::Endpoint;
use tec_core::ignition::{MergeSource, PinGenerator as _, render_merge};
use tec_support::exit::OK;

use crate::anchor::Anchor;
use crate::args::Access;
use crate::ignition::IgnitionCommand;
use crate::kube;
use crate::kube::access::Cluster;
use crate::output::Output;
use crate::state::Endpoints;

pub(crate) async fn ignition(
    state_dir: &Path,
    access: Option<&Access>,
    command: IgnitionCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let bytes = match (command, access) {
        (IgnitionCommand::Merge { url, ca, token_file }, None) => {
            let service = if let Some(url) = url {
                let ca = ca.context("--url needs --ca, the CA bundle of that server")?;
                Endpoint::new(url, tec_support::tls::ca_pem(&ca)?)
            } else {
                let own = Endpoints::read(state_dir)?;
                Endpoint::new(own.register, own.ca)
            };
            let mut source = MergeSource::new(service);
            source.token = token_file.as_deref().map(token).transpose()?;
            render_merge(&source)?
        }
        (IgnitionCommand::Merge { url, ca, token_file }, Some(access)) => {
            let url = url
                .context("--url is needed: the URL at which nodes reach the registration server")?;
            let cluster = Cluster::connect(access).await?;
            let ca = ca.as_deref().map(tec_support::tls::ca_pem).transpose()?;
            let token = token_file.as_deref().map(token).transpose()?;
            render_merge(&kube::ignition::merge(&cluster, url, ca, token).await?)?
        }
        (IgnitionCommand::Machine { machine }, _) => {
            if let (Ok(id), None) = (machine.machine.parse(), access) {
                // A state directory that has no store yet has addresses.
                Endpoints::read(state_dir)?.pins()?.render_ignition(&id)?
            } else {
                let anchor = Anchor::open(state_dir, access).await?;
                let id = anchor.id_of(&machine).await?;
                anchor.pins().await?.render_ignition(&id)?
            }
        }
    };
    // An Ignition config is JSON in either output format.
    let config: serde_json::Value = serde_json::from_slice(&bytes)?;
    output.print(&config, ToString::to_string)?;
    Ok(OK)
}

fn token(path: &Path) -> anyhow::Result<String> {
    let token = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the token in {}", path.display()))?;
    Ok(token.trim().to_owned())
}
