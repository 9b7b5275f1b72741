//! TLS by default: what a cluster object without certificates gets.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tec_e2e::kube::{Bench, Server, eventually};
use tec_e2e::settings::own_program;
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::render::Component;

const DAY: i64 = 86_400;
const CONFIG: &str = "ignition-clevis-pin-trustee";
/// Port of probes and metrics, which are not secret.
const STATUS_PORT: i64 = 9090;
/// Name of the CA that the operator creates if the object names none.
const CA: &str = "trust-anchor-ca";
const LEAVES: [&str; 3] =
    ["tec-kbs-tls", "tec-register-server-tls", "tec-attestation-key-register-tls"];

pub(crate) fn object(spec: &Value) -> TrustedExecutionCluster {
    serde_json::from_value(json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": "TrustedExecutionCluster", "metadata": {"name": "cluster"}, "spec": spec,
    }))
    .unwrap()
}

/// Upstream's examples, which name no certificate.
fn plainest() -> TrustedExecutionCluster {
    object(&json!({
        "publicTrusteeAddr": "kbs.example:8080",
        "publicAttestationKeyRegisterAddr": "keys.example:8001",
    }))
}

async fn cluster(bench: &Bench) -> TrustedExecutionCluster {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    clusters.get("cluster").await.unwrap()
}

/// Status, reason and message of a condition of the cluster object.
pub(crate) async fn condition(bench: &Bench, kind: &str) -> [String; 3] {
    let status = cluster(bench).await.status.unwrap_or_default();
    let found = status.conditions.into_iter().find(|c| c.type_ == kind);
    let found = found.map(|c| [c.status, c.reason, c.message]);
    found.unwrap_or_default()
}

pub(crate) async fn until(bench: &Bench, kind: &str, status: &str, reason: &str) -> String {
    let mut seen = <[String; 3]>::default();
    let came = eventually(&format!("{kind} is {status} {reason}"), async || {
        seen = condition(bench, kind).await;
        Ok(seen[0] == status && seen[1] == reason)
    })
    .await;
    assert!(came.is_ok(), "{seen:?}");
    seen[2].clone()
}

