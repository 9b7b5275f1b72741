//! Kubernetes one minor version on, below an installation that goes on: etcd stays, the API server first,
//! then the kubelet (docs/how-to/upgrade-kubernetes.md).

use std::io::Write as _;
use std::path::PathBuf;

use tec_e2e::pods::{Charts, Node, Registry, charts_of_today, programs_of_today};
use tec_e2e::settings::cache;

use crate::machine::Fleet;
use crate::{NODE, all_available, image_root, ours};

/// Folder with the programs of the minor version before. Without it the test does not run.
const BEFORE: &str = "TEC_KUBERNETES_BEFORE";
/// What must be the same afterwards, to the version of each object.
const KEPT: [&str; 2] = ["secrets", "approvedimages"];
/// The same but for their status, which says when a machine booted.
const MACHINES: [&str; 2] = ["machines", "attestationkeys"];

#[test]
fn an_upgrade_of_kubernetes_rewrites_no_key_and_every_disk_opens() {
    let Some(before) = std::env::var_os(BEFORE).map(PathBuf::from) else {
        writeln!(std::io::stderr(), "NOT RUN: {BEFORE} names no older programs of Kubernetes")
            .unwrap();
        return;
    };
    let _alone = NODE.lock().unwrap();
    let charts = Charts::begin_on(before).unwrap();
    charts.namespace().unwrap();
    charts.charts("install", &charts_of_today()).unwrap();
    charts.cluster("Builtin").unwrap();
    all_available(&charts, &ours());
    charts.expose().unwrap();
    let registry = Registry::start(&charts).unwrap();
    let image = registry.push_tree(&charts, &image_root()).unwrap();
    let fleet = Fleet::begin(&charts, &image);
    let mut one = fleet.first_boot(&charts, "one");
    one.opens();
    let (version, kept) = (versions(&charts), objects(&charts));

    let today = Node::at(cache().unwrap().join("pods"), programs_of_today().unwrap());
    today.upgrade_control_plane().unwrap();
    let (api_server, kubelet) = versions(&charts);
    assert_eq!(kubelet, version.1, "the kubelet is one version behind");
    assert_ne!(api_server, version.0);
    one.opens();
    let mut two = fleet.first_boot(&charts, "two");
    two.opens();

    today.upgrade_workers(&api_server).unwrap();
    assert_eq!(versions(&charts), (api_server.clone(), api_server.clone()));
    all_available(&charts, &ours());
    for machine in [&mut one, &mut two] {
        machine.opens();
    }
    fleet.first_boot(&charts, "three").opens();
    let now = objects(&charts);
    for object in &kept {
        assert!(now.contains(object), "{object} in {now:#?}");
    }
    one.a_changed_kernel_is_refused_and_named(&charts);
    charts.kubectl(&["delete", "pods", "--all", "--grace-period=1"]).unwrap();
    all_available(&charts, &ours());
    one.opens();
    writeln!(std::io::stderr(), "{} and {} to {api_server}: {kept:#?}", version.0, version.1)
        .unwrap();
}

/// Of the API server, and of the kubelet.
fn versions(charts: &Charts) -> (String, String) {
    let server = charts.everywhere(&["get", "--raw=/version"]).unwrap();
    let server: serde_json::Value = serde_json::from_str(&server).unwrap();
    let kubelet = ["get", "node", "n1", "--output=jsonpath={.status.nodeInfo.kubeletVersion}"];
    let server = server["gitVersion"].as_str().unwrap().to_owned();
    (server, charts.everywhere(&kubelet).unwrap())
}

/// One line for each object, with what tells that somebody wrote it.
fn objects(charts: &Charts) -> Vec<String> {
    let lines = |kind: &str, what: &str| {
        let each = format!(
            "--output=jsonpath={{range .items[*]}}{kind}/{{.metadata.name}} {{.metadata.uid}} \
             {{{what}}}{{\"\\n\"}}{{end}}"
        );
        let all = charts.kubectl(&["get", kind, &each]).unwrap();
        all.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let kept = KEPT.iter().flat_map(|kind| lines(kind, ".metadata.resourceVersion"));
    // Helm keeps its releases in Secrets, too.
    let kept = kept.filter(|line| !line.contains("helm.release"));
    kept.chain(MACHINES.iter().flat_map(|kind| lines(kind, ".metadata.generation"))).collect()
}
