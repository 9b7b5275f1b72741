//! `kubectl tec member`: manages nodes that joined through the join service.
//!
//! ```text
//! ConfigMap tec-members ─► list
//! remove, replace ─► steps, shown ─► asked ─► key refused ─► claim gone, disk nobody's ─► Node deleted
//! ```

mod drain;
mod leave;
mod list;

use std::collections::BTreeSet;

use serde_json::json;
use tec_core::code::Code;
use tec_node::grant::Claim;
use tec_node::member::{KubeEnrollments, Roll};
use tec_node::rpc::Enrollments as _;
use tec_node::ticket::NodeName;
use tec_support::exit::{CodedError, OK};

use self::leave::Fate;
use super::access::Cluster;
use super::cli::member::{MemberCommand, Tpm};
use super::failed;
use crate::output::Output;

pub(crate) async fn member(
    cluster: &Cluster,
    command: MemberCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let members = KubeEnrollments::new(super::of(cluster));
    let roll = members.roll().await.map_err(failed("read the members"))?;
    match command {
        MemberCommand::List => list::list(cluster, &roll, output).await?,
        MemberCommand::Remove { leave } => {
            leave::leave(cluster, &members, &roll, (leave, Fate::Removed), output).await?;
        }
        MemberCommand::Replace { tpm, leave } => {
            let fate = match tpm {
                Tpm::Same => Fate::Reinstalled,
                Tpm::New => Fate::Removed,
            };
            leave::leave(cluster, &members, &roll, (leave, fate), output).await?;
        }
        MemberCommand::Addresses { name, addresses, dry_run } => {
            let claim = live(&roll, &name).ok_or_else(|| unknown(cluster, &name))?;
            let addresses: BTreeSet<_> = addresses.into_iter().collect();
            let changed = Claim { addresses, ..claim.clone() };
            if !dry_run.dry_run {
                members.readdress(&changed).await.map_err(failed("change the addresses"))?;
            }
            let dry_run = dry_run.dry_run;
            let value = json!({"member": name.as_str(), "addresses": changed.addresses, "dry_run": dry_run});
            let would = if dry_run { "would be " } else { "" };
            output.print(&value, |_| format!("addresses of member {name} {would}set"))?;
        }
    }
    Ok(OK)
}

fn live<'r>(roll: &'r Roll, name: &NodeName) -> Option<&'r Claim> {
    roll.claims.iter().find(|one| one.name == *name)
}

fn unknown(cluster: &Cluster, name: &NodeName) -> CodedError {
    let context = format!(
        "no member is named {name} in {}; kubectl tec member list shows all",
        cluster.namespace
    );
    CodedError::new(Code::ClusterMissing, context)
}
