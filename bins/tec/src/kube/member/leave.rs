//! A membership ends.
//!
//! Each step may be the last of this process: the key is refused before anything becomes free, and the
//! same command again goes on where it ended.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, PartialObjectMeta, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tec_core::flow;
use tec_core::id::MachineId;
use tec_core::node::grant::Claim;
use tec_core::node::state::Role;
use tec_core::port::{AkRegistry, MachineRegistry, PortError, PortErrorKind};
use tec_k8s::client::KubeRegistry;
use tec_node::member::{KubeEnrollments, Roll};
use tec_support::SystemClock;

use super::drain::drain;
use super::{live, unknown};
use crate::kube::access::{Cluster, coded};
use crate::kube::cli::member::LeaveArgs;
use crate::kube::{failed, of};
use crate::output::Output;

/// What becomes of the TPM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It never comes back.
    Removed,
    /// It joins again, as a new machine.
    Reinstalled,
}

/// Somebody who leaves.
struct Leaving {
    claim: Claim,
    machine: MachineId,
    fate: Fate,
    drain: Option<Duration>,
}

pub(super) async fn leave(
    cluster: &Cluster,
    members: &KubeEnrollments,
    roll: &Roll,
    (args, fate): (LeaveArgs, Fate),
    output: &Output,
) -> anyhow::Result<()> {
    let claim = leaving(roll, &args).ok_or_else(|| unknown(cluster, &args.name))?;
    ensure_not_last(roll, &claim)?;
    let machine = members.machine_id(&claim).await.map_err(failed("find the machine"))?;
    let drain = args.drain.then(|| Duration::from_secs(args.drain_timeout));
    let leaving = Leaving { claim, machine, fate, drain };
    let steps = leaving.steps();
    let dry_run = args.dry_run.dry_run;
    if !dry_run {
        if !args.yes {
            ask(&args, &steps)?;
        }
        leaving.go(cluster, members).await?;
    }
    let value = json!({
        "member": args.name.as_str(),
        "machine": leaving.machine,
        "steps": steps,
        "dry_run": dry_run,
    });
    output.print(&value, |_| {
        let head = if dry_run { "would:" } else { "done:" };
        format!("member {} {head}\n{}", args.name, numbered(&steps))
    })
}

/// The member of this name, or the one that was removed last and whose removal may have been cut off.
fn leaving(roll: &Roll, args: &LeaveArgs) -> Option<Claim> {
    let removed = || {
        let removed = roll.removed.iter().filter(|one| one.name == args.name);
        removed.max_by_key(|one| one.removed).map(tec_node::member::Removed::claim)
    };
    live(roll, &args.name).cloned().or_else(removed)
}

fn ensure_not_last(roll: &Roll, claim: &Claim) -> anyhow::Result<()> {
    let is_other = |one: &&Claim| one.role == Role::ControlPlane && one.name != claim.name;
    anyhow::ensure!(
        claim.role == Role::Worker || roll.claims.iter().any(|one| is_other(&one)),
        "cannot remove {}: it is the last control plane",
        claim.name
    );
    Ok(())
}

fn numbered(steps: &[String]) -> String {
    let lines = steps.iter().enumerate();
    lines.map(|(at, step)| format!("  {}. {step}", at + 1)).collect::<Vec<_>>().join("\n")
}

fn ask(args: &LeaveArgs, steps: &[String]) -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    anyhow::ensure!(
        stdin.is_terminal(),
        "cannot ask before member {} is removed: standard input is no terminal (pass --yes, or \
         --dry-run to see the steps)",
        args.name
    );
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "member {} will:\n{}\nContinue? [y/N] ", args.name, numbered(steps))?;
    stderr.flush()?;
    let mut answer = String::new();
    stdin.read_line(&mut answer).context("read the answer")?;
    let is_yes = matches!(answer.trim(), "y" | "Y" | "yes");
    anyhow::ensure!(is_yes, "nothing was changed");
    Ok(())
}

impl Leaving {
    /// What happens, in this order.
    fn steps(&self) -> Vec<String> {
        let Self { claim, machine, .. } = self;
        let name = &claim.name;
        let mut steps = Vec::new();
        if let Some(limit) = self.drain {
            steps.push(format!("cordon {name} and evict its pods, within {} s", limit.as_secs()));
        }
        if self.fate == Fate::Removed {
            steps.push(format!("revoke machine {machine} and its attestation key {}", claim.ak));
        }
        let free = if self.fate == Fate::Removed { "name" } else { "name and its key" };
        steps.push(format!(
            "end the membership: its {free} may join, and nobody with disk {}",
            claim.disk
        ));
        steps.push(format!("delete Node {name}"));
        if self.fate == Fate::Reinstalled {
            steps.push(format!("remove machine {machine}, and forget its attestation key"));
        }
        steps
    }

