//! Ends a membership.
//!
//! Each step may be the last of this process: the key is refused before anything becomes free, the claim is
//! removed last, and repeating the command continues where it stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::id::MachineId;
use tec_core::port::{AkRegistry, MachineRegistry, PortError, PortErrorKind};
use tec_k8s::client::KubeRegistry;
use tec_node::grant::Claim;
use tec_node::member::{KubeEnrollments, NameUse, Removed, Roll};
use tec_node::state::Role;
use tec_node::ticket::NodeName;
use tec_support::SystemClock;
use tec_support::exit::CodedError;

use super::drain::drain;
use super::list::{READY, standing};
use super::{live, unknown};
use crate::consent::consented;
use crate::kube::access::{Cluster, coded};
use crate::kube::cli::member::LeaveArgs;
use crate::kube::{failed, of};
use crate::output::Output;

/// What happens to the TPM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It never returns.
    Removed,
    /// It joins again, as a new machine.
    Reinstalled,
}

/// A member that is leaving.
struct Leaving {
    claim: Claim,
    machine: MachineId,
    fate: Fate,
    drain: Option<Duration>,
    name_use: NameUse,
}

pub(super) async fn leave(
    cluster: &Cluster,
    members: &KubeEnrollments,
    roll: &Roll,
    (args, fate): (LeaveArgs, Fate),
    output: &Output,
) -> anyhow::Result<()> {
    let claim = match chosen(roll, &args)? {
        Chosen::Member(claim) => claim.clone(),
        Chosen::Removed(one) => return already(members, one, &args, output).await,
        Chosen::Nobody => return Err(unknown(cluster, &args.name).into()),
    };
    let ready = ready_planes(cluster, roll).await?;
    if !roll.has_removed(claim.disk) {
        let what = format!("check whether {} may leave", claim.name);
        roll.check_removal(&claim, &ready).map_err(failed(what))?;
    }
    let machine = claim.machine_id();
    let drain = args.drain.then(|| Duration::from_secs(args.drain_timeout));
    let leaving = Leaving { claim, machine, fate, drain, name_use: name_use(&args) };
    let steps = leaving.steps();
    let dry_run = args.consent.dry_run.dry_run;
    if !dry_run {
        consented(&effects(&args.name, &steps), args.consent)?;
        leaving.go(cluster, members, &ready).await?;
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

fn name_use(args: &LeaveArgs) -> NameUse {
    if args.dangerous_free_name { NameUse::DangerousFree } else { NameUse::Held }
}

/// The member that a command refers to.
#[derive(Debug, PartialEq, Eq)]
enum Chosen<'r> {
    Member(&'r Claim),
    /// Everything was already done.
    Removed(&'r Removed),
    Nobody,
}

/// A repeated command must not affect the next member with the same name.
fn chosen<'r>(roll: &'r Roll, args: &LeaveArgs) -> anyhow::Result<Chosen<'r>> {
    let is_meant = |disk| args.disk.is_none_or(|wanted| wanted == disk);
    let member = live(roll, &args.name).filter(|claim| is_meant(claim.disk));
    let removed = roll.removed.iter().filter(|one| one.name == args.name && is_meant(one.disk));
    let last = removed.max_by_key(|one| one.removed);
    match (member, last) {
        // It is leaving, or no one had its name before.
        (Some(claim), Some(last)) if last.disk != claim.disk && !roll.has_removed(claim.disk) => {
            let context = format!(
                "{0} is a member with disk {1}, and a member of that name was removed at {2}; add --disk {1} if \
                 the present one is meant",
                args.name, claim.disk, last.removed
            );
            Err(CodedError::new(Code::ClusterConflict, context).into())
        }
        (Some(claim), _) => Ok(Chosen::Member(claim)),
        (None, Some(last)) => Ok(Chosen::Removed(last)),
        (None, None) => Ok(Chosen::Nobody),
    }
}

/// Repeating a removal changes only whether the name is free.
async fn already(
    members: &KubeEnrollments,
    one: &Removed,
    args: &LeaveArgs,
    output: &Output,
) -> anyhow::Result<()> {
    let mut steps = Vec::new();
    if args.dangerous_free_name && one.name_use == NameUse::Held {
        steps.push(free(&one.name));
        if !args.consent.dry_run.dry_run {
            consented(&effects(&args.name, &steps), args.consent)?;
            free_name(members, &one.name).await?;
        }
    }
    let value = json!({
        "member": args.name.as_str(),
        "removed": one.removed,
        "steps": steps,
        "dry_run": args.consent.dry_run.dry_run,
    });
    output.print(&value, |_| {
        let head = format!("member {} was removed at {}", args.name, one.removed);
        format!("{head}\n{}", numbered(&steps)).trim_end().to_owned()
    })
}

fn free(name: &NodeName) -> String {
    format!("free the name {name}, although certificates of the removed member may count")
}

async fn free_name(members: &KubeEnrollments, name: &NodeName) -> anyhow::Result<()> {
    tracing::warn!(%name, "certificates of the removed member count for the next one of its name");
    let freed = members.dangerous_free_name(name).await;
    Ok(freed.map_err(failed(format!("free the name {name}")))?)
}

/// Control planes that could serve the cluster without the one that leaves.
async fn ready_planes(cluster: &Cluster, roll: &Roll) -> anyhow::Result<BTreeSet<NodeName>> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let mut ready = BTreeSet::new();
    for claim in roll.claims.iter().filter(|one| one.role == Role::ControlPlane) {
        let name = claim.name.as_str();
        let node = nodes.get_opt(name).await.map_err(coded(format!("look up Node {name}")))?;
        if node.is_some_and(|node| standing(&node) == READY) {
            ready.insert(claim.name.clone());
        }
    }
    Ok(ready)
}

