//! The built-in key broker as several processes with the permissions of its account: they share only the API
//! server and what the operator mounts.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_core::port::{AttemptLog as _, Attester, Clock as _, ImageRegistry};
use tec_core::secret::SecretBytes;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Server, eventually, plain_cluster};
use tec_e2e::settings::own_program;
use tec_k8s::api::{AttestationRecord, BrokerKind, Machine, TrustedExecutionCluster};
use tec_k8s::client::{AttemptRecords, KubeRegistry};
use tec_k8s::render::Component;
use tec_support::SystemClock;
use tec_tpm::event_log::{EventKind, EventLogBuilder};
use tec_tpm::testing::SoftTpm;
use tec_trustee::client::RcarError;
use tokio::task::JoinSet;

use crate::fetch::fetch;
use crate::guard::bind;

const SHIM: &[u8] = b"shim";
pub(crate) const KERNEL: &[u8] = b"kernel";
const KERNEL_FILE: &str = "usr/lib/modules/6.1/vmlinuz";
/// Largest accepted body: more than a request contains.
const MAX_BODY: usize = 4 << 20;

/// Boots a machine, including its log.
pub(crate) fn boot(tpm: &SoftTpm, kernel: &[u8]) {
    boot_after(tpm, &[], kernel);
}

/// Same, after the firmware measured itself.
pub(crate) fn boot_after(tpm: &SoftTpm, firmware: &[(PcrIndex, EventKind, &str)], kernel: &[u8]) {
    let (pcr, mut log) = (PcrIndex::BOOT_MANAGER, EventLogBuilder::new());
    tpm.reboot();
    for (pcr, kind, text) in firmware {
        tpm.extend(*pcr, &Sha256Digest::of(text));
        log.measure(*pcr, *kind, text.as_bytes());
    }
    tpm.extend(pcr, &Sha256Digest::of([0; 4]));
    log.separator(pcr);
    for (file, name) in [(SHIM, r"\EFI\BOOT\BOOTX64.EFI"), (kernel, r"\vmlinuz")] {
        let digest = Sha256Digest::of(file);
        tpm.extend(pcr, &digest);
        log.image(digest, name);
    }
    tpm.set_event_log(log.build());
}

/// What a boot of this kernel measures.
pub(crate) fn expected(kernel: &[u8]) -> ExpectedPcrs {
    let (pcr, kind) = (PcrIndex::BOOT_MANAGER, "EV_EFI_BOOT_SERVICES_APPLICATION");
    let events = [
        ImageEvent::new("EV_SEPARATOR", pcr, Sha256Digest::of([0; 4]), "Pcr4Separator"),
        ImageEvent::new(kind, pcr, Sha256Digest::of(SHIM), "Pcr4Shim").from_file("EFI/shim"),
        ImageEvent::new(kind, pcr, Sha256Digest::of(kernel), "Pcr4Vmlinuz").from_file(KERNEL_FILE),
    ];
    ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr, events)])
}

fn image() -> ApprovedImage {
    let reference = format!("registry.example/os@sha256:{:064x}", 1);
    ApprovedImage::new(sample::image_name(1), reference, expected(KERNEL), SystemClock.now())
}

/// What the balancer does after a handshake step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    /// Kill the replica that answered.
    Kill,
}

/// Sends each handshake step to a different replica: auth to the first, attest to the second, the rest to the
/// third.
#[derive(Clone)]
struct Balancer {
    replicas: Arc<Mutex<Vec<Option<Server>>>>,
    after: Arc<Mutex<After>>,
    client: reqwest::Client,
}

impl Balancer {
    fn step(path: &str) -> usize {
        match path {
            path if path.ends_with("/auth") => 0,
            path if path.ends_with("/attest") => 1,
            _ => 2,
        }
    }

