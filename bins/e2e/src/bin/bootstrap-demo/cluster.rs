//! Tests what the cluster does for its users, and its members.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Context as _;
use serde_json::Value;

use crate::files;
use crate::files::NAMESPACE;
use crate::host::Host;
use crate::stage::{Stage, until};

/// Namespace and DaemonSet of the join service, as in its manifest.
const JOIN_SERVICE: &str = "tec-join-service";
const ECHO: &str = include_str!("echo.yaml");
/// Requests from a pod to the Service; kube-proxy distributes them at random.
const ASK: &str = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \
    kubectl --server=http://echo.default.svc.cluster.local get --raw /; done";

/// Deploys the custom resources, and the join service with the permissions in its manifest.
pub(crate) fn deploy(stage: &Stage<'_>, first: &Host, nodes: &[&str]) -> anyhow::Result<()> {
    stage.apply(first, &stage.args.crds)?;
    stage.kubectl(first, &["create", "namespace", NAMESPACE])?;
    // Without an approval policy no key is bound.
    stage.apply(first, &files::write_cluster(first)?)?;
    stage.apply(first, &stage.args.manifest)?;
    stage.apply(first, &files::write_join_service(first, nodes)?)?;
    join_service_runs(stage, first)
}

/// Makes the join service admit these nodes from now on.
pub(crate) fn admit(stage: &Stage<'_>, first: &Host, nodes: &[&str]) -> anyhow::Result<()> {
    stage.apply(first, &files::write_join_service(first, nodes)?)?;
    let restart = ["rollout", "restart", "-n", JOIN_SERVICE, "daemonset/tec-join-service"];
    stage.kubectl(first, &restart)?;
    join_service_runs(stage, first)
}

fn join_service_runs(stage: &Stage<'_>, first: &Host) -> anyhow::Result<()> {
    let daemons = "daemonset/tec-join-service";
    let rollout = ["rollout", "status", "-n", JOIN_SERVICE, daemons, "--timeout=120s"];
    stage.kubectl(first, &rollout).map(drop)
}

/// Every member is a machine of the operator with a bound key.
pub(crate) fn machines_are_bound(
    stage: &Stage<'_>,
    first: &Host,
    count: usize,
) -> anyhow::Result<()> {
    let machines = stage.items(first, &["machines", "-n", NAMESPACE])?;
    let bound = |machine: &&Value| machine.pointer("/status/attestationKey/name").is_some();
    let bound = machines.iter().filter(bound).count();
    anyhow::ensure!(bound == count, "{bound} machines have a bound key, not {count}");
    Ok(())
}

/// A pod on each of these nodes reaches the pods on all of them through a Service, by its name.
pub(crate) fn services_work(stage: &Stage<'_>, first: &Host, nodes: &[&str]) -> anyhow::Result<()> {
    let file = first.path("echo.yaml");
    fs::write(&file, ECHO)?;
    stage.apply(first, &file)?;
    let pods = || stage.items(first, &["pods", "-l", "app=echo"]);
    let expected: BTreeSet<&str> = nodes.iter().copied().collect();
    for what in [("default", "daemonset/echo"), ("kube-system", "deployment/coredns")] {
        stage.kubectl(first, &["rollout", "status", "-n", what.0, what.1, "--timeout=120s"])?;
    }
    until("a pod on each node", || {
        pods().is_ok_and(|pods| {
            let on: BTreeSet<&str> = pods.iter().filter_map(node_of).collect();
            on == expected && pods.len() == nodes.len()
        })
    })?;
    for pod in pods()? {
        let name = pod.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.context("a pod has no name")?;
        let exec = ["exec", name, "--", "sh", "-c", ASK];
        until(&format!("every answer in {name}"), || {
            stage.kubectl(first, &exec).is_ok_and(|answers| {
                let answers: BTreeSet<&str> = answers.split_whitespace().collect();
                answers == expected
            })
        })?;
    }
    Ok(())
}

fn node_of(pod: &Value) -> Option<&str> {
    pod.pointer("/spec/nodeName")?.as_str()
}

/// Removes a node by command, after the confirmation was shown.
pub(crate) fn remove(stage: &Stage<'_>, first: &Host, node: &str) -> anyhow::Result<()> {
    let remove = ["--namespace", NAMESPACE, "member", "remove", node, "--drain"];
    stage.admin.kube(&[&remove[..], &["--dry-run"]].concat())?;
    stage.json(first, &["node", node]).context("a dry run removed the Node")?;
    stage.admin.kube(&[&remove[..], &["--yes"]].concat())
}

/// Lets a different key have the name of a removed node.
pub(crate) fn free_name(stage: &Stage<'_>, node: &str) -> anyhow::Result<()> {
    let free = ["--namespace", NAMESPACE, "member", "remove", node, "--dangerous-free-name"];
    stage.admin.kube(&[&free[..], &["--yes"]].concat())
}
