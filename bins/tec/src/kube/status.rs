//! `kubectl tec status`.

use std::path::Path;

use kube::ResourceExt as _;
use serde::Serialize;
use tec_core::machine::MachineState;
use tec_k8s::api::{
    ApprovedImage, AttestationKey, ConditionKind, Machine, Reason, TargetStatus,
    TrustedExecutionCluster,
};
use tec_support::exit::{NOT_READY, OK};

use super::access::Cluster;
use super::image::{is_live, unpinned_images};
use super::{condition, is_true};
use crate::image::UnpinnedImage;
use crate::output::{Output, write_page};

#[derive(Debug, Serialize)]
struct Status {
    namespace: String,
    clusters: Vec<ClusterStatus>,
    machines: Machines,
    keys_waiting: usize,
    images_live: usize,
    /// Approved images of whose boot parts are not checked.
    unpinned: Vec<UnpinnedImage>,
    needs_you: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ClusterStatus {
    name: String,
    address: Option<String>,
    ready: bool,
    reason: String,
    ca_held_back: bool,
    targets: Vec<TargetStatus>,
}

#[derive(Debug, Default, Serialize)]
struct Machines {
    active: usize,
    unclaimed: usize,
    quarantined: usize,
    revoked: usize,
    retired: usize,
    refused: usize,
}

pub(crate) async fn status(
    cluster: &Cluster,
    html: Option<&Path>,
    output: &Output,
) -> anyhow::Result<u8> {
    let machines = cluster.list::<Machine>().await?;
    let images = cluster.list::<ApprovedImage>().await?;
    let status = report(
        &cluster.namespace,
        &cluster.list::<TrustedExecutionCluster>().await?,
        &machines,
        &cluster.list::<AttestationKey>().await?,
        &images,
    );
    if let Some(file) = html {
        let live = images.iter().filter(|image| is_live(image)).map(kube::ResourceExt::name_any);
        let warnings = status.unpinned.iter().map(ToString::to_string).collect();
        let lines = (warnings, status.needs_you.clone());
        write_page(&super::page::page(lines, &machines, live.collect()), file)?;
    } else {
        output.print(&status, render)?;
    }
    let is_ready = matches!(status.clusters.as_slice(), [only] if only.ready);
    Ok(if is_ready && status.images_live > 0 { OK } else { NOT_READY })
}

fn report(
    namespace: &str,
    clusters: &[TrustedExecutionCluster],
    machines: &[Machine],
    keys: &[AttestationKey],
    images: &[ApprovedImage],
) -> Status {
    let mut status = Status {
        namespace: namespace.to_owned(),
        clusters: clusters.iter().map(cluster_status).collect(),
        machines: count(machines),
        keys_waiting: keys.iter().filter(|key| waits(key)).count(),
        images_live: images.iter().filter(|image| is_live(image)).count(),
        unpinned: unpinned_images(images),
        needs_you: Vec::new(),
    };
    status.needs_you = needs_you(&status);
    status
}

fn cluster_status(object: &TrustedExecutionCluster) -> ClusterStatus {
    let status = object.status.clone().unwrap_or_default();
    let ready = condition(&status.conditions, ConditionKind::Ready.as_str());
    ClusterStatus {
        name: object.name_any(),
        address: object.spec.public_trustee_addr.clone(),
        ready: ready.is_some_and(|condition| condition.status == "True"),
        reason: ready.map_or_else(
            || "no operator has looked at it yet".to_owned(),
            |condition| format!("{}: {}", condition.reason, condition.message),
        ),
        ca_held_back: condition(&status.conditions, ConditionKind::CertificateAuthority.as_str())
            .is_some_and(|condition| condition.reason == Reason::AuthorityHeldBack.as_str()),
        targets: status.targets,
    }
}

fn count(machines: &[Machine]) -> Machines {
    let mut counts = Machines::default();
    for machine in machines {
        match machine.state() {
            MachineState::Active => counts.active += 1,
            MachineState::Quarantined => counts.quarantined += 1,
            MachineState::Revoked => counts.revoked += 1,
            MachineState::Retired => counts.retired += 1,
            _ => counts.unclaimed += 1,
        }
        let last = machine.status.as_ref();
        let last = last.and_then(|status| status.last_attestation.as_ref());
        if last.is_some_and(|last| last.code.is_some()) {
            counts.refused += 1;
        }
    }
    counts
}

fn waits(key: &AttestationKey) -> bool {
    let conditions = key.status.as_ref().map(|status| &status.conditions);
    key.spec.revoked_at.is_none()
        && !conditions.is_some_and(|all| is_true(all, ConditionKind::Approved))
}

fn needs_you(status: &Status) -> Vec<String> {
    let mut list = Vec::new();
    match status.clusters.as_slice() {
        [] => list.push("there is no cluster object: apply a TrustedExecutionCluster".to_owned()),
        [only] if only.ready => {}
        [only] => {
            list.push(format!("the cluster is not ready ({}), see kubectl tec check", only.reason));
        }
        _ => list.push("there are several cluster objects: remove all but one".to_owned()),
    }
    if status.clusters.iter().any(|cluster| cluster.ca_held_back) {
        list.push("the next CA waits for machines: kubectl tec check".to_owned());
    }
    let targets = status.clusters.iter().flat_map(|cluster| &cluster.targets);
    list.extend(targets.filter(|target| !target.converged).map(|target| {
        let why = target.message.as_deref().unwrap_or("changes are on their way");
        format!("Trustee {} lacks {} changes: {why}", target.name, target.lag)
    }));
    if status.images_live == 0 {
        list.push(
            "no image is approved, so no node gets a key: kubectl tec image approve".to_owned(),
        );
    }
    if status.keys_waiting > 0 {
        let keys = status.keys_waiting;
        list.push(format!("{keys} attestation keys wait: kubectl tec ak list"));
    }
    if status.machines.refused > 0 {
        let machines = status.machines.refused;
        list.push(format!("{machines} machines were refused last: kubectl tec explain <machine>"));
    }
    list
}

fn render(status: &Status) -> String {
    let mut lines = vec![format!("namespace  {}", status.namespace)];
    for cluster in &status.clusters {
        let ready = if cluster.ready { "ready" } else { "not ready" };
        let address = cluster.address.as_deref().unwrap_or("no address yet");
        lines.push(format!("cluster    {} at {address}, {ready}", cluster.name));
        lines.extend(cluster.targets.iter().map(|target| {
            let state = if target.converged { "converged" } else { "behind" };
            format!("trustee    {} {state}", target.name)
        }));
    }
    let Machines { active, unclaimed, quarantined, revoked, retired, refused } = &status.machines;
    lines.push(format!(
        "machines   {active} active, {unclaimed} unclaimed, {quarantined} quarantined, \
         {revoked} revoked, {retired} retired, {refused} refused last"
    ));
    lines.push(format!("images     {} approved", status.images_live));
    lines.extend(status.unpinned.iter().map(ToString::to_string));
    lines.push(match status.needs_you.as_slice() {
        [] => "nothing needs you".to_owned(),
        list => format!("needs you:\n  {}", list.join("\n  ")),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use tec_k8s::api::{MachineSpec, TrustedExecutionClusterSpec};

    use super::*;

    #[test]
    fn an_empty_namespace_says_what_is_missing() {
        let status = report("ns", &[], &[], &[], &[]);
        assert_eq!(status.needs_you.len(), 2);
        assert!(render(&status).contains("TrustedExecutionCluster"));
    }

    #[test]
    fn a_second_cluster_object_is_named() {
        let object = TrustedExecutionCluster::new("a", TrustedExecutionClusterSpec::default());
        let status = report("ns", &[object.clone(), object], &[], &[], &[]);
        assert!(status.needs_you[0].contains("several"), "{status:?}");
    }

    #[test]
    fn a_ca_that_waits_for_machines_needs_somebody() {
        let mut object = TrustedExecutionCluster::new("a", TrustedExecutionClusterSpec::default());
        let held = serde_json::json!({ "conditions": [{
            "type": "CertificateAuthority", "status": "False", "reason": "AuthorityHeldBack",
            "message": "", "lastTransitionTime": "2026-11-24T00:00:00Z",
        }] });
        object.status = Some(serde_json::from_value(held).unwrap());
        let status = report("ns", &[object], &[], &[], &[]);
        assert!(status.needs_you.iter().any(|one| one.contains("next CA")), "{status:?}");
    }

    #[test]
    fn machines_are_counted_by_where_they_stand() {
        let mut revoked = Machine::new("m", MachineSpec::default());
        revoked.spec.revoked_at = Some("2026-11-21T00:00:00Z".to_owned());
        let unclaimed = Machine::new("n", MachineSpec::default());
        let counts = count(&[revoked, unclaimed]);
        assert_eq!((counts.active, counts.unclaimed, counts.revoked), (0, 1, 1));
    }
}
