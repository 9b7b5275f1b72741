//! `tec bootstrap init`.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde::Serialize;
use serde_json::Value;
use tec_core::id::ImageName;
use tec_core::ignition::{MergeSource, render_merge};
use tec_core::migrate::{AnchorId, TrustAnchor as _};
use tec_support::exit::OK;

use super::super::approve_plain;
use crate::output::Output;
use crate::serve;
use crate::serve::args::ServeArgs;
use crate::state::{Endpoints, open};

/// What was set up.
#[derive(Debug, Serialize)]
struct Founded {
    anchor: AnchorId,
    endpoints: Endpoints,
    images: Vec<ImageName>,
    /// The command that serves it.
    serve: Vec<String>,
    /// The config for the installer.
    ignition: Value,
}

/// Doing it again changes nothing but what is given anew.
pub(super) async fn init(
    state_dir: &Path,
    args: &ServeArgs,
    images: &[(ImageName, PathBuf)],
    output: Output,
) -> anyhow::Result<u8> {
    let addresses = [args.register_addr, args.ak_addr, args.kbs_addr];
    let fixed = addresses.iter().all(|address| address.port() != 0);
    ensure!(fixed, "nodes keep these addresses for good: name three ports");
    let store = open(state_dir)?;
    let ports = addresses.map(|address| address.port());
    let endpoints = serve::found(state_dir, args, ports)?;
    let mut approved = Vec::new();
    for (name, path) in images {
        let ports = (&*store as _, &*store as _);
        approved.push(approve_plain(ports, name.clone(), path).await?.name);
    }
    let mut source = MergeSource::new(merge_service(&endpoints));
    if let Some(path) = &args.registration_token_file {
        source.token = Some(std::fs::read_to_string(path)?.trim().to_owned());
    }
    let founded = Founded {
        anchor: store.authority().await?.anchor(),
        endpoints,
        images: approved,
        serve: serve_command(
            state_dir,
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()),
        ),
        ignition: serde_json::from_slice(&render_merge(&source)?)?,
    };
    output.print(&founded, |founded| founded.ignition.to_string())?;
    tracing::info!(serve = founded.serve.join(" "), "set up; serve it next, then check it");
    Ok(OK)
}

fn merge_service(endpoints: &Endpoints) -> tec_core::endpoint::Endpoint {
    tec_core::endpoint::Endpoint::new(endpoints.register.clone(), endpoints.ca.clone())
}

/// The same words for `tec serve`, without those about images.
fn serve_command(state_dir: &Path, words: impl Iterator<Item = String>) -> Vec<String> {
    let mut command: Vec<String> = ["tec", "--state-dir"].map(str::to_owned).into();
    command.push(state_dir.display().to_string());
    command.push("serve".to_owned());
    let mut words = words.skip_while(|word| word != "init").skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            // With their values.
            "--image" | "--state-dir" | "--output" | "--log" | "--log-form" => {
                words.next();
            }
            word if ["--image=", "--state-dir=", "--output=", "--log=", "--log-form="]
                .iter()
                .any(|flag| word.starts_with(flag)) => {}
            _ => command.push(word),
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_started_as_the_anchor_was_set_up() {
        let words = "tec bootstrap init --image a=/x --public-host h --output=json --pcrs 4,7";
        let words = words.split(' ').map(str::to_owned);
        let command = serve_command(Path::new("/s"), words);
        let expected = "tec --state-dir /s serve --public-host h --pcrs 4,7";
        assert_eq!(command.join(" "), expected);
    }
}
