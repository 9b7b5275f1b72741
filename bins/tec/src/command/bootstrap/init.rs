//! `tec bootstrap init`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use tec_core::flow::UnpinnedInputs;
use tec_core::id::ImageName;
use tec_core::ignition::{MergeSource, render_merge};
use tec_core::migrate::{AnchorId, TrustAnchor as _};
use tec_support::exit::OK;

use super::super::approve_plain;
use crate::output::Output;
use crate::serve;
use crate::serve::args::ServeArgs;
use crate::settings::Settings;
use crate::state::{Endpoints, Said, open};

/// What was set up.
#[derive(Debug, Serialize)]
struct Founded {
    anchor: AnchorId,
    endpoints: Endpoints,
    images: Vec<ImageName>,
    /// The command that serves the state directory.
    serve: Vec<String>,
    /// The installer's config.
    ignition: Value,
}

/// Repeating the command changes nothing except for newly given flags.
pub(super) async fn init(
    state_dir: &Path,
    args: &ServeArgs,
    settings: Settings,
    (images, inputs): (&[(ImageName, PathBuf)], UnpinnedInputs),
    output: &Output,
) -> anyhow::Result<u8> {
    let addresses = args.kept_addresses()?;
    let store = open(state_dir)?;
    let ports = addresses.map(|address| address.port());
    let endpoints = serve::found((&store, state_dir), args, ports).await?;
    settings.keep(state_dir)?;
    let coverage = (Said::pins(state_dir)?, inputs);
    let mut approved = Vec::new();
    for (name, path) in images {
        let ports = (&*store as _, &*store as _);
        approved.push(approve_plain(ports, (name.clone(), path), coverage).await?.name);
    }
    let mut source = MergeSource::new(merge_service(&endpoints));
    if let Some(path) = &args.registration_token_file {
        source.token = Some(std::fs::read_to_string(path)?.trim().to_owned());
    }
    let founded = Founded {
        anchor: store.authority().await?.anchor(),
        endpoints,
        images: approved,
        serve: serve_command(state_dir),
        ignition: serde_json::from_slice(&render_merge(&source)?)?,
    };
    output.print(&founded, |founded| founded.ignition.to_string())?;
    tracing::info!(serve = founded.serve.join(" "), "set up; serve it next, then check it");
    Ok(OK)
}

/// `tec.toml` contains the flags.
fn serve_command(state_dir: &Path) -> Vec<String> {
    let directory = state_dir.display().to_string();
    ["tec", "--state-dir", &directory, "serve"].map(str::to_owned).into()
}

fn merge_service(endpoints: &Endpoints) -> tec_core::endpoint::Endpoint {
    tec_core::endpoint::Endpoint::new(endpoints.register.clone(), endpoints.ca.clone())
}
