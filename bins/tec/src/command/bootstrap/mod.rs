//! `tec bootstrap`: a trust anchor for a cluster that does not exist yet.
//!
//! ```text
//!   init   store, CA, endpoints, approvals ─► the installer's config, and how to serve
//!   check  the installer's config ─► as a node: register ─► its pin ─► each server in it
//! ```

mod check;
mod found;
mod init;
mod walk;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tec_core::id::ImageName;

use self::check::check;
use self::init::init;
use crate::kube::cli::Access;
use crate::output::Output;
use crate::serve::args::ServeArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum BootstrapCommand {
    /// Set a trust anchor up, and print the config for the installer. On the state directory, what is
    /// given beside images is what `tec serve` is to be started with. In a namespace, it is what the
    /// operator, its Services and the cluster object are made of; what is there stays.
    Init {
        #[command(flatten)]
        serve: Box<ServeArgs>,
        /// Approve an image: a name, and a directory or disk, as for `tec image approve`; in a
        /// namespace also a reference with its digest, which the operator measures.
        #[arg(long = "image", value_name = "NAME=PATH", value_parser = named_image)]
        images: Vec<(ImageName, PathBuf)>,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Look at the anchor as a node does before the first one boots. Ends with 1 if a node could not
    /// register or fetch a key, and with 3 if only an approval is missing.
    Check(CheckArgs),
}

/// Where a node would begin.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The installer's config, as `init` printed it; that of the state directory where not given.
    #[arg(long, value_name = "FILE")]
    ignition: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Where the anchor is: on the state directory, unless a namespace is given.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Namespace of the anchor, where it is on Kubernetes.
    #[arg(long)]
    namespace: Option<String>,
    /// Context of the kubeconfig; the current one where not given.
    #[arg(long, requires = "namespace")]
    context: Option<String>,
    /// The kubeconfig; that of KUBECONFIG or of the home directory where not given.
    #[arg(long, requires = "namespace")]
    kubeconfig: Option<PathBuf>,
}

impl PlaceArgs {
    /// The namespace, if one is given.
    fn access(&self) -> Option<Access> {
        self.namespace.as_ref()?;
        Some(Access {
            namespace: self.namespace.clone(),
            context: self.context.clone(),
            kubeconfig: self.kubeconfig.clone(),
        })
    }
}

pub(crate) async fn bootstrap(
    state_dir: &Path,
    command: BootstrapCommand,
    output: Output,
) -> anyhow::Result<u8> {
    match command {
        BootstrapCommand::Init { serve, images, place } => match place.access() {
            Some(access) => found::found(&access, &serve, &images, output).await,
            None => init(state_dir, &serve, &images, output).await,
        },
        BootstrapCommand::Check(args) => check(state_dir, &args, output).await,
    }
}

fn named_image(text: &str) -> Result<(ImageName, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("it has the form NAME=PATH")?;
    let name = name.parse().map_err(|error| format!("{error}"))?;
    Ok((name, PathBuf::from(path)))
}