    async fn forward(State(balancer): State<Self>, request: Request) -> Response {
        let step = Self::step(request.uri().path());
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, MAX_BODY).await.unwrap();
        let address = {
            let replicas = balancer.replicas.lock().unwrap();
            replicas[step % replicas.len()].as_ref().unwrap().address.clone()
        };
        let url = format!("http://{address}{}", parts.uri.path_and_query().unwrap());
        let sent = balancer.client.request(parts.method, url).headers(parts.headers).body(body);
        let answer = sent.send().await.unwrap();
        let mut response = Response::builder().status(answer.status());
        for (name, value) in answer.headers() {
            if name != "transfer-encoding" {
                response = response.header(name, value);
            }
        }
        let body: Bytes = answer.bytes().await.unwrap();
        if step < 2 && *balancer.after.lock().unwrap() == After::Kill {
            balancer.replicas.lock().unwrap()[step] = None;
        }
        response.body(Body::from(body)).unwrap()
    }
}

pub(crate) struct World {
    pub(crate) bench: Bench,
    registry: KubeRegistry,
    balancer: Balancer,
    address: SocketAddr,
    _mounted: tempfile::TempDir,
    _server: JoinSet<()>,
}

pub(crate) fn builtin() -> TrustedExecutionCluster {
    let mut object = plain_cluster("cluster");
    object.spec.key_broker = Some(BrokerKind::Builtin);
    object
}

impl World {
    /// Machine 1 with this TPM's key, an approved image, and running operator and replicas.
    pub(crate) async fn new(tpm: &SoftTpm, replicas: usize) -> Self {
        Self::of(&builtin(), tpm, replicas).await
    }

    /// Like `new`, with this cluster object.
    pub(crate) async fn of(
        cluster: &TrustedExecutionCluster,
        tpm: &SoftTpm,
        replicas: usize,
    ) -> Self {
        Self::on(Bench::new().await.unwrap(), cluster, tpm, replicas).await
    }

    /// Like `of`, on this bench.
    pub(crate) async fn on(
        mut bench: Bench,
        cluster: &TrustedExecutionCluster,
        tpm: &SoftTpm,
        replicas: usize,
    ) -> Self {
        bench.create(cluster).await.unwrap();
        let clock = Arc::new(SystemClock);
        let registry = KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, clock);
        bind(&registry, sample::machine_id(1), tpm.public_key()).await;
        ImageRegistry::put(&registry, &image()).await.unwrap();
        bench.start("one").unwrap();
        let mounted = tempfile::tempdir().unwrap();
        let flags = flags(&bench, mounted.path()).await;
        let flags: Vec<&OsStr> = flags.iter().map(OsString::as_os_str).collect();
        let mut all = Vec::new();
        for _ in 0..replicas {
            let (component, namespace) = (Component::KeyBroker, &bench.namespace);
            let server = Server::start(&bench.plane, component, namespace, &flags).await;
            all.push(Some(server.unwrap()));
        }
        let balancer = Balancer {
            replicas: Arc::new(Mutex::new(all)),
            after: Arc::new(Mutex::new(After::Nothing)),
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
        };
        let router = Router::new().fallback(Balancer::forward).with_state(balancer.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { bench, registry, balancer, address, _mounted: mounted, _server: server }
    }

    /// The bench, and what must live as long as the broker is needed.
    pub(crate) fn into_bench(self) -> (Bench, impl Sized) {
        let Self { bench, balancer, _mounted: mounted, _server: server, .. } = self;
        (bench, (balancer, mounted, server))
    }

    /// Attests and fetches the disk key, like a node at boot.
    pub(crate) async fn fetch(&self, attester: &dyn Attester) -> Result<SecretBytes, Code> {
        self.fetch_key_of(1, attester).await
    }

    /// Like `fetch`, for the disk key of a machine that may be a different one.
    pub(crate) async fn fetch_key_of(
        &self,
        number: u64,
        attester: &dyn Attester,
    ) -> Result<SecretBytes, Code> {
        self.try_fetch(number, attester).await.map_err(|error| error.code())
    }

    /// Like `fetch_key_of`, returning everything that the broker sent.
    pub(crate) async fn try_fetch(
        &self,
        number: u64,
        attester: &dyn Attester,
    ) -> Result<SecretBytes, RcarError> {
        fetch(&self.url(), &sample::machine_id(number), attester).await
    }

    /// Address of a replica for nodes.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Address of the first replica's metrics.
    pub(crate) fn status(&self) -> String {
        let replicas = self.balancer.replicas.lock().unwrap();
        replicas[0].as_ref().unwrap().status.clone()
    }

