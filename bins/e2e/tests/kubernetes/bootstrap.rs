//! `tec bootstrap` on a cluster that serves several future clusters, each in its namespace: from an API
//! server without any of this to a namespace that a node could boot from.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::Value;
use tec_e2e::kube::{Broker, ControlPlane, Guarded, program, start_operator_with, within};
use tec_e2e::packages::REGISTRY;
use tec_e2e::process::Transcript;
use tec_e2e::runbook::commands;
use tec_e2e::settings::{Settings, own_program};
use tec_k8s::api::{ApprovedImage, TrustedExecutionCluster};
use tec_k8s::render::DANGEROUS_DELETE;
use tec_support::exit::{FAILED, NOT_READY, OK};
use tec_support::testing::free_port;
use tempfile::TempDir;

/// Deadline for the operator, on a machine that is also busy otherwise.
const LONG: Duration = Duration::from_mins(2);
const ACCOUNT: &str = "trusted-cluster-operator";

struct World {
    plane: ControlPlane,
    settings: Settings,
    logs: Transcript,
    directory: TempDir,
}

/// A namespace, and its addresses for nodes: registration, key registration, key broker.
struct Place<'a> {
    world: &'a World,
    namespace: &'static str,
    ports: [u16; 3],
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("unused.html");
        Self {
            plane: ControlPlane::start().await.unwrap(),
            settings: Settings::for_tests(&report).unwrap(),
            logs: Transcript::new(directory.path().join("logs")).unwrap(),
            directory,
        }
    }

    fn place(&self, namespace: &'static str) -> Place<'_> {
        Place { world: self, namespace, ports: [0; 3].map(|_| free_port().unwrap()) }
    }
}

