//! The packages on a real API server, and `kubectl tec` against it.

use std::path::PathBuf;
use std::process::{Command, Output};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};
use tec_core::testing::sample;
use tec_e2e::kube::ControlPlane;
use tec_e2e::packages::{helm, kustomize};
use tec_e2e::settings::own_program;
use tec_k8s::api::{AttestationKey, Machine, TrustedExecutionCluster, TrustedExecutionClusterSpec};
use tec_k8s::render::{BrokerFiles, DEFAULT_NAMESPACE, Deploy, TrusteeFiles, cluster};

const MACHINE: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

/// Whether to do something, or just try it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    DryRun,
    ForReal,
}

/// Applies a document like `kubectl apply --server-side`; unknown fields are refused.
async fn apply(client: &Client, document: &Value, mode: Mode) {
    let text = |path: &str| document.pointer(path).and_then(Value::as_str);
    let (group, version) = text("/apiVersion").unwrap().split_once('/').unwrap_or(("", "v1"));
    let kind = GroupVersionKind::gvk(group, version, text("/kind").unwrap());
    let resource = plural(&ApiResource::from_gvk(&kind));
    // Kustomize gives these a namespace; kubectl and the API server know that they have none.
    let of_cluster = |_: &&str| !kind.kind.starts_with("ValidatingAdmissionPolicy");
    let api: Api<DynamicObject> = match text("/metadata/namespace").filter(of_cluster) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = text("/metadata/name").unwrap();
    let params = PatchParams {
        dry_run: mode == Mode::DryRun,
        ..PatchParams::apply("tests").validation_strict()
    };
    let applied = api.patch(name, &params, &Patch::Apply(document)).await;
    applied.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.kind));
}

/// Kinds whose plural is not the kind plus an s.
fn plural(resource: &ApiResource) -> ApiResource {
    let mut resource = resource.clone();
    if let Some(kind) = resource.kind.strip_suffix("Policy") {
        resource.plural = format!("{}policies", kind.to_lowercase());
    }
    resource
}

pub(crate) async fn apply_all(client: &Client, documents: &[Value]) {
    for document in documents {
        // Namespaced objects cannot even be tried before the namespace exists.
        if document["kind"] != "Namespace" && document["kind"] != "CustomResourceDefinition" {
            apply(client, document, Mode::DryRun).await;
        }
        apply(client, document, Mode::ForReal).await;
    }
}

pub(crate) struct Plugin {
    pub(crate) plane: ControlPlane,
    pub(crate) namespace: String,
    kubeconfig: PathBuf,
    link: PathBuf,
    _directory: tempfile::TempDir,
}

impl Plugin {
    pub(crate) async fn start() -> Self {
        let plane = ControlPlane::start().await.unwrap();
        plane.install_resources().await.unwrap();
        let namespace = plane.namespace("plugin").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("kubectl-tec");
        std::os::unix::fs::symlink(own_program("tec").unwrap(), &link).unwrap();
        Self {
            kubeconfig: plane.admin_kubeconfig().unwrap(),
            plane,
            namespace,
            link,
            _directory: directory,
        }
    }

    /// The program, set to print in this format.
    pub(crate) fn command(&self, output: &str) -> Command {
        let mut command = Command::new(&self.link);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(["--namespace", &self.namespace, "--output", output]);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command("json").args(arguments).output().unwrap()
    }

    /// Runs a command that must succeed, and parses its output.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.plane.admin().unwrap(), &self.namespace)
    }

    /// A cluster object that names a Secret with a CA.
    pub(crate) async fn make_cluster(&self) {
        let mut spec = TrustedExecutionClusterSpec::default();
        spec.public_trustee_addr = Some("kbs.example.com:8080".to_owned());
        spec.trustee_secret = Some("kbs.example.com".to_owned());
        // There is no operator here to issue the others.
        spec.dangerous_plain_http = Some(true);
        let object = TrustedExecutionCluster::new("tec", spec);
        let post = PostParams::default();
        self.api().create(&post, &object).await.unwrap();
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "kbs.example.com"},
            "stringData": {"ca.crt": "the CA"},
        }))
        .unwrap();
        self.api().create(&post, &secret).await.unwrap();
    }
}

