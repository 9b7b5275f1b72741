//! The chart, validated by an API server.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::Role;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use services::bootstrap::cli::{Action, Args, Serve, Unseal};
use tec_core::port::Clock as _;
use tec_e2e::kube::{Guarded, eventually};
use tec_e2e::packages::{SET_REGISTRY, tool};
use tec_e2e::process::Transcript;
use tec_e2e::services::cluster::{Cluster, callers_rules, controller_rules};
use tec_support::SystemClock;
use tec_support::testing::free_address;
use tokio::net::UnixStream;

/// The Secret with the certificate of raft.
const RAFT: &str = "vault-raft-tls";
/// Directory of snapshots in the vault's pod.
const SNAPSHOTS: &str = "/vault/snapshots";

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/deploy/helm/tec-services")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_is_taken_and_its_controller_may_do_what_the_tests_let_it_do() {
    let cluster = Cluster::shared().await.unwrap();
    let logs = cluster.plane.logs();
    let namespace = cluster.plane.namespace("chart").await.unwrap();
    let apps = cluster.plane.namespace("chart-apps").await.unwrap();
    let mut helm = Command::new(tool("bin/helm").unwrap());
    helm.args(["install", "services", SET_REGISTRY, "--namespace", &namespace])
        .args(["--set", &format!("componentNamespaces={{{apps}}}")])
        .args(["--set", "telemetry.enabled=true"])
        .arg(chart())
        .env("KUBECONFIG", cluster.plane.admin_kubeconfig().unwrap());
    logs.must(&mut helm).unwrap();

    let admin = cluster.plane.admin().unwrap();
    let roles: Api<Role> = Api::namespaced(admin.clone(), &namespace);
    let role = roles.get("services-bootstrap").await.unwrap();
    assert_eq!(role.rules, Some(controller_rules()));
    let roles: Api<Role> = Api::namespaced(admin.clone(), &apps);
    let role = format!("{namespace}-services-bootstrap");
    let role = roles.get(&role).await.unwrap();
    assert_eq!(role.rules, Some(callers_rules()));
    let sets: Api<StatefulSet> = Api::namespaced(admin, &namespace);
    for (name, containers) in [("vault", 2), ("nats", 2), ("opensearch", 2)] {
        let pod = sets.get(name).await.unwrap().spec.unwrap().template.spec.unwrap();
        assert_eq!(pod.containers.len(), containers);
        let volumes = serde_json::to_value(&pod.volumes).unwrap().to_string();
        assert!(volumes.contains(r#""audience":"tec-services""#), "{volumes}");
    }
}

/// The chart's vault configuration with these values.
async fn configuration(cluster: &Cluster, prefix: &str, values: &[&str]) -> (String, StatefulSet) {
    let namespace = cluster.plane.namespace(prefix).await.unwrap();
    let mut helm = Command::new(tool("bin/helm").unwrap());
    helm.args(["install", "services", SET_REGISTRY, "--namespace", &namespace])
        .args(["--set", &format!("componentNamespaces={{{namespace}}}")])
        .args(values.iter().flat_map(|value| ["--set", value]))
        .arg(chart())
        .env("KUBECONFIG", cluster.plane.admin_kubeconfig().unwrap());
    cluster.plane.logs().must(&mut helm).unwrap();
    let admin = cluster.plane.admin().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), &namespace);
    let map = maps.get("vault").await.unwrap();
    let sets: Api<StatefulSet> = Api::namespaced(admin, &namespace);
    let config = map.data.unwrap().remove("config.hcl").unwrap();
    (config, sets.get("vault").await.unwrap())
}

/// The controller's flags, as parsed by its own program.
fn controller(set: &StatefulSet) -> Serve {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let mut containers = pod.containers.iter();
    let container = containers.find(|container| container.name == "controller");
    let line = container.unwrap().command.clone().unwrap();
    let of_pod = ["--pod=vault-0", "--namespace=platform"].map(str::to_owned);
    let args = Args::try_parse_from(line.into_iter().chain(of_pod)).unwrap();
    let serve = match args.command {
        Action::Serve(serve) => Some(*serve),
        _ => None,
    };
    serve.unwrap()
}

/// Volume and directory of the snapshots in each container.
fn snapshot_mounts(set: &StatefulSet) -> Vec<(String, Option<String>)> {
    let pod = set.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let mounts =
        pod.containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
    mounts
        .filter(|mount| mount.mount_path == SNAPSHOTS)
        .map(|mount| (mount.name.clone(), mount.sub_path_expr.clone()))
        .collect()
}

/// Starts a vault with a configuration from the chart, with different paths and ports.
async fn is_taken(config: &str, scheme: &str) {
    let dir = tempfile::tempdir().unwrap();
    let logs = Transcript::new(dir.path().join("logs")).unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir(at("data")).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = names.self_signed(&key).unwrap().pem();
    std::fs::write(at("tls.crt"), &own).unwrap();
    std::fs::write(at("ca.crt"), &own).unwrap();
    std::fs::write(at("tls.key"), key.serialize_pem()).unwrap();
    let own = |_| free_address().unwrap().to_string();
    let [api, cluster] = [0, 1].map(own);
    let config = config
        .replace("/vault/data", &at("data"))
        .replace("/run/vault/vault.sock", &at("s"))
        .replace("/etc/vault-tls", &dir.path().display().to_string())
        .replace("0.0.0.0:8200", &api)
        .replace("0.0.0.0:8201", &cluster)
        .replace("127.0.0.1:8200", &api)
        .replace("127.0.0.1:8201", &cluster);
    std::fs::write(at("config.hcl"), config).unwrap();
    let arguments = ["server".to_owned(), "-config".to_owned(), at("config.hcl")];
    let arguments = arguments.map(OsString::from);
    let program = tool("bin/bao").unwrap();
    let (api, cluster) = (format!("{scheme}://{api}"), format!("https://{cluster}"));
    let environment = [
        ("BAO_RAFT_NODE_ID", OsStr::new("vault-0")),
        ("BAO_API_ADDR", OsStr::new(&api)),
        ("BAO_CLUSTER_ADDR", OsStr::new(&cluster)),
    ];
    let vault = Guarded::start("bao", &program, &arguments, &environment, &logs).unwrap();
    let up = eventually("a vault that takes the configuration", async || {
        Ok(UnixStream::connect(at("s")).await.is_ok())
    });
    let up = up.await;
    assert!(up.is_ok(), "{}", vault.log().unwrap());
}