async fn patch(bench: &Bench, spec: &Value) -> Result<(), String> {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let patch = Patch::Merge(json!({ "spec": spec }));
    let patched = clusters.patch("cluster", &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(|error| error.to_string())
}

pub(crate) async fn deployments(bench: &Bench) -> Vec<(String, PodSpec)> {
    let all = bench.objects::<Deployment>().unwrap();
    let all = all.list(&ListParams::default()).await.unwrap();
    let pod = |deployment: Deployment| {
        let name = deployment.name_any();
        (name, deployment.spec.unwrap().template.spec.unwrap())
    };
    all.into_iter().map(pod).collect()
}

async fn secret(bench: &Bench, name: &str) -> Option<Secret> {
    let secrets = bench.objects::<Secret>().unwrap();
    secrets.get_opt(name).await.unwrap()
}

pub(crate) async fn entry(bench: &Bench, name: &str, key: &str) -> Option<String> {
    let data = secret(bench, name).await?.data?;
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

/// Flags of a pod's only container, with its Secrets mounted as by a kubelet.
pub(crate) async fn mounted(bench: &Bench, pod: &PodSpec, directory: &Path) -> Vec<OsString> {
    let container = &pod.containers[0];
    let mut flags = container.args.clone().unwrap();
    flags.retain(|flag| !flag.starts_with("--port=") && !flag.starts_with("--metrics-addr="));
    for mount in container.volume_mounts.iter().flatten() {
        let mut volumes = pod.volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == mount.name).unwrap();
        let name = volume.secret.as_ref().unwrap().secret_name.clone().unwrap();
        let place = directory.join(&mount.name);
        std::fs::create_dir_all(&place).unwrap();
        for (key, bytes) in secret(bench, &name).await.unwrap().data.unwrap() {
            std::fs::write(place.join(key), bytes.0).unwrap();
        }
        for flag in &mut flags {
            *flag = flag.replace(&mount.mount_path, place.to_str().unwrap());
        }
    }
    flags.into_iter().map(OsString::from).collect()
}

/// The config that a node gets on first boot from the deployed registration server, by the server's name in
/// the cluster.
async fn registered(bench: &Bench) -> Value {
    let pods = deployments(bench).await;
    let (name, pod) = pods.iter().find(|(name, _)| name == "register-server").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let flags = mounted(bench, pod, directory.path()).await;
    let flags: Vec<&OsStr> = flags.iter().map(OsString::as_os_str).collect();
    let component = Component::RegisterServer;
    let server = Server::start(&bench.plane, component, &bench.namespace, &flags);
    let server = server.await.unwrap();
    let address: SocketAddr = server.address.parse().unwrap();
    let authority = entry(bench, CA, "tls.crt").await.unwrap();
    let authority = reqwest::Certificate::from_pem(authority.as_bytes()).unwrap();
    let host = format!("{name}.{}.svc", bench.namespace);
    let client =
        reqwest::Client::builder().no_proxy().tls_certs_only([authority]).resolve(&host, address);
    let url = format!("https://{host}:{}/{CONFIG}", address.port());
    let client = client.build().unwrap();
    let token = entry(bench, "registration-token", "token").await.unwrap();
    let mut config = Value::Null;
    let answered = eventually("a node is registered", async || {
        let answer = client.get(&url).bearer_auth(&token).send().await?;
        let is_ok = answer.status() == 200;
        config = serde_json::from_str(&answer.text().await?).unwrap_or_default();
        Ok(is_ok)
    })
    .await;
    assert!(answered.is_ok(), "{answered:?} {config}");
    config
}

fn pin(config: &Value) -> Value {
    let clevis = &config["storage"]["luks"][0]["clevis"]["custom"];
    serde_json::from_str(clevis["config"].as_str().unwrap()).unwrap()
}

/// The output of `kubectl tec` for these arguments.
fn kubectl_tec(bench: &Bench, words: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("kubectl-tec");
    std::os::unix::fs::symlink(own_program("tec").unwrap(), &link).unwrap();
    let ran = Command::new(link)
        .arg("--kubeconfig")
        .arg(bench.plane.admin_kubeconfig().unwrap())
        .args(["--namespace", &bench.namespace])
        .args(words)
        .output()
        .unwrap();
    String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned()
}

#[tokio::test]
async fn a_fresh_install_without_any_flag_has_tls_everywhere_and_says_so() {
    let bench = Bench::new().await.unwrap();
    bench.create(&plainest()).await.unwrap();
    let operator = bench.start_program("one", &[]).unwrap();
    until(&bench, "Installed", "True", "InstallationCompleted").await;

    let pods = deployments(&bench).await;
    assert_eq!(pods.len(), 3);
    for (name, pod) in &pods {
        let json = serde_json::to_value(pod).unwrap();
        assert!(!json.to_string().contains("dangerous"), "{name}: {json}");
        let mounts = json["volumes"].as_array().unwrap();
        let tls = mounts.iter().find(|volume| volume["name"] == "tls");
        let from = tls.unwrap()["secret"]["secretName"].as_str().unwrap();
        assert!(LEAVES.contains(&from), "{name} serves {from}");
        for container in json["containers"].as_array().unwrap() {
            for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
                let asked = &container[probe]["httpGet"];
                let is_status = asked["port"].as_i64() == Some(STATUS_PORT);
                let is_tls = asked.is_null() || asked["scheme"] == "HTTPS";
                assert!(is_tls || is_status, "{name} {probe}: {asked}");
            }
        }
    }
    let authority = entry(&bench, CA, "tls.crt").await.unwrap();
    let pin = pin(&registered(&bench).await);
    assert_eq!(pin["servers"], json!([{"url": "https://kbs.example:8080", "cert": authority}]));
    let registration = &pin["attestation_key"]["registration"];
    assert_eq!(registration["url"], "https://keys.example:8001/register-ak");
    assert_eq!(registration["cert"], json!(authority));

    until(&bench, "TLS", "True", "TlsEverywhere").await;
    let targets = async || cluster(&bench).await.status.unwrap().targets;
    eventually("the target is reported", async || Ok(!targets().await.is_empty())).await.unwrap();
    let said = targets().await[0].message.clone().unwrap_or_default();
    assert!(!said.contains("http://"), "{said}");
    let check = kubectl_tec(&bench, &["check"]);
    assert!(check.contains(" ok TLS: TlsEverywhere"), "{check}");
    let merge = ["ignition", "merge", "--url", "https://register.example:8000"];
    let merge = kubectl_tec(&bench, &merge);
    assert!(merge.contains("certificateAuthorities"), "{merge}");
    let log = operator.log().unwrap();
    assert!(!log.contains("forbidden") && !log.contains("clear text"), "{log}");
}