#[tokio::test]
async fn every_package_applies_to_a_real_api_server() {
    let plane = ControlPlane::start().await.unwrap();
    plane.install_resources().await.unwrap();
    let client = plane.admin().unwrap();
    let mut base = kustomize("kustomize/base").unwrap();
    base.retain(|document| document["kind"] != "CustomResourceDefinition");
    base.sort_by_key(|document| document["kind"] != "Namespace");
    apply_all(&client, &base).await;
    apply_all(&client, &kustomize("kustomize/users").unwrap()).await;
    apply_all(&client, &kustomize("kustomize/nodes").unwrap()).await;

    let namespace = plane.namespace("chart").await.unwrap();
    let chart = helm("tec-operator", &namespace, &["--set=assignedPodUser=true"]).unwrap();
    apply_all(&client, &chart).await;
}

/// Values of each kind, and what the operator's Deployment derives from them.
#[tokio::test]
async fn the_values_of_the_chart_reach_the_operator_and_what_it_creates() {
    let plane = ControlPlane::start().await.unwrap();
    plane.install_resources().await.unwrap();
    let namespace = plane.namespace("values").await.unwrap();
    let toleration = json!({"key": "infra", "operator": "Exists"});
    let load_balancer = json!({"type": "LoadBalancer", "annotations": {"x": "y"}});
    let settings = json!({
        "replicas": 3, "services": {"kbs-service": load_balancer}, "tolerations": [toleration],
    });
    let values = json!({
        "replicas": 1, "pcrs": [4, 11], "logLevel": "debug",
        "registryMirrors": ["a.example/b=c.example/d"], "sharedSources": ["10.0.0.0/8"],
        "extraArgs": ["--disk-keys=random256"], "nodeSelector": {"a": "b"}, "settings": settings,
        "tolerations": [toleration], "affinity": {"nodeAffinity": {}},
        "resources": {"limits": {"memory": "1Gi"}},
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let chart = helm("tec-operator", &namespace, &["--values", file.to_str().unwrap()]).unwrap();
    apply_all(&plane.admin().unwrap(), &chart).await;

    let spec = &chart.iter().find(|object| object["kind"] == "Deployment").unwrap()["spec"];
    assert_eq!(spec["replicas"], 1);
    let pod = &spec["template"]["spec"];
    for member in ["nodeSelector", "tolerations", "affinity"] {
        assert_eq!(pod[member], values[member], "{member}");
    }
    let container = &pod["containers"][0];
    assert_eq!(container["resources"], values["resources"]);
    let arguments: Vec<_> =
        container["args"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    let given = arguments.iter().find_map(|one| one.strip_prefix("--settings=")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(given).unwrap(), settings);
    for flag in [
        "--log=debug",
        "--pcrs=4,11",
        "--mirror=a.example/b=c.example/d",
        "--shared-sources=10.0.0.0/8",
        "--disk-keys=random256",
    ] {
        assert!(arguments.contains(&flag), "{flag}: {arguments:?}");
    }
    // The program accepts all of them, and Helm accepts nothing else.
    let mut deploy = Deploy::default();
    deploy.settings = given.parse().unwrap();
    for typo in ["setings.replicas=3", "settings.replica=3", "settings.services.kbs.type=X"] {
        assert!(helm("tec-operator", &namespace, &["--set", typo]).is_err(), "{typo}");
    }
}

#[tokio::test]
async fn what_a_cluster_object_deploys_applies_to_a_real_api_server() {
    let plane = ControlPlane::start().await.unwrap();
    plane.install_resources().await.unwrap();
    let client = plane.admin().unwrap();
    let namespace = plane.namespace("rendered").await.unwrap();
    let mut spec = TrustedExecutionClusterSpec::default();
    // A name that is invalid for a volume.
    spec.trustee_secret = Some("kbs.example.com".to_owned());
    spec.register_server_secret = Some(format!("{}.example.com", "r".repeat(63)));
    spec.attestation_key_register_secret = Some("ak.example.com".to_owned());
    let clusters: Api<TrustedExecutionCluster> = Api::namespaced(client.clone(), &namespace);
    let object = TrustedExecutionCluster::new("tec", spec);
    let stored = clusters.create(&PostParams::default(), &object).await;
    let files = TrusteeFiles::new("a = 1\n", "certificate", "public key");
    let files = BrokerFiles::Trustee(files);
    let objects = cluster(&stored.unwrap(), &Deploy::default(), &files).unwrap();
    let documents: Vec<Value> =
        objects.iter().map(|object| serde_json::to_value(object).unwrap()).collect();
    apply_all(&client, &documents).await;
    assert_ne!(namespace, DEFAULT_NAMESPACE);
}

#[tokio::test]
async fn an_admin_registers_a_machine_by_hand_and_revokes_it() {
    let plugin = Plugin::start().await;
    let refused = plugin.run(&["machine", "add", "--id", MACHINE]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(plugin.json(&["machine", "list"]).as_array().unwrap().is_empty());

    plugin.make_cluster().await;
    plugin.json(&["machine", "add", "--id", MACHINE, "--dry-run"]);
    assert!(plugin.json(&["machine", "list"]).as_array().unwrap().is_empty());
    let added = plugin.json(&["machine", "add", "--id", MACHINE]);
    let config = added.pointer("/ignition/storage/luks/0/clevis/custom/config");
    let config = config.and_then(Value::as_str).unwrap();
    assert!(config.contains("https://kbs.example.com:8080"), "{config}");
    assert_eq!(plugin.json(&["ignition", "machine", MACHINE]), added["ignition"]);
    let never = || String::from_utf8(plugin.run(&["explain", MACHINE]).stderr).unwrap();
    assert!(never().contains("it never reached the key broker"), "{}", never());

    plugin.json(&["machine", "quarantine", MACHINE, "--reason", "moved"]);
    let object = || async { plugin.api::<Machine>().get(&format!("machine-{MACHINE}")).await };
    assert_eq!(object().await.unwrap().spec.quarantine_reason.as_deref(), Some("moved"));
    plugin.json(&["machine", "revoke", MACHINE, "--yes"]);
    assert!(never().contains("is revoked, so it gets no key"), "{}", never());
    plugin.json(&["machine", "remove", MACHINE, "--yes"]);
    assert_eq!(plugin.run(&["machine", "show", MACHINE]).status.code(), Some(1));
}

#[tokio::test]
async fn an_approval_counts_for_the_key_that_was_looked_at() {
    let plugin = Plugin::start().await;
    let mut key = sample::ak(1, 1);
    key.machine = MACHINE.parse().unwrap();
    let spec = AttestationKey::from_core(&key).spec;
    let keys: Api<AttestationKey> = plugin.api();
    let object = AttestationKey::new("ak-1", spec);
    keys.create(&PostParams::default(), &object).await.unwrap();

    let listed = plugin.json(&["ak", "list", "--machine", MACHINE]);
    let fingerprint = key.fingerprint().to_string();
    assert_eq!(listed[0]["state"], "pending");
    let others = "0b5e1f4a-9d7b-4c38-8a51-5f0f9f6a7c11";
    let listed = plugin.json(&["ak", "list", "--machine", others]);
    assert!(listed.as_array().unwrap().is_empty());
    plugin.json(&["ak", "approve", "ak-1", "--dry-run"]);
    assert!(!keys.get("ak-1").await.unwrap().is_approved_by_admin());
    // An object may have any name.
    plugin.json(&["ak", "approve", &fingerprint[..12]]);
    assert!(keys.get("ak-1").await.unwrap().is_approved_by_admin());
    let change = Patch::Merge(json!({"spec": {"publicKey": "another key"}}));
    keys.patch("ak-1", &PatchParams::default(), &change).await.unwrap();
    assert!(!keys.get("ak-1").await.unwrap().is_approved_by_admin());

    plugin.json(&["ak", "revoke", "ak-1"]);
    assert!(keys.get("ak-1").await.unwrap().spec.revoked_at.is_some());
}

#[tokio::test]
async fn an_installer_is_told_where_to_register_and_with_which_token() {
    let plugin = Plugin::start().await;
    plugin.make_cluster().await;
    let token = plugin.link.with_file_name("token");
    std::fs::write(&token, "sesame\n").unwrap();
    let url = ["--url", "https://register.example.com:8000"];
    let file = ["--token-file", token.to_str().unwrap()];
    let config = plugin.json(&[&["ignition", "merge"], &url[..], &file[..]].concat());
    let merge = &config["ignition"]["config"]["merge"][0];
    let source = merge["source"].as_str().unwrap();
    assert!(source.starts_with("https://register.example.com:8000/"), "{source}");
    assert_eq!(merge["httpHeaders"][0]["value"], "Bearer sesame");
    // Without a file, it is the token that the operator created.
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "registration-token"}, "stringData": {"token": "of-the-operator"},
    }))
    .unwrap();
    let created = plugin.api().create(&PostParams::default(), &secret).await;
    created.unwrap();
    let config = plugin.json(&[&["ignition", "merge"], &url[..]].concat());
    let merge = &config["ignition"]["config"]["merge"][0];
    assert_eq!(merge["httpHeaders"][0]["value"], "Bearer of-the-operator");
}