/// Only the controller is reachable from everywhere.
async fn only_the_vaults_pods_reach_its_listener(cluster: &Cluster, set: &StatefulSet) {
    let namespace = set.metadata.namespace.as_deref().unwrap();
    let policies: Api<NetworkPolicy> = Api::namespaced(cluster.plane.admin().unwrap(), namespace);
    let spec = policies.get("vault").await.unwrap().spec.unwrap();
    let pods = serde_json::json!({"matchLabels": {"app": "vault"}});
    assert_eq!(serde_json::to_value(&spec.pod_selector).unwrap(), pods);
    assert_eq!(spec.policy_types, Some(vec!["Ingress".to_owned()]));
    let rules = serde_json::to_value(&spec.ingress).unwrap();
    let port = |port: u32| serde_json::json!({"port": port, "protocol": "TCP"});
    assert_eq!(
        rules,
        serde_json::json!([
            {"ports": [port(8443)]},
            {"from": [{"podSelector": pods}], "ports": [port(8200), port(8201)]},
        ])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_has_one_pod_of_the_vault_or_several_that_share_its_storage() {
    let cluster = Cluster::shared().await.unwrap();
    let (config, set) = configuration(&cluster, "one", &[]).await;
    assert!(!config.contains("retry_join") && !config.contains("0.0.0.0"));
    // A file of its own would eventually fill its volume, and stop the vault.
    assert!(config.contains("file_path = \"stdout\""));
    assert_eq!(set.spec.as_ref().unwrap().replicas, Some(1));
    let flags = controller(&set);
    assert!(flags.peers.is_empty() && flags.unseal == Unseal::Start);
    // Helm would write large numbers in scientific notation.
    assert_eq!(flags.password_seconds, 90 * 24 * 3600);
    assert_eq!((flags.snapshot_hours, flags.snapshot_keep), (24, 7));
    assert_eq!(flags.snapshots.unwrap(), Path::new(SNAPSHOTS));
    assert_eq!(snapshot_mounts(&set), [("data".to_owned(), None), ("data".to_owned(), None)]);
    is_taken(&config, "http").await;

    let values = ["vault.replicas=3", "vault.snapshots.claim=backups", "vault.snapshots.hours=0"];
    let (config, set) = configuration(&cluster, "several", &values).await;
    assert_eq!(config.matches("retry_join").count(), 3);
    assert!(!config.contains("tls_disable"));
    assert_eq!(set.spec.as_ref().unwrap().replicas, Some(3));
    let flags = controller(&set);
    assert_eq!((flags.peers.len(), flags.snapshots), (3, None));
    // For a restore. Each pod has a directory of its own on a claim that they may share.
    let own = ("snapshots".to_owned(), Some("$(POD_NAME)".to_owned()));
    assert_eq!(snapshot_mounts(&set), [own.clone(), own]);
    let volumes = serde_json::to_string(&set.spec.as_ref().unwrap().template).unwrap();
    assert!(volumes.contains(r#""claimName":"backups""#), "{volumes}");
    only_the_vaults_pods_reach_its_listener(&cluster, &set).await;
    is_taken(&config, "https").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_replaces_the_certificate_of_raft_when_it_is_old_or_was_deleted() {
    let cluster = Cluster::shared().await.unwrap();
    let namespace = cluster.plane.namespace("raft-tls").await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(cluster.plane.admin().unwrap(), &namespace);
    let upgraded = async || {
        let mut helm = Command::new(tool("bin/helm").unwrap());
        helm.args(["upgrade", "--install", "services", SET_REGISTRY, "--namespace", &namespace])
            .args(["--set", &format!("componentNamespaces={{{namespace}}}")])
            .args(["--set", "vault.replicas=3"])
            .arg(chart())
            .env("KUBECONFIG", cluster.plane.admin_kubeconfig().unwrap());
        cluster.plane.logs().must(&mut helm).unwrap();
        secrets.get(RAFT).await.unwrap().data.unwrap()
    };
    let first = upgraded().await;
    assert_eq!(upgraded().await, first);
    let year = 365 * 24 * 3600;
    for (years, is_kept) in [(4, true), (6, false)] {
        let issued = SystemClock.now().unix_seconds() - years * year;
        let mark = json!({"trusted-execution-clusters.io/issued": issued.to_string()});
        let patch = Patch::Merge(json!({"metadata": {"annotations": mark}}));
        secrets.patch(RAFT, &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(upgraded().await == first, is_kept, "{years} years");
    }
    let second = secrets.get(RAFT).await.unwrap().data.unwrap();
    assert_ne!(second["ca.crt"], first["ca.crt"]);
    assert_eq!(upgraded().await, second, "it is new");
    secrets.delete(RAFT, &DeleteParams::default()).await.unwrap();
    assert_ne!(upgraded().await, second);
}