fn numbered(steps: &[String]) -> String {
    let lines = steps.iter().enumerate();
    lines.map(|(at, step)| format!("  {}. {step}", at + 1)).collect::<Vec<_>>().join("\n")
}

/// The consequences of a removal, for the confirmation prompt.
fn effects(name: &NodeName, steps: &[String]) -> [String; 1] {
    [format!("member {name} will:\n{}", numbered(steps))]
}

impl Leaving {
    /// The steps, in order.
    fn steps(&self) -> Vec<String> {
        let Self { claim, machine, .. } = self;
        let name = &claim.name;
        let mut steps = Vec::new();
        if let Some(limit) = self.drain {
            steps.push(format!("cordon {name} and evict its pods, within {} s", limit.as_secs()));
        }
        steps.push(format!("give nobody the key of disk {} any more", claim.disk));
        if self.fate == Fate::Removed {
            steps.push(format!("revoke machine {machine} and its attestation key {}", claim.ak));
        }
        steps.push(format!("delete Node {name}"));
        if self.fate == Fate::Reinstalled {
            steps.push(format!("remove machine {machine}, and forget its attestation key"));
        }
        let free =
            if self.fate == Fate::Removed { "" } else { ", its key may join under its name again" };
        steps.push(format!("end the membership{free}"));
        if self.name_use == NameUse::DangerousFree {
            steps.push(self::free(name));
        }
        steps
    }

    async fn go(
        &self,
        cluster: &Cluster,
        members: &KubeEnrollments,
        ready: &BTreeSet<NodeName>,
    ) -> anyhow::Result<()> {
        let Self { claim, machine, .. } = self;
        let registry = of(cluster);
        if let Some(limit) = self.drain {
            drain(&cluster.client, claim.name.as_str(), limit).await?;
        }
        let what = |verb: &str| format!("{verb} the membership of {}", claim.name);
        members.begin_removal(claim, ready).await.map_err(failed(what("begin to end")))?;
        if self.fate == Fate::Removed {
            self.revoke(&registry).await?;
        }
        delete_node(cluster, claim.name.as_str()).await?;
        if self.fate == Fate::Reinstalled {
            let removed =
                flow::remove_machine(&registry, &registry, &registry, &SystemClock, *machine).await;
            removed.map_err(failed(format!("remove machine {machine}")))?;
        }
        members.end_removal(claim).await.map_err(failed(what("end")))?;
        if self.name_use == NameUse::DangerousFree {
            free_name(members, &claim.name).await?;
        }
        Ok(())
    }

    /// Revokes the machine first: that alone refuses its key.
    async fn revoke(&self, registry: &KubeRegistry) -> anyhow::Result<()> {
        let (machine, key) = (self.machine, self.claim.ak);
        let what = format!("revoke machine {machine}");
        let found = MachineRegistry::find(registry, &machine).await.map_err(failed(&what))?;
        if found.is_some() {
            flow::revoke_machine(registry, &SystemClock, machine).await.map_err(failed(what))?;
        }
        let what = format!("revoke key {key}");
        let found: Result<_, PortError> = AkRegistry::find(registry, &key).await;
        // A key that belongs to another machine is no longer this member's.
        if found.map_err(failed(&what))?.is_some_and(|record| record.machine == machine) {
            match flow::revoke_ak(registry, &SystemClock, key).await {
                Err(error) if error.kind() == PortErrorKind::NotFound => {}
                revoked => revoked.map_err(failed(what))?,
            }
        }
        Ok(())
    }
}

/// No other node can take the name while the claim exists.
async fn delete_node(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    match nodes.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => Ok(deleted.map(drop).map_err(coded(format!("delete Node {name}")))?),
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

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
        let removed = sample::time(number.into());
        Removed { disk, key: ak, name, role, removed, name_use: NameUse::Held }
    }

    fn args(name: &str) -> LeaveArgs {
        LeaveArgs {
            name: name.parse().unwrap(),
            disk: None,
            dangerous_free_name: false,
            drain: false,
            drain_timeout: 0,
            consent: crate::args::Consent {
                yes: true,
                dry_run: crate::args::DryRun { dry_run: false },
            },
        }
    }

    #[test]
    fn a_removal_that_is_repeated_never_hits_the_next_member_of_the_name() {
        let present = claim(3, "n3", Role::Worker);
        let mut roll = Roll {
            claims: vec![present.clone()],
            removed: vec![removed(1, "n3"), removed(2, "n3")],
        };
        assert!(chosen(&roll, &args("n3")).is_err());
        let of = |disk| LeaveArgs { disk: Some(disk), ..args("n3") };
        assert_eq!(chosen(&roll, &of(present.disk)).unwrap(), Chosen::Member(&present));
        let first = chosen(&roll, &of(removed(1, "n3").disk)).unwrap();
        assert_eq!(first, Chosen::Removed(&removed(1, "n3")));
        // A power failure occurred while it was leaving.
        roll.removed.push(removed(3, "n3"));
        assert_eq!(chosen(&roll, &args("n3")).unwrap(), Chosen::Member(&present));
        roll.claims.clear();
        assert_eq!(chosen(&roll, &args("n3")).unwrap(), Chosen::Removed(&removed(3, "n3")));
        assert_eq!(chosen(&roll, &args("n4")).unwrap(), Chosen::Nobody);
    }
}