#[tokio::test]
async fn an_image_is_approved_by_its_whole_digest_only() {
    let plugin = Plugin::start().await;
    let short = plugin.run(&["image", "approve", "coreos", "registry.example/os@sha256:0"]);
    assert_eq!(short.status.code(), Some(1));
    let whole = format!("registry.example/os@sha256:{}", "0".repeat(64));
    plugin.json(&["image", "approve", "coreos", &whole, "--for", "2h"]);
    let images = plugin.json(&["image", "list"]);
    assert_eq!(images[0]["reference"], *whole);
    assert!(images[0]["expires_at"].is_string());
    assert_eq!(images[0]["held_back"], "its measurements are not known yet");
    plugin.json(&["image", "revoke", "coreos", "--yes"]);
    let images = plugin.json(&["image", "list"]);
    assert!(images[0]["revoked_at"].is_string());
}

#[tokio::test]
async fn status_and_check_say_what_is_missing() {
    let plugin = Plugin::start().await;
    assert_eq!(plugin.run(&["status"]).status.code(), Some(3));
    let output = plugin.run(&["check"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let outcome = |id: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["id"] == id).unwrap();
        check["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(outcome("kubernetes-version"), "ok");
    assert_eq!(outcome("definitions"), "ok");
    assert_eq!(outcome("operator"), "failed");
    assert_eq!(outcome("one-cluster"), "failed");
}

#[tokio::test]
async fn a_support_bundle_holds_no_secret() {
    let plugin = Plugin::start().await;
    plugin.make_cluster().await;
    let file = plugin.link.with_file_name("bundle.tar.gz");
    let path = file.to_str().unwrap();
    let manifest = plugin.json(&["support-bundle", "--file", path]);
    let entries = manifest["entries"].as_array().unwrap();
    let holds = |name: &str| entries.iter().any(|entry| entry["path"] == name);
    assert!(holds("objects/trustedexecutionclusters.json"));
    assert!(!holds("objects/secrets.json"));
    let listed = Command::new("tar").args(["-xzOf", path]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.contains("kbs.example.com"));
    assert!(!text.contains("the CA"));
    // It never overwrites a file.
    let again = plugin.run(&["support-bundle", "--file", path]);
    assert_eq!(again.status.code(), Some(1));
}

#[tokio::test]
async fn a_user_without_rights_is_told_so() {
    let plugin = Plugin::start().await;
    let token = plugin.plane.account_token(&plugin.namespace, "nobody", &[]).await.unwrap();
    let kubeconfig = plugin.plane.kubeconfig("nobody", &token).unwrap();
    let output = Command::new(&plugin.link)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--namespace", &plugin.namespace, "machine", "list"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("TEC-C403"), "{stderr}");
    let machines: Api<Machine> = plugin.api();
    assert!(machines.list(&kube::api::ListParams::default()).await.is_ok());
}
