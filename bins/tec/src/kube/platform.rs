//! `tec platform` on a cluster.

use tec_support::exit::OK;

use super::access::Cluster;
use super::lookup::id_of;
use super::{code_of, of};
use crate::output::Output;
use crate::platform::{Anchor, PlatformCommand};

pub(crate) async fn platform(
    cluster: &Cluster,
    command: PlatformCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let registry = of(cluster);
    let anchor = Anchor { platforms: &registry, aks: &registry, code: code_of };
    match command {
        PlatformCommand::List => anchor.list(output).await?,
        PlatformCommand::Diff { machine } => {
            anchor.diff(id_of(cluster, &machine).await?, output).await?;
        }
        PlatformCommand::Approve { machine, consent } => {
            anchor.approve(id_of(cluster, &machine).await?, consent, output).await?;
        }
    }
    Ok(OK)
}