    /// What the first replica logged.
    pub(crate) fn log(&self) -> String {
        let replicas = self.balancer.replicas.lock().unwrap();
        replicas[0].as_ref().unwrap().log().unwrap()
    }

    /// The disk key that the operator created.
    pub(crate) async fn disk_key(&self) -> SecretBytes {
        let name = sample::machine_id(1).to_string();
        let secrets = self.bench.objects::<Secret>().unwrap();
        let mut made = None;
        eventually("the disk key is made", async || {
            made = secrets.get_opt(&name).await?.and_then(|secret| secret.data);
            Ok(made.is_some())
        })
        .await
        .unwrap();
        SecretBytes::new(made.unwrap().remove("root").unwrap().0)
    }
}

/// Arguments of the broker in the Deployment, with the Secrets as files.
pub(crate) async fn flags(bench: &Bench, mounted: &Path) -> Vec<OsString> {
    let deployments = bench.objects::<Deployment>().unwrap();
    let mut found = None;
    eventually("the Deployment is there", async || {
        found = deployments.get_opt("key-broker").await?;
        Ok(found.is_some())
    })
    .await
    .unwrap();
    let pod = found.unwrap().spec.unwrap().template.spec.unwrap();
    let secrets = bench.objects::<Secret>().unwrap();
    let mut flags = Vec::new();
    for argument in pod.containers[0].args.clone().unwrap() {
        let (flag, value) = argument.split_once('=').unwrap_or((&argument, ""));
        match flag {
            "--pcrs" | "--evidence" | "--snp-id-key" | "--snp-measurement"
            | "--snp-minimum-tcb" => {
                flags.push(argument.clone().into());
            }
            "--signer-key" | "--session-key" => {
                let (dir, entry) = value.rsplit_once('/').unwrap();
                let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
                let volume = &mounts.iter().find(|mount| mount.mount_path == dir).unwrap().name;
                let volumes = pod.volumes.as_ref().unwrap();
                let secret = volumes.iter().find(|known| known.name == *volume).unwrap();
                let secret = secret.secret.as_ref().unwrap().secret_name.as_deref().unwrap();
                let secret = secrets.get(secret).await.unwrap();
                let file = mounted.join(volume);
                std::fs::write(&file, &secret.data.unwrap()[entry].0).unwrap();
                flags.push(format!("{flag}={}", file.display()).into());
            }
            _ => {}
        }
    }
    flags
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_replica_continues_what_another_one_began_and_was_killed() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    let world = World::new(&tpm, 3).await;
    let key = world.disk_key().await;
    let released = world.fetch(&tpm).await.unwrap();
    assert!(released.ct_eq(&key));
    *world.balancer.after.lock().unwrap() = After::Kill;
    let released = world.fetch(&tpm).await.unwrap();
    assert!(released.ct_eq(&key), "auth and attest were answered by replicas that are gone");
    let alive = world.balancer.replicas.lock().unwrap().iter().flatten().count();
    assert_eq!(alive, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_boot_is_refused_with_its_component_and_the_record_outlives_the_broker() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    let world = World::new(&tpm, 1).await;
    world.disk_key().await;
    world.fetch(&tpm).await.unwrap();
    boot(&tpm, b"another kernel");
    assert_eq!(world.fetch(&tpm).await.unwrap_err(), Code::PcrMismatch);
    world.balancer.replicas.lock().unwrap().clear();

    let machine = Some(sample::machine_id(1));
    let records = AttemptRecords::new(world.registry.clone());
    let attempts = records.latest(machine, 10).await.unwrap();
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert!(attempts[1].ladder.is_released());
    let objects = world.bench.objects::<AttestationRecord>().unwrap();
    let all = objects.list(&ListParams::default()).await.unwrap().items;
    let machines = world.bench.objects::<Machine>().unwrap();
    let owner = machines.get(&Machine::name_of(&sample::machine_id(1))).await.unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(Some(&all[0].owner_references()[0].uid), owner.uid().as_ref());

    let explained = explain(&world.bench).await;
    for part in ["TEC-A412", "kernel", KERNEL_FILE, &attempts[0].id.to_string()] {
        assert!(explained.contains(part), "{part} in {explained}");
    }
}

/// The output of `kubectl tec explain` for machine 1.
async fn explain(bench: &Bench) -> String {
    let kubeconfig = bench.plane.admin_kubeconfig().unwrap();
    let mut plugin = Command::new(own_program("tec").unwrap());
    plugin.args(["--namespace", &bench.namespace, "--kubeconfig"]).arg(kubeconfig);
    plugin.args(["explain", &sample::machine_id(1).to_string()]);
    let output = tokio::task::spawn_blocking(move || plugin.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantined_machine_gets_no_key_from_any_replica() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    let world = World::new(&tpm, 2).await;
    world.disk_key().await;
    world.fetch(&tpm).await.unwrap();
    let machines = world.bench.objects::<Machine>().unwrap();
    let name = Machine::name_of(&sample::machine_id(1));
    let change = async |since: Option<String>| {
        let patch = Patch::Merge(json!({"spec": {"quarantinedAt": since}}));
        machines.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    };
    change(Some(SystemClock.now().to_string())).await;
    for _ in 0..2 {
        assert_eq!(world.fetch(&tpm).await.unwrap_err(), Code::MachineQuarantined);
    }
    change(None).await;
    world.fetch(&tpm).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_machine_gets_nothing_and_a_stranger_costs_no_object() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    let world = World::new(&tpm, 1).await;
    world.disk_key().await;
    world.fetch(&tpm).await.unwrap();
    let machines = world.bench.objects::<Machine>().unwrap();
    let name = Machine::name_of(&sample::machine_id(1));
    let now = SystemClock.now().to_string();
    let patch = Patch::Merge(json!({"spec": {"revokedAt": now}}));
    machines.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(world.fetch(&tpm).await.unwrap_err(), Code::MachineUnknown);

    let stranger = SoftTpm::rsa(2);
    boot(&stranger, KERNEL);
    world.fetch(&stranger).await.unwrap_err();
    let objects = world.bench.objects::<AttestationRecord>().unwrap();
    let of_strangers = AttestationRecord::name_of(None);
    eventually("strangers have one record", async || {
        Ok(objects.get_opt(&of_strangers).await?.is_some())
    })
    .await
    .unwrap();
    let all = objects.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(all.len(), 2, "one for the machine, one for everybody else");
}

#[tokio::test]
async fn nodes_reach_the_old_key_broker_until_the_new_one_is_available() {
    let mut bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
    let deployments = bench.objects::<Deployment>().unwrap();
    let services = bench.objects::<Service>().unwrap();
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let available = async |name: &str| {
        let now = "2026-01-01T00:00:00Z";
        let status = json!({"status": {"conditions": [{
            "type": "Available", "status": "True", "lastTransitionTime": now, "lastUpdateTime": now,
        }]}});
        let exists = async || Ok(deployments.get_opt(name).await?.is_some());
        eventually("the Deployment is there", exists).await.unwrap();
        let params = PatchParams::default();
        deployments.patch_status(name, &params, &Patch::Merge(status)).await.unwrap();
    };
    let switch = async |to: &str| {
        let patch = Patch::Merge(json!({"spec": {"keyBroker": to}}));
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
    };
    let served = async || {
        let spec = services.get("kbs-service").await?.spec.unwrap_or_default();
        anyhow::Ok(spec.selector.unwrap_or_default().remove("app").unwrap_or_default())
    };
    for (to, new, new_app, old, old_app) in [
        ("Builtin", "key-broker", "key-broker", "trustee-deployment", "kbs"),
        ("Trustee", "trustee-deployment", "kbs", "key-broker", "key-broker"),
    ] {
        available(old).await;
        switch(to).await;
        let exists = async || Ok(deployments.get_opt(new).await?.is_some());
        eventually("the new one is there", exists).await.unwrap();
        assert_eq!(served().await.unwrap(), old_app, "the new one is not available");
        available(new).await;
        eventually("nodes reach the new one", async || Ok(served().await? == new_app))
            .await
            .unwrap();
        let is_gone = async || Ok(deployments.get_opt(old).await?.is_none());
        eventually("the old one is removed", is_gone).await.unwrap();
    }
    bench.stop().await.unwrap();
}
