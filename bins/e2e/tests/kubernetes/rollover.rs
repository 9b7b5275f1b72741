//! The CA that nodes pin is replaced: nodes with real disks follow by themselves, and one that does not
//! follow delays the replacement.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{fs, io::Write as _};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::ak::PublicKey;
use tec_core::digest::Sha256Digest;
use tec_core::id::ResourcePath;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_core::port::{Clock as _, ImageRegistry};
use tec_core::rollover::{OVERLAP, fingerprints};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Guarded, Prometheus, Server, eventually, program, rights};
use tec_k8s::api::{DANGEROUS_REPLACE_CA, Machine, REPLACE_CA, TrustedExecutionCluster};
use tec_k8s::client::KubeRegistry;
use tec_k8s::render::Component;
use tec_support::SystemClock;
use tec_tpm::testing::{SoftTpm, Swtpm};
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::Tpm;

use crate::guard;
use crate::guard::bind;
use crate::standing;
use crate::tls::{condition, deployments, entry, mounted, object, until};

const CA: &str = "trust-anchor-ca";
const LEAF: &str = "tec-kbs-tls";
/// Annotation that the operator sets on the CA's Secret.
const PUBLISHED_AT: &str = "trusted-execution-clusters.io/published-at";
const CONDITION: &str = "CertificateAuthority";
const PASSPHRASE: &[u8] = b"first";

fn cluster(broker: &str) -> TrustedExecutionCluster {
    object(&json!({"publicTrusteeAddr": "127.0.0.1:8080", "keyBroker": broker}))
}

/// A machine with this key, an approved image whose boot extends PCR 4 with one kernel, and the operator.
async fn at_work(broker: &str, (machine, key): (u64, PublicKey)) -> Bench {
    let mut bench = Bench::new().await.unwrap();
    bench.create(&cluster(broker)).await.unwrap();
    let clock = std::sync::Arc::new(SystemClock);
    let registry = KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, clock);
    let pcr = PcrIndex::BOOT_MANAGER;
    let event = ImageEvent::new("EV", pcr, Sha256Digest::of("kernel"), "Pcr4Vmlinuz");
    let expected = ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr, [event])]);
    let reference = format!("registry.example/os@sha256:{:064x}", 1);
    let image = ApprovedImage::new(sample::image_name(1), reference, expected, SystemClock.now());
    ImageRegistry::put(&registry, &image).await.unwrap();
    bind(&registry, sample::machine_id(machine), key).await;
    bench.start("one").unwrap();
    until(&bench, CONDITION, "True", "AuthorityCurrent").await;
    bench
}

async fn annotate(bench: &Bench, annotation: &str, value: &str) {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {annotation: value}}}));
    clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
}

async fn ca(bench: &Bench) -> Sha256Digest {
    let pem = entry(bench, CA, "tls.crt").await.unwrap();
    fingerprints(&pem).unwrap().pop_first().unwrap()
}

/// Number of CAs that a Secret tells nodes to trust.
async fn told(bench: &Bench, name: &str) -> usize {
    let bundle = entry(bench, name, "ca.crt").await.unwrap();
    fingerprints(&bundle).unwrap().len()
}

/// Makes time pass: the bundle has been published for long enough.
async fn let_time_pass(bench: &Bench) {
    let secrets = bench.objects::<Secret>().unwrap();
    eventually("every server hands out the bundle", async || {
        let secret = secrets.get(CA).await?;
        Ok(secret.metadata.annotations.unwrap_or_default().contains_key(PUBLISHED_AT))
    })
    .await
    .unwrap();
    let earlier = SystemClock.now().unix_seconds() - OVERLAP;
    let patch =
        Patch::Merge(json!({"metadata": {"annotations": {PUBLISHED_AT: earlier.to_string()}}}));
    secrets.patch(CA, &PatchParams::default(), &patch).await.unwrap();
}

/// An admin requests a new CA; returns its digest.
async fn begin(bench: &Bench) -> Sha256Digest {
    annotate(bench, REPLACE_CA, &ca(bench).await.to_string()).await;
    until(bench, CONDITION, "True", "AuthorityRolling").await;
    eventually("nodes are told both CAs", async || Ok(told(bench, LEAF).await == 2)).await.unwrap();
    let next = entry(bench, CA, "next.crt").await.unwrap();
    fingerprints(&next).unwrap().pop_first().unwrap()
}

/// Disks of a node; the second one is discovered.
const DISKS: [&str; 2] = ["disk", "data"];

/// A machine with disks that Clevis has bound to the key broker.
struct Node {
    tpm: Swtpm,
    directory: tempfile::TempDir,
}

