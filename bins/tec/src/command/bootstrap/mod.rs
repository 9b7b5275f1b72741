//! `tec bootstrap`: a trust anchor for a cluster that does not exist yet.
//!
//! ```text
//!   init   store, CA, endpoints, approvals ─► the installer's config, and how to serve
//!   check  the installer's config ─► as a node: register ─► its pin ─► each server in it
//! ```

mod check;
mod flags;
mod found;
mod init;
mod walk;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tec_core::id::ImageName;

use self::check::check;
use self::flags::Given;
use self::init::init;
use crate::args::Access;
use crate::image::UnpinnedArgs;
use crate::output::Output;
use crate::serve::args::ServeArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum BootstrapCommand {
    /// Set up a trust anchor and print the config for the installer. On a state directory, the other
    /// flags are those of `tec serve`. In a namespace, they go into the operator, its Services and the
    /// cluster object; existing objects are kept, and a flag that contradicts them or does not apply
    /// is an error.
    Init {
        // First, because clap removes values as it reads them.
        #[command(flatten)]
        given: Given,
        #[command(flatten)]
        install: InstallArgs,
        #[command(flatten)]
        serve: Box<ServeArgs>,
        /// Image to approve: a name, and a directory or disk, as for `tec image approve`; in a namespace also
        /// a reference with its digest, which the operator measures.
        #[arg(long = "image", value_name = "NAME=PATH", value_parser = named_image)]
        images: Vec<(ImageName, PathBuf)>,
        #[command(flatten)]
        unpinned: UnpinnedArgs,
    },
    /// Check the anchor as a node would, before the first node boots. Exit code 1 if a node could not
    /// register or fetch a key, 3 if only an approval is missing.
    Check(CheckArgs),
}

/// How to install the operator in a namespace.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct InstallArgs {
    /// Registry that the images of this release were pushed to, such as registry.example/tec
    #[arg(long, env = "TEC_REGISTRY", value_name = "REGISTRY")]
    registry: Option<String>,
    /// Image to run instead of the one in the registry; repeatable. NAME is one of tec-operator,
    /// key-broker-service, tec-kbs-guard, tec-key-broker, tec-register, tec-attestation-key-register,
    /// tec-compute-pcrs
    #[arg(long = "operator-image", value_name = "NAME=IMAGE")]
    #[arg(value_parser = flags::component_image)]
    operator_image: Vec<(String, String)>,
    /// Secret of the namespace for pulling images; repeatable
    #[arg(long, value_name = "NAME")]
    pull_secret: Vec<String>,
    /// Let the platform assign the users of pods, as OpenShift requires
    #[arg(long)]
    assigned_pod_user: bool,
    /// Create ClusterRoles for viewing and editing the custom resources
    #[arg(long)]
    user_roles: bool,
}

/// Where a node would start.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The installer's config, as printed by `init` (default: that of the state directory).
    #[arg(long, value_name = "FILE")]
    ignition: Option<PathBuf>,
}

pub(crate) async fn bootstrap(
    state_dir: &Path,
    access: Option<&Access>,
    command: BootstrapCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        BootstrapCommand::Init { given, install, serve, images, unpinned } => {
            let images = (images.as_slice(), unpinned.inputs());
            match access {
                Some(access) => {
                    let wanted = found::Wanted { args: &serve, given: &given, install: &install };
                    found::found(access, wanted, images, output).await
                }
                None => init(state_dir, &serve, given.into_settings(), images, output).await,
            }
        }
        BootstrapCommand::Check(args) => check(state_dir, access, &args, output).await,
    }
}

fn named_image(text: &str) -> Result<(ImageName, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("it has the form NAME=PATH")?;
    let name = name.parse().map_err(|error| format!("{error}"))?;
    Ok((name, PathBuf::from(path)))
}