impl Place<'_> {
    /// Runs `tec bootstrap`; returns the exit code and the output.
    fn bootstrap(&self, verb: &str, words: &[&str]) -> (u8, Value) {
        let mut command = Command::new(own_program("tec").unwrap());
        let kubeconfig = self.world.plane.admin_kubeconfig().unwrap();
        command.args(["--output=json", "--log=warn", "--state-dir=/nonexistent"]);
        command.args(["bootstrap", verb, "--namespace", self.namespace]);
        command.arg("--kubeconfig").arg(kubeconfig).args(words);
        let ran = self.world.logs.run(&mut command).unwrap();
        let printed = serde_json::from_slice(&ran.stdout).unwrap_or(Value::Null);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        let printed = if printed.is_null() { said.into() } else { printed };
        (u8::try_from(ran.status.code().unwrap()).unwrap(), printed)
    }

    /// Runs `tec bootstrap init` with the addresses of this place.
    fn try_init(&self, words: &[&str]) -> (u8, Value) {
        let [register, ak, kbs] = self.ports.map(|port| format!("127.0.0.1:{port}"));
        let own = ["--public-host=localhost", "--registry", REGISTRY, "--register-addr", &register];
        let own = [&own[..], &["--ak-addr", &ak, "--kbs-addr", &kbs]].concat();
        self.bootstrap("init", &[&own, words].concat())
    }

    fn init(&self, words: &[&str]) -> Value {
        let (code, founded) = self.try_init(words);
        assert_eq!(code, OK, "{founded}");
        founded
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.world.plane.admin().unwrap(), self.namespace)
    }

    /// The entries of a Secret, as mounted by a kubelet.
    async fn mounted(&self, name: &str) -> PathBuf {
        let directory = self.world.directory.path().join(self.namespace).join(name);
        fs::create_dir_all(&directory).unwrap();
        let secret = self.secrets().get(name).await.unwrap();
        for (entry, bytes) in secret.data.unwrap() {
            fs::write(directory.join(entry), bytes.0).unwrap();
        }
        directory
    }

    /// A program with the permissions that the installation granted its account, and the certificate that was
    /// created for it.
    async fn run(&self, name: &str, account: &str, flags: &[String]) -> Guarded {
        let plane = &self.world.plane;
        let kubeconfig = plane.account_kubeconfig(self.namespace, account).await.unwrap();
        let environment =
            [("KUBECONFIG", kubeconfig.as_os_str()), ("POD_NAMESPACE", OsStr::new(self.namespace))];
        let logs = plane.logs();
        Guarded::start(name, &program(name).unwrap(), flags, &environment, logs).unwrap()
    }

    /// Starts everything that the operator would deploy, as processes.
    async fn deploy(&self, broker: &Broker) -> Vec<Guarded> {
        let plane = &self.world.plane;
        let kubeconfig = plane.account_kubeconfig(self.namespace, ACCOUNT).await.unwrap();
        let flags = ["--trustee-url", broker.url(), "--pcrs", "4"];
        let who = ("one", kubeconfig.as_path());
        let operator = start_operator_with(plane, self.namespace, who, &flags).unwrap();
        let [register, ak, kbs] = self.ports;
        let tls = |directory: &PathBuf, names: [&str; 2]| {
            let [certificate, key] = names;
            let directory = directory.display();
            [format!("--{certificate}={directory}/tls.crt"), format!("--{key}={directory}/tls.key")]
        };
        let [kbs_tls, register_tls, ak_tls] = [
            self.mounted("trustee-tls").await,
            self.mounted("register-server-tls").await,
            self.mounted("attestation-key-register-tls").await,
        ];
        let front = |port: u16, directory: &PathBuf| {
            let [certificate, key] = tls(directory, ["cert-path", "key-path"]);
            vec![certificate, key, "--bind=127.0.0.1".to_owned(), format!("--port={port}")]
        };
        let mut registration = front(register, &register_tls);
        registration.push(format!("--kbs-ca={}/ca.crt", kbs_tls.display()));
        registration.push(format!("--ak-ca={}/ca.crt", ak_tls.display()));
        let token = self.mounted("trust-registration-token").await;
        registration.push(format!("--token-file={}/token", token.display()));
        let state = self.world.directory.path().join("guard");
        let upstream = broker.url().replace("http://", "");
        let [certificate, key] = tls(&kbs_tls, ["tls-cert", "tls-key"]);
        let guard = [
            format!("--listen=127.0.0.1:{kbs}"),
            format!("--upstream={upstream}"),
            "--kubernetes".to_owned(),
            format!("--state-dir={}", state.display()),
            certificate,
            key,
        ];
        vec![
            operator,
            self.run("register-server", "register-server", &registration).await,
            self.run("attestation-key-register", "attestation-key-register", &front(ak, &ak_tls))
                .await,
            self.run("kbs-guard", "trustee", &guard).await,
        ]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_of_another_cluster_becomes_an_anchor_that_nodes_accept() {
    let world = World::start().await;
    let place = world.place("first-to-be");
    let token = world.directory.path().join("token");
    fs::write(&token, "a token of some length\n").unwrap();
    let token = format!("--registration-token-file={}", token.display());
    let image = world.settings.image("current");
    let image = format!("debian={}", image.display());
    let words = [&*token, "--image", &image, "--accept-unpinned", "--ak-approval=tofu"];
    let founded = place.init(&words);
    assert!(founded["made"].as_array().unwrap().len() > 20, "{founded}");
    let config = world.directory.path().join("installer.ign");
    fs::write(&config, founded["ignition"].to_string()).unwrap();
    let check = ["--ignition", config.to_str().unwrap()];
    let (code, report) = place.bootstrap("check", &check);
    assert_eq!(code, FAILED, "nobody serves yet: {report}");

    let broker = Broker::start(1).await.unwrap();
    let admin = broker.admin_secret();
    place.secrets().create(&PostParams::default(), &admin).await.unwrap();
    let programs = place.deploy(&broker).await;
    within(LONG, "a node could boot", async || Ok(place.bootstrap("check", &check).0 == OK))
        .await
        .unwrap();
    let (_, report) = place.bootstrap("check", &check);
    let seen: Vec<_> =
        report["nodes"].as_array().unwrap().iter().map(|check| &check["ok"]).collect();
    assert_eq!(seen, [true, true, true], "registration, key registration, key broker: {report}");

    let again = place.init(&words);
    assert_eq!(again["made"], serde_json::json!([]), "what is there stays");
    assert_eq!(again["anchor"], founded["anchor"]);
    assert_eq!(again["ignition"], founded["ignition"], "the CA, too");
    drop(programs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_to_be_share_a_cluster_and_nothing_else() {
    let world = World::start().await;
    let (one, two) = (world.place("one-to-be"), world.place("two-to-be"));
    let (first, second) = (one.init(&[]), two.init(&["--ak-approval=manual", "--pcrs=4,7"]));
    assert_ne!(first["anchor"], second["anchor"]);
    let ca = |founded: &Value| {
        founded["ignition"]["ignition"]["security"]["tls"]["certificateAuthorities"].clone()
    };
    assert!(!ca(&first).is_null());
    assert_ne!(ca(&first), ca(&second), "each has a CA of its own");
    for (place, policy) in [(&one, "FirstUse"), (&two, "Manual")] {
        let client = world.plane.admin().unwrap();
        let clusters: Api<TrustedExecutionCluster> = Api::namespaced(client, place.namespace);
        let cluster = clusters.list(&ListParams::default()).await.unwrap().items.remove(0);
        let spec = serde_json::to_value(&cluster.spec).unwrap();
        assert_eq!(spec["approval"]["policy"], policy);
        let kbs = format!("localhost:{}", place.ports[2]);
        assert_eq!(spec["publicTrusteeAddr"], kbs.as_str());
    }
    // An image approved by reference is measured by the operator, so nothing is known before.
    let digest = format!("registry.example/os@sha256:{:064x}", 1);
    two.init(&["--image", &format!("os={digest}")]);
    let client = world.plane.admin().unwrap();
    let images: Api<ApprovedImage> = Api::namespaced(client, two.namespace);
    let images = images.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(images[0].name_any(), "os");
    assert_eq!(images[0].spec.image, digest);
    let config = world.directory.path().join("two.ign");
    fs::write(&config, second["ignition"].to_string()).unwrap();
    let (code, report) = two.bootstrap("check", &["--ignition", config.to_str().unwrap()]);
    assert!([FAILED, NOT_READY].contains(&code), "{report}");
    assert_eq!(report["images"][0]["ok"], false, "{report}");
    definitions_are_kept(&world).await;
    run_page(&world);
}

/// Deleting a definition by accident, and with it the objects of all namespaces, is prevented.
async fn definitions_are_kept(world: &World) {
    let all: Api<CustomResourceDefinition> = Api::all(world.plane.admin().unwrap());
    let attempt = DeleteParams { dry_run: true, ..DeleteParams::default() };
    for crd in tec_k8s::api::crds() {
        within(LONG, "it is kept", async || {
            let refused = all.delete(&crd.name_any(), &attempt).await.err();
            Ok(refused.is_some_and(|error| error.to_string().contains(DANGEROUS_DELETE)))
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flag_is_dropped_on_the_way_into_a_namespace() {
    let world = World::start().await;
    let place = world.place("flags-to-be");
    let (code, said) = place.bootstrap("init", &["--ak-approval", "ek"]);
    assert!(code == FAILED && said.to_string().contains("--public-host is required"), "{said}");
    let file = |name: &str| {
        let path = world.directory.path().join(name);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
        format!("--ek-roots={}", path.display())
    };
    let (roots, other) = (file("roots.pem"), file("other.pem"));
    let words = ["--ak-approval=ek", &roots, "--pull-secret=pulls", "--assigned-pod-user"];
    let image = "--operator-image=tec-operator=registry.example/operator:1";
    place.init(&[&words[..], &[image, "--unclaimed-seconds=77"]].concat());

    let client = world.plane.admin().unwrap();
    let clusters: Api<TrustedExecutionCluster> = Api::namespaced(client.clone(), place.namespace);
    let spec = clusters.list(&ListParams::default()).await.unwrap().items.remove(0).spec;
    let spec = serde_json::to_value(&spec).unwrap();
    assert_eq!(spec["approval"]["policy"], "EndorsementKey");
    assert_eq!(spec["registration"]["unclaimedTtlSeconds"], 77);
    let config_map = spec["approval"]["endorsementRootsConfigMap"].as_str().unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), place.namespace);
    let data = config_maps.get(config_map).await.unwrap().data.unwrap();
    let text = fs::read_to_string(world.directory.path().join("roots.pem")).unwrap();
    assert_eq!(data["ca.crt"], text);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), place.namespace);
    let operator = deployments.get(ACCOUNT).await.unwrap().spec.unwrap().template.spec.unwrap();
    let container = &operator.containers[0];
    let arguments = container.args.clone().unwrap().join(" ");
    assert!(!arguments.contains("--pcrs"), "the operator's own choice: {arguments}");
    assert!(arguments.contains("--assigned-pod-user"), "{arguments}");
    assert_eq!(container.image.as_deref(), Some("registry.example/operator:1"));
    let accounts: Api<ServiceAccount> = Api::namespaced(client, place.namespace);
    let account = accounts.get(ACCOUNT).await.unwrap();
    assert_eq!(account.image_pull_secrets.unwrap()[0].name, "pulls");

    // Existing objects stay, and a request for something different is refused.
    for (flag, words) in [
        ("--ek-roots", ["--ak-approval=ek", &*other]),
        ("--ak-approval", ["--ak-approval=manual", "--max-claimed=10000"]),
        ("--max-claimed", ["--ak-approval=ek", "--max-claimed=7"]),
        ("--pcrs", ["--pcrs=4,7", "--max-claimed=10000"]),
        ("--kbs-rate", ["--kbs-rate=7", "--max-claimed=10000"]),
        ("--ek-roots", [&*roots, "--ak-approval=tofu"]),
    ] {
        let (code, said) = place.try_init(&words);
        assert!(code == FAILED && said.to_string().contains(flag), "{words:?}: {said}");
    }
    place.init(&["--ak-approval=ek", &roots]);
}

/// Runs the commands of the page on this topic.
fn run_page(world: &World) {
    let page = "how-to/move-trust-to-another-anchor.md";
    let section = "In a namespace of another cluster";
    let digest = "a".repeat(64);
    for words in commands(page, section, &[("DIGEST", &digest)]).unwrap() {
        let words = words.split(|word| word == ">").next().unwrap();
        let mut command = Command::new(own_program("tec").unwrap());
        command.env("KUBECONFIG", world.plane.admin_kubeconfig().unwrap());
        let printed = world.logs.must(command.args(&words[1..])).unwrap();
        assert!(printed.contains("https://first.example:8000/"), "{printed}");
    }
}