#[tokio::test]
async fn plain_http_is_named_in_the_object_and_told_to_people() {
    let bench = Bench::new().await.unwrap();
    let mut named = plainest();
    named.spec = serde_json::from_value(json!({
        "publicTrusteeAddr": "kbs.example:8080", "dangerousPlainHttp": true,
    }))
    .unwrap();
    bench.create(&named).await.unwrap();
    let _operator = bench.start_program("one", &[]).unwrap();
    let said = until(&bench, "TLS", "False", "DangerousPlainHttp").await;
    assert!(said.contains("trustee"), "{said}");
    for (name, pod) in deployments(&bench).await {
        let args = serde_json::to_string(&pod.containers).unwrap();
        assert!(args.contains("--dangerous-plain-http"), "{name}: {args}");
    }
    assert!(secret(&bench, CA).await.is_none());
    let check = kubectl_tec(&bench, &["check"]);
    assert!(check.contains("!! TLS: DangerousPlainHttp"), "{check}");

    // Switching to TLS is a decision; there is no way back.
    patch(&bench, &json!({"dangerousPlainHttp": false})).await.unwrap();
    until(&bench, "TLS", "True", "TlsEverywhere").await;
    let back = patch(&bench, &json!({"dangerousPlainHttp": true})).await;
    assert!(back.unwrap_err().contains("cannot return to plain HTTP"));
}

#[tokio::test]
async fn a_cluster_that_serves_plain_http_keeps_its_nodes_until_an_admin_decides() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&plainest()).await.unwrap();
    // The state left by an operator without TLS by default.
    let status = json!({"status": {"conditions": [{
        "type": "Installed", "status": "True", "reason": "InstallationCompleted",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let params = PatchParams::default();
    clusters.patch_status("cluster", &params, &Patch::Merge(status)).await.unwrap();
    bench.start("one").unwrap();
    let said = until(&bench, "TLS", "False", "PlainHttpUndecided").await;
    let command = "kubectl patch trustedexecutioncluster cluster";
    assert!(said.contains(command), "{said}");
    until(&bench, "Ready", "False", "PlainHttpUndecided").await;
    assert!(secret(&bench, CA).await.is_none());
    for (name, pod) in deployments(&bench).await {
        let args = serde_json::to_string(&pod.containers).unwrap();
        assert!(args.contains("--dangerous-plain-http"), "{name}: {args}");
    }
    // A new leader decides the same.
    bench.stop().await.unwrap();
    bench.start("two").unwrap();
    patch(&bench, &json!({"dangerousPlainHttp": false})).await.unwrap();
    until(&bench, "TLS", "True", "TlsEverywhere").await;
    for (name, pod) in deployments(&bench).await {
        let args = serde_json::to_string(&pod.containers).unwrap();
        assert!(!args.contains("--dangerous-plain-http"), "{name}: {args}");
    }
}

#[tokio::test]
async fn certificates_are_renewed_in_time_and_their_authority_stays() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&plainest()).await.unwrap();
    bench.start("one").unwrap();
    until(&bench, "TLS", "True", "TlsEverywhere").await;
    let all = async |bench: &Bench| {
        let mut all = Vec::new();
        for name in LEAVES {
            all.push(entry(bench, name, "tls.crt").await.unwrap());
        }
        all
    };
    let authority = entry(&bench, CA, "tls.key").await;
    // A third of 90 days is left; then the clock is found to be ahead.
    for (instance, days) in [("two", 61), ("three", -61)] {
        let before = all(&bench).await;
        bench.stop().await.unwrap();
        bench.clock.advance(days * DAY);
        bench.start(instance).unwrap();
        eventually("all leaves are new", async || {
            let now = all(&bench).await;
            Ok(now.iter().zip(&before).all(|(now, old)| now != old))
        })
        .await
        .unwrap();
    }
    assert_eq!(entry(&bench, CA, "tls.key").await, authority);
    let owner = secret(&bench, CA).await.unwrap();
    let owner = &owner.owner_references()[0];
    assert_eq!(Some(&owner.uid), cluster(&bench).await.metadata.uid.as_ref());
}

#[tokio::test]
async fn an_authority_that_is_lost_is_not_replaced_while_nodes_pin_it() {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&plainest()).await.unwrap();
    bench.start("one").unwrap();
    until(&bench, "TLS", "True", "TlsEverywhere").await;
    let (secrets, gone) = (bench.objects::<Secret>().unwrap(), DeleteParams::default());
    secrets.delete(CA, &gone).await.unwrap();
    let said = until(&bench, "Ready", "False", "ApplyFailed").await;
    assert!(said.contains(CA) && said.contains("backup"), "{said}");
    assert!(secret(&bench, CA).await.is_none());
    // Removing the leaves, too, states that no one needs it.
    for name in LEAVES {
        secrets.delete(name, &gone).await.unwrap();
    }
    eventually("there is another authority", async || {
        Ok(secret(&bench, CA).await.is_some() && secret(&bench, LEAVES[2]).await.is_some())
    })
    .await
    .unwrap();
}