    async fn go(&self, cluster: &Cluster, members: &KubeEnrollments) -> anyhow::Result<()> {
        let Self { claim, machine, .. } = self;
        let registry = of(cluster);
        if let Some(limit) = self.drain {
            drain(&cluster.client, claim.name.as_str(), limit).await?;
        }
        if self.fate == Fate::Removed {
            self.revoke(&registry).await?;
        }
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let node = nodes.get_metadata_opt(claim.name.as_str()).await;
        let node = node.map_err(coded(format!("look up Node {}", claim.name)))?;
        let what = || format!("end the membership of {}", claim.name);
        members.remove(claim).await.map_err(failed(what()))?;
        if let Some(node) = node {
            delete_node(&nodes, &node).await?;
        }
        if self.fate == Fate::Reinstalled {
            let removed =
                flow::remove_machine(&registry, &registry, &registry, &SystemClock, *machine).await;
            removed.map_err(failed(format!("remove machine {machine}")))?;
        }
        Ok(())
    }

    /// The machine first: that alone refuses its key.
    async fn revoke(&self, registry: &KubeRegistry) -> anyhow::Result<()> {
        let (machine, key) = (self.machine, self.claim.ak);
        let what = format!("revoke machine {machine}");
        let found = MachineRegistry::find(registry, &machine).await.map_err(failed(&what))?;
        if found.is_some() {
            flow::revoke_machine(registry, &SystemClock, machine).await.map_err(failed(what))?;
        }
        let what = format!("revoke key {key}");
        let found: Result<_, PortError> = AkRegistry::find(registry, &key).await;
        // A key of another machine is not that of this member any more.
        if found.map_err(failed(&what))?.is_some_and(|record| record.machine == machine) {
            match flow::revoke_ak(registry, &SystemClock, key).await {
                Err(error) if error.kind() == PortErrorKind::NotFound => {}
                revoked => revoked.map_err(failed(what))?,
            }
        }
        Ok(())
    }
}

/// Only this one: its name is free already, and another node may have it.
async fn delete_node(nodes: &Api<Node>, node: &PartialObjectMeta<Node>) -> anyhow::Result<()> {
    let name = node.name_any();
    let this = Preconditions { uid: node.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
    match nodes.delete(&name, &params).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        deleted => Ok(deleted.map(drop).map_err(coded(format!("delete Node {name}")))?),
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;
    use tec_node::member::Removed;

    use super::*;

    fn claim(number: u8, name: &str, role: Role) -> Claim {
        Claim {
            ak: sample::public_key(number.into()).fingerprint(),
            name: name.parse().unwrap(),
            role,
            disk: format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap(),
            addresses: std::collections::BTreeSet::new(),
        }
    }

    fn removed(number: u8, name: &str) -> Removed {
        let Claim { ak, name, role, disk, .. } = claim(number, name, Role::Worker);
        Removed { disk, key: ak, name, role, removed: sample::time(number.into()) }
    }

    fn args(name: &str) -> LeaveArgs {
        LeaveArgs {
            name: name.parse().unwrap(),
            drain: false,
            drain_timeout: 0,
            yes: true,
            dry_run: crate::args::DryRun { dry_run: false },
        }
    }

    #[test]
    fn a_name_is_that_of_the_member_before_those_that_were_removed() {
        let mut roll = Roll {
            claims: vec![claim(3, "n3", Role::Worker)],
            removed: vec![removed(1, "n3"), removed(2, "n3")],
        };
        assert_eq!(leaving(&roll, &args("n3")), Some(claim(3, "n3", Role::Worker)));
        roll.claims.clear();
        let last = leaving(&roll, &args("n3"));
        assert_eq!(last, Some(claim(2, "n3", Role::Worker)), "a removal that was cut off");
        assert_eq!(leaving(&roll, &args("n4")), None);
    }

    #[test]
    fn the_last_control_plane_stays() {
        let first = claim(1, "n1", Role::ControlPlane);
        let mut roll = Roll { claims: vec![first.clone()], removed: Vec::new() };
        roll.claims.push(claim(2, "n2", Role::Worker));
        assert!(ensure_not_last(&roll, &first).is_err());
        ensure_not_last(&roll, &claim(2, "n2", Role::Worker)).unwrap();
        roll.claims.push(claim(3, "n3", Role::ControlPlane));
        ensure_not_last(&roll, &first).unwrap();
    }
}