impl Node {
    /// Its attestation key exists; the disk is empty.
    fn new() -> Self {
        let node = Self { tpm: Swtpm::start().unwrap(), directory: tempfile::tempdir().unwrap() };
        let tpm = Tpm::open(&node.tpm.tcti()).unwrap();
        tpm.pcr_extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("kernel")).unwrap();
        drop(tpm);
        fs::write(node.path("no-event-log"), "").unwrap();
        node.list_disks();
        let directory = node.directory.path().as_os_str();
        good(&node.run(&agent(), &["install-links".as_ref(), directory], b""));
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn key(&self) -> PublicKey {
        let words = ["ak", "create", "--output", "json"].map(OsStr::new);
        let shown: Value = serde_json::from_slice(&good(&self.run(&agent(), &words, b""))).unwrap();
        PublicKey::from_pem(shown["public_key"].as_str().unwrap()).unwrap()
    }

    /// The output of `lsblk` on a machine with such a disk.
    fn list_disks(&self) {
        let device = json!({"path": self.path(DISKS[1]), "fstype": "crypto_LUKS", "fsver": "2"});
        let script = format!("#!/bin/sh\necho '{}'\n", json!({ "blockdevices": [device] }));
        let lsblk = self.path("lsblk");
        fs::write(&lsblk, script).unwrap();
        fs::set_permissions(&lsblk, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn bind_disks(&self, url: &str, bundle: &str) {
        for disk in DISKS {
            self.bind_disk(&self.path(disk), url, bundle);
        }
    }

    fn bind_disk(&self, disk: &Path, url: &str, bundle: &str) {
        fs::File::create(disk).unwrap().set_len(20 << 20).unwrap();
        let format = "luksFormat --type luks2 --batch-mode --pbkdf pbkdf2 \
                      --pbkdf-force-iterations 1000 --key-file -";
        self.words("cryptsetup", format, &[disk.as_os_str()]);
        let config = json!({
            "servers": [{"url": url, "cert": bundle}],
            "path": ResourcePath::luks_root(&sample::machine_id(1)), "num_retries": 3,
        });
        let config = config.to_string();
        let last = [disk.as_os_str(), "trustee".as_ref(), config.as_ref()];
        self.words("clevis", "luks bind -y -k - -d", &last);
    }

    fn words(&self, program: &str, words: &str, last: &[&OsStr]) {
        let words: Vec<_> = words.split_whitespace().map(OsStr::new).collect();
        good(&self.run(Path::new(program), &[&words, last].concat(), PASSPHRASE));
    }

    /// Runs the timer's command; returns the servers with changes and those with a report.
    fn refresh(&self) -> [Value; 2] {
        let disk = self.path(DISKS[0]);
        let words = ["--rounds", "3", "refresh-ca", "--output", "json"].map(OsStr::new);
        let output = self.run(&agent(), &[&words[..], &[disk.as_os_str()]].concat(), b"");
        let refreshed: Value = serde_json::from_slice(&good(&output)).unwrap();
        ["changed", "reported"].map(|member| refreshed[member].clone())
    }

    /// Unlocks the disk like the initramfs; returns whether that worked.
    fn unlocks(&self) -> bool {
        DISKS.iter().all(|disk| self.unlocks_one(&self.path(disk)))
    }

    fn unlocks_one(&self, disk: &Path) -> bool {
        let words = ["luks", "pass", "-s", "1", "-d"].map(OsStr::new);
        let words = [&words[..], &[disk.as_os_str()]].concat();
        let pass = self.run(Path::new("clevis"), &words, b"");
        let test = ["open", "--test-passphrase", "--key-file", "-"].map(OsStr::new);
        let test = [&test[..], &[disk.as_os_str()]].concat();
        pass.status.success()
            && self.run(Path::new("cryptsetup"), &test, &pass.stdout).status.success()
    }

    fn run(&self, program: &Path, words: &[&OsStr], input: &[u8]) -> Output {
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.directory.path().display());
        let mut child = Command::new(program)
            .args(words)
            .env("PATH", path)
            .env("TEC_TCTI", self.tpm.tcti())
            .env("TEC_EVENT_LOG", self.path("no-event-log"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The program need not read its input.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }
}

fn agent() -> PathBuf {
    program("node-agent").unwrap()
}

fn good(output: &Output) -> Vec<u8> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    output.stdout.clone()
}

/// What nodes reach: the built-in broker, or the guard in front of another broker, as deployed.
enum Front {
    Builtin(Server),
    Guard { _program: Guarded, address: String },
}

impl Front {
    async fn start(bench: &Bench, node: &Node, volumes: &Path) -> Self {
        if bench_broker(bench).await == "Builtin" {
            let flags = Self::mount(bench, volumes).await;
            let flags: Vec<&OsStr> = flags.iter().map(OsString::as_os_str).collect();
            let component = Component::KeyBroker;
            let server = Server::start(&bench.plane, component, &bench.namespace, &flags).await;
            return Self::Builtin(server.unwrap());
        }
        let upstream = guard::broker_of(&node.key(), &booted()).await;
        let mut flags = Self::mount(bench, volumes).await;
        let replaced = ["--listen", "--upstream", "--state-dir"];
        flags.retain(|flag| !replaced.iter().any(|name| flag.to_string_lossy().starts_with(name)));
        flags.extend([
            "--listen=127.0.0.1:0".into(),
            format!("--upstream={upstream}").into(),
            format!("--state-dir={}", volumes.join("state").display()).into(),
        ]);
        let (plane, account) = (&bench.plane, Component::Trustee.service_account());
        let rules = rights(Component::Trustee).unwrap();
        plane.account(&bench.namespace, account, &rules).await.unwrap();
        let kubeconfig = plane.account_kubeconfig(&bench.namespace, account).await.unwrap();
        let environment =
            [("KUBECONFIG", kubeconfig.as_os_str()), ("TEC_LOG_FORM", OsStr::new("json"))];
        let path = program("kbs-guard").unwrap();
        let logs = bench.plane.logs();
        let started = Guarded::start("guard", &path, flags, &environment, logs).unwrap();
        let address = guard::address(&started).await.to_string();
        Self::Guard { _program: started, address }
    }

    /// Mounts Secrets like a kubelet, and returns the program's flags.
    async fn mount(bench: &Bench, volumes: &Path) -> Vec<OsString> {
        let pods = deployments(bench).await;
        let is_broker = |name: &String| name == "key-broker" || name == "trustee-deployment";
        let (_, mut pod) = pods.into_iter().find(|(name, _)| is_broker(name)).unwrap();
        pod.containers.retain(|container| ["kbs-guard", "key-broker"].contains(&&*container.name));
        let secrets = |name: &String| {
            let mut volumes = pod.volumes.iter().flatten();
            volumes.any(|volume| volume.name == *name && volume.secret.is_some())
        };
        let mounts = pod.containers[0].volume_mounts.clone().unwrap_or_default();
        let mounts = mounts.into_iter().filter(|mount| secrets(&mount.name)).collect();
        pod.containers[0].volume_mounts = Some(mounts);
        mounted(bench, &pod, volumes).await
    }

    fn url(&self) -> String {
        match self {
            Self::Builtin(server) => format!("https://{}", server.address),
            Self::Guard { address, .. } => format!("https://{address}"),
        }
    }

    /// Whether one of these CAs issued its certificate.
    async fn is_trusted_by(&self, bundle: &str) -> bool {
        let all = reqwest::Certificate::from_pem_bundle(bundle.as_bytes()).unwrap();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only(all).build().unwrap();
        client.get(format!("{}/kbs/v0/authorities", self.url())).send().await.is_ok()
    }
}

async fn bench_broker(bench: &Bench) -> String {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let spec = json!(clusters.get("cluster").await.unwrap().spec);
    spec["keyBroker"].as_str().unwrap().to_owned()
}

fn booted() -> Sha256Digest {
    Sha256Digest::ZERO.extended(&Sha256Digest::of("kernel"))
}

/// A node that was enrolled under one CA unlocks under the next one after the first is gone.
async fn a_node_follows(broker: &str) {
    let node = Node::new();
    let bench = at_work(broker, (1, node.key())).await;
    let secrets = bench.objects::<Secret>().unwrap();
    let key = sample::machine_id(1).to_string();
    eventually("the disk key is made", async || Ok(secrets.get_opt(&key).await?.is_some()))
        .await
        .unwrap();
    let volumes = tempfile::tempdir().unwrap();
    let front = Front::start(&bench, &node, volumes.path()).await;
    let first = entry(&bench, CA, "tls.crt").await.unwrap();
    node.bind_disks(&front.url(), &first);
    assert!(node.unlocks());
    assert_eq!(node.refresh(), [json!([]), json!([])], "nothing is replaced");
    let named = good(&node.run(&agent(), &["machine".as_ref()], b""));
    assert_eq!(named, format!("{}\n", sample::machine_id(1)).into_bytes());

    // As long as it has not reported, the CA that it trusts signs.
    let next = begin(&bench).await;
    let_time_pass(&bench).await;
    let said = until(&bench, CONDITION, "False", "AuthorityHeldBack").await;
    assert!(said.contains("TEC-T409: 1 of 1") && said.contains("refresh-ca"), "{said}");
    Front::mount(&bench, volumes.path()).await;
    assert!(node.unlocks() && front.is_trusted_by(&first).await);

    // The node's timer, without manual action.
    assert_eq!(node.refresh(), [json!([front.url()]), json!([front.url()])]);
    assert!(node.unlocks());
    annotate(&bench, "example.com/look", "again").await;
    eventually("the next CA signs", async || Ok(ca(&bench).await == next)).await.unwrap();
    let machines = bench.objects::<Machine>().unwrap();
    let machine = machines.get(&Machine::name_of(&sample::machine_id(1))).await.unwrap();
    assert_eq!(machine.status.unwrap().trusted_authorities.len(), 2);
    let second = entry(&bench, CA, "tls.crt").await.unwrap();
    renewed(&bench, &front, volumes.path(), &second).await;
    assert!(!front.is_trusted_by(&first).await);
    assert!(node.unlocks(), "under the next CA");

    // The first CA is removed.
    let_time_pass(&bench).await;
    until(&bench, CONDITION, "True", "AuthorityCurrent").await;
    assert_eq!((told(&bench, CA).await, told(&bench, LEAF).await), (1, 1));
    renewed(&bench, &front, volumes.path(), &second).await;
    assert_eq!(node.refresh()[0], json!([front.url()]));
    assert!(node.unlocks(), "with the next CA alone");
}

/// The kubelet updates the Secrets in the pod, and the server reads them.
async fn renewed(bench: &Bench, front: &Front, volumes: &Path, ca: &str) {
    eventually("the server shows a certificate of the CA", async || {
        Front::mount(bench, volumes).await;
        Ok(front.is_trusted_by(ca).await)
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_first_ca_gets_the_next_one_without_hands_and_unlocks_when_the_first_ends() {
    a_node_follows("Builtin").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_in_front_of_a_trustee_follows_its_ca_through_the_guard() {
    a_node_follows("Trustee").await;
}

#[tokio::test]
async fn a_machine_that_never_reports_holds_the_next_ca_back_until_it_is_retired() {
    let bench = at_work("Builtin", (7, SoftTpm::rsa(7).public_key())).await;
    let first = ca(&bench).await;
    let next = begin(&bench).await;
    let_time_pass(&bench).await;
    let said = until(&bench, CONDITION, "False", "AuthorityHeldBack").await;
    let (id, name) = (sample::machine_id(7).to_string(), Machine::name_of(&sample::machine_id(7)));
    assert!(said.contains(&id) && said.contains("TEC-T409"), "{said}");
    assert_eq!(ca(&bench).await, first, "it signs on");
    let checked = standing::plugin(&bench, &["check"]).await.stdout;
    let checked: Value = serde_json::from_slice(&checked).unwrap();
    let mut checks = checked["checks"].as_array().unwrap().iter();
    let shown = checks.find(|check| check["id"] == "certificate-authority").unwrap();
    assert!(shown["outcome"] == "warning" && shown["message"].as_str().unwrap().contains(&said));
    alerts_within_a_week(&bench, true).await;

    let patch = Patch::Merge(json!({"spec": {"retiredAt": "2026-11-24T00:00:00Z"}}));
    let machines = bench.objects::<Machine>().unwrap();
    machines.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    annotate(&bench, "example.com/look", "again").await;
    eventually("the next CA signs", async || Ok(ca(&bench).await == next)).await.unwrap();
    assert_eq!(entry(&bench, CA, "next.key").await, None);
    alerts_within_a_week(&bench, false).await;
}

/// Whether the alert about a waiting CA would fire in a week, but not now.
async fn alerts_within_a_week(bench: &Bench, expected: bool) {
    let now = SystemClock.now().unix_seconds();
    eventually(&format!("the alert: {expected}"), async || {
        let mut prometheus = Prometheus::default();
        prometheus.scrape(&[("trusted-cluster-operator-metrics", Some(&bench.metrics()))]);
        assert!(!prometheus.fires("TecNextCaWaits", now));
        Ok(prometheus.fires("TecNextCaWaits", now + 7 * 86_400 + 120) == expected)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_admin_may_lock_machines_out_by_naming_the_next_ca() {
    let bench = at_work("Builtin", (7, SoftTpm::rsa(7).public_key())).await;
    let (first, next) = (ca(&bench).await, begin(&bench).await);
    let_time_pass(&bench).await;
    let said = until(&bench, CONDITION, "False", "AuthorityHeldBack").await;
    assert!(said.contains(&format!("{DANGEROUS_REPLACE_CA}={next}")), "{said}");
    annotate(&bench, DANGEROUS_REPLACE_CA, &first.to_string()).await;
    assert_eq!(condition(&bench, CONDITION).await[1], "AuthorityHeldBack", "of another CA");
    annotate(&bench, DANGEROUS_REPLACE_CA, &next.to_string()).await;
    eventually("the next CA signs", async || Ok(ca(&bench).await == next)).await.unwrap();
}
