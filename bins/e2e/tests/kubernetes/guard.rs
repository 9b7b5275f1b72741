//! The guard as a program next to the key broker, with the permissions of its account: it looks up machines
//! and keys in the API server, and reports there the outcome of each attempt.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::Value;
use tec_core::ak::{AkCandidate, ManualMatcher, PublicKey};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::flow::{AkOutcome, AkPorts, ClaimLimits};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::machine::RegisteredBy;
use tec_core::pcr::PcrIndex;
use tec_core::port::{
    AttemptLog as _, Attester, Clock, EntropyRng, ImageRegistry, KeyBroker as _, MachineRegistry,
    PolicySlot, UnclaimedLimit,
};
use tec_core::secret::SecretBytes;
use tec_core::testing::sample;
use tec_core::{flow, machine};
use tec_e2e::kube::{Bench, Guarded, eventually, plain_cluster, rights};
use tec_e2e::settings::own_program;
use tec_k8s::api::{Machine, TpmClock, TrustedExecutionCluster};
use tec_k8s::client::{AttemptRecords, KubeRegistry};
use tec_k8s::render::{Component, Deploy, Object, TrusteeFiles, trustee};
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::event_log::EventLogBuilder;
use tec_tpm::testing::SoftTpm;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::kbs::{Kbs, KbsConfig, MemoryBackend};
use tec_trustee::policy::{
    PolicyIntent, ak_reference_name, ak_reference_value, pcr_reference_name,
};
use tec_trustee::token::TokenSigner;

use super::standing;
use crate::fetch::fetch;

const DISK_KEY: &[u8] = br#"{"key_type":"oct","key":"0123456789abcdef0123456789abcdef"}"#;
/// Number of attempts: more than anyone would record individually.
const FLOOD: usize = 20;

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

/// A key broker that releases machine 1's key to this TPM in its current state.
pub(crate) async fn broker(tpm: &SoftTpm) -> SocketAddr {
    broker_of(&tpm.public_key(), tpm.pcrs().value(PcrIndex::BOOT_MANAGER)).await
}

/// Like `broker`, for a key and a value of PCR 4.
pub(crate) async fn broker_of(key: &PublicKey, booted: &Sha256Digest) -> SocketAddr {
    let backend = Arc::new(MemoryBackend::new());
    let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm]).unwrap();
    for (slot, text) in [
        (PolicySlot::Attestation, intent.render_attestation()),
        (PolicySlot::Resource, intent.render_resource()),
    ] {
        backend.set_policy(slot, &text).await.unwrap();
    }
    let (id, booted) = (sample::machine_id(1), booted.to_string());
    let facts = [
        (pcr_reference_name(PcrIndex::BOOT_MANAGER), vec![booted].into()),
        (ak_reference_name(key), ak_reference_value(key, &id)),
    ];
    for (name, value) in &facts {
        backend.set_reference_value(name, value).await.unwrap();
    }
    let secret = SecretBytes::new(DISK_KEY.to_vec());
    backend.put(&ResourcePath::luks_root(&id), &secret).await.unwrap();
    let kbs = Kbs::new(KbsConfig::new(
        backend,
        Arc::new(TpmVerifier::new()),
        TokenSigner::random(&mut EntropyRng::new(&SystemEntropy)),
        clock(),
        Arc::new(SystemEntropy),
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = kbs.router().into_make_service_with_connect_info::<SocketAddr>();
    #[expect(clippy::disallowed_methods, reason = "the server ends with its test")]
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

pub(crate) struct World {
    bench: Bench,
    registry: KubeRegistry,
    guard: SocketAddr,
    upstream: SocketAddr,
    pub(crate) pod: Pod,
}

/// A guard's process and its volume.
pub(crate) struct Pod {
    pub(crate) program: Guarded,
    _volume: tempfile::TempDir,
}

impl Pod {
    /// The guard as in its Deployment, with a new volume.
    pub(crate) async fn start(bench: &Bench, upstream: SocketAddr) -> Self {
        let (plane, namespace) = (&bench.plane, &bench.namespace);
        let account = Component::Trustee.service_account();
        let rules = rights(Component::Trustee).unwrap();
        plane.account(namespace, account, &rules).await.unwrap();
        let kubeconfig = plane.account_kubeconfig(namespace, account).await.unwrap();
        let volume = tempfile::tempdir().unwrap();
        // As a kubelet creates volumes.
        std::fs::set_permissions(volume.path(), Permissions::from_mode(0o777)).unwrap();
        let arguments = arguments(bench, upstream, volume.path()).await;
        let environment =
            [("KUBECONFIG", kubeconfig.as_os_str()), ("TEC_LOG_FORM", OsStr::new("json"))];
        let path = own_program("kbs-guard").unwrap();
        let program = Guarded::start("guard", &path, arguments, &environment, plane.logs());
        Self { program: program.unwrap(), _volume: volume }
    }
}

impl World {
    /// Machine 1 with this TPM's key, and running operator and guard.
    pub(crate) async fn new(tpm: &SoftTpm) -> Self {
        let bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
        let registry = KubeRegistry::new(bench.admin().unwrap(), &bench.namespace, clock());
        bind(&registry, sample::machine_id(1), tpm.public_key()).await;
        approve(&registry).await;
        let upstream = broker(tpm).await;
        let pod = Pod::start(&bench, upstream).await;
        Self { guard: address(&pod.program).await, upstream, bench, registry, pod }
    }

    /// The pod's node is lost: a new process with an empty volume.
    async fn replace_guard(&mut self) {
        self.pod.program.kill();
        self.pod = Pod::start(&self.bench, self.upstream).await;
        self.guard = address(&self.pod.program).await;
    }

    /// The guard's last reason for a refusal, as stored outside the pod.
    async fn last_words(mut self) -> String {
        self.pod.program.kill();
        let records = AttemptRecords::new(self.registry.clone());
        let machine = Some(sample::machine_id(1));
        let last = records.latest(machine, 1).await.unwrap().remove(0);
        last.ladder.first_failure().unwrap().detail.clone()
    }

    /// Attests and fetches the disk key, like a node at boot.
    async fn fetch(&self, attester: &dyn Attester) -> Result<SecretBytes, Code> {
        self.fetch_key_of(1, attester).await
    }

    /// Like `fetch`, for the disk key of a machine that may be a different one.
    pub(crate) async fn fetch_key_of(
        &self,
        number: u64,
        attester: &dyn Attester,
    ) -> Result<SecretBytes, Code> {
        let url = format!("http://{}", self.guard);
        let fetched = fetch(&url, &sample::machine_id(number), attester).await;
        fetched.map_err(|error| error.code())
    }

    /// The key, as a node gets it: a node whose key is not bound yet asks again.
    pub(crate) async fn unlock(&self, attester: &dyn Attester) -> SecretBytes {
        let mut key = None;
        let released = async || match self.fetch(attester).await {
            Err(Code::AkNotBound) => Ok(false),
            answer => {
                key = Some(answer.unwrap());
                Ok(true)
            }
        };
        eventually("the key is released", released).await.unwrap();
        key.unwrap()
    }

    async fn machine(&self) -> Machine {
        let name = Machine::name_of(&sample::machine_id(1));
        self.bench.objects().unwrap().get(&name).await.unwrap()
    }

    /// Waits for a state of the condition `Attested`, such as `False AttestationFailed`.
    async fn attested(&self, wanted: &str) {
        let holds = async || {
            let status = self.machine().await.status.unwrap_or_default();
            let mut conditions = status.conditions.iter();
            let attested = conditions.find(|condition| condition.type_ == "Attested");
            Ok(attested.is_some_and(|c| format!("{} {}", c.status, c.reason) == wanted))
        };
        eventually(wanted, holds).await.unwrap();
    }

    /// The guard's Events about the machine: reason and version of each, sorted by reason.
    pub(crate) async fn events(&self) -> Vec<(String, String)> {
        let params =
            ListParams::default().fields("reportingController=kbs-guard,regarding.kind=Machine");
        let events = self.bench.objects::<Event>().unwrap().list(&params).await;
        let read = |event: &Event| {
            let version = event.resource_version().unwrap();
            (event.reason.clone().unwrap(), version)
        };
        let mut events: Vec<_> = events.unwrap().iter().map(read).collect();
        events.sort();
        events
    }
}

/// Arguments of the guard in the Deployment, with this machine's addresses and volume.
async fn arguments(bench: &Bench, upstream: SocketAddr, volume: &Path) -> Vec<String> {
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let cluster = clusters.get("cluster").await.unwrap();
    let objects = trustee(&cluster, &Deploy::default(), &TrusteeFiles::default()).unwrap();
    let pods = objects.into_iter().filter_map(|object| match object {
        Object::Deployment(deployment) => deployment.spec?.template.spec,
        _ => None,
    });
    let mut containers = pods.flat_map(|pod| pod.containers);
    let guard = containers.find(|container| container.name == "kbs-guard").unwrap();
    let mounts = guard.volume_mounts.unwrap();
    let mount = mounts.iter().find(|mount| mount.name == "guard-state").unwrap();
    let local = |argument: &String| match argument.split_once('=') {
        Some(("--upstream", _)) => format!("--upstream={upstream}"),
        Some((flag @ ("--listen" | "--metrics-addr"), _)) => format!("{flag}=127.0.0.1:0"),
        _ => argument.replace(&mount.mount_path, volume.to_str().unwrap()),
    };
    guard.args.unwrap().iter().map(local).collect()
}

pub(crate) async fn bind(registry: &KubeRegistry, id: MachineId, key: PublicKey) {
    let machine = machine::Machine::unclaimed(id, RegisteredBy::Admin, SystemClock.now());
    let machines: &dyn MachineRegistry = registry;
    machines.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
    let ports = AkPorts::new(machines, registry, &ManualMatcher, registry, &SystemClock)
        .with_claims(ClaimLimits::NONE);
    let mut outcome = None;
    // The operator writes the same machine, and may be faster each time.
    eventually("the key is bound", async || {
        let candidate = AkCandidate::from_admin(key.clone(), None);
        outcome = flow::approve(ports, id, candidate).await.ok();
        Ok(outcome.is_some())
    })
    .await
    .unwrap();
    let outcome = outcome.unwrap();
    // The operator may have seen the key first.
    let is_bound = matches!(outcome, AkOutcome::Bound(_) | AkOutcome::AlreadyBound);
    assert!(is_bound, "{outcome:?}");
}

/// Listening address of the program, from its log.
pub(crate) async fn address(program: &Guarded) -> SocketAddr {
    said(program, "ready").await
}

/// Address of its metrics and readiness.
pub(crate) async fn metrics_address(program: &Guarded) -> SocketAddr {
    said(program, "metrics are served").await
}

/// The address in the log line with this message.
pub(crate) async fn said(program: &Guarded, message: &str) -> SocketAddr {
    let mut address = None;
    let ready = async || {
        let log = program.log()?;
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut fields = lines.filter_map(|mut line| Some(line.get_mut("fields")?.take()));
        let line = fields.find(|fields| fields["message"] == message);
        address = line.and_then(|fields| fields["address"].as_str().map(str::to_owned));
        Ok(address.is_some())
    };
    let came = eventually("the guard listens", ready).await;
    assert!(came.is_ok(), "{}", program.log().unwrap());
    address.unwrap().parse().unwrap()
}

/// The approved kernel.
const KERNEL: Sha256Digest = Sha256Digest::new([0xab; 32]);
const FILE: &str = "usr/lib/modules/6.12/vmlinuz";

pub(crate) fn approved_boot() -> SoftTpm {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    tpm
}

/// Starts a kernel, also recorded in the log.
fn boot(tpm: &SoftTpm, kernel: Sha256Digest) {
    tpm.extend(PcrIndex::BOOT_MANAGER, &kernel);
    tpm.set_event_log(EventLogBuilder::new().image(kernel, "EFI/linux").build());
}

async fn approve(registry: &KubeRegistry) {
    let event = ImageEvent::new("E", PcrIndex::BOOT_MANAGER, KERNEL, "Pcr4Vmlinuz").from_file(FILE);
    let expected = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, [event]);
    let expected = ExpectedPcrs::new(vec![expected]);
    let image = ApprovedImage::new("44.1".parse().unwrap(), "dir", expected, SystemClock.now());
    let images: &dyn ImageRegistry = registry;
    images.put(&image).await.unwrap();
}

#[tokio::test]
async fn what_comes_of_an_attempt_stands_on_the_machine_and_a_flood_writes_it_once() {
    let tpm = approved_boot();
    let world = World::new(&tpm).await;
    let key = world.unlock(&tpm).await;
    assert!(key.ct_eq(&SecretBytes::new(DISK_KEY.to_vec())));
    world.attested("True AttestationSucceeded").await;
    let status = world.machine().await.status.unwrap();
    let last = status.last_attestation.as_ref().unwrap();
    assert!(last.attempt.is_some() && last.code.is_none(), "{last:?}");
    assert_eq!(status.image.as_deref(), Some("44.1"));
    let dry = standing::plugin(&world.bench, &["image", "revoke", "44.1", "--dry-run"]).await;
    let said: Value = serde_json::from_slice(&dry.stdout).unwrap();
    let booted = &said["last_booted_by"][0];
    assert_eq!(*booted, sample::machine_id(1).to_string(), "{said}");
    world.fetch(&tpm).await.unwrap();

    // The disk key of a machine that booted something else is not affected.
    tpm.reboot();
    boot(&tpm, Sha256Digest::new([0xee; 32]));
    let mut codes = Vec::new();
    for _ in 0..FLOOD {
        codes.push(world.fetch(&tpm).await.unwrap_err());
    }
    codes.dedup();
    // Not the code of a denying resource policy: an update must not look like a revoked machine.
    assert_eq!(codes, [Code::PcrMismatch]);
    world.attested("False AttestationFailed").await;
    let status = world.machine().await.status.unwrap();
    let code = status.last_attestation.as_ref().unwrap().code.clone();
    assert_eq!(code.as_deref(), Some(codes[0].as_str()));
    assert_eq!(status.image.as_deref(), Some("44.1"), "the last good boot stays");
    let events = world.events().await;
    let reasons: Vec<_> = events.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["AttestationFailed", "AttestationSucceeded"]);
    let told = world.last_words().await;
    assert_eq!(told, format!("PCR 4: kernel ({FILE}) differs"));
}

#[tokio::test]
async fn a_clone_that_is_older_is_refused_by_a_guard_that_never_saw_the_original() {
    let (original, clone) = (approved_boot(), approved_boot());
    let mut world = World::new(&original).await;
    original.reboot();
    boot(&original, KERNEL);
    world.unlock(&original).await;

    world.replace_guard().await;
    let refused = world.fetch(&clone).await.unwrap_err();
    assert_eq!(refused, Code::TpmSetBack);
    original.reboot();
    boot(&original, KERNEL);
    world.fetch(&original).await.unwrap();

    // The records are deleted with the machine, and grant no other permission.
    let clocks = world.bench.objects::<TpmClock>().unwrap();
    let all = clocks.list(&ListParams::default()).await.unwrap().items;
    let owners: Vec<_> = all.iter().flat_map(TpmClock::owner_references).collect();
    assert_eq!((all.len(), owners.len()), (1, 1));
    assert_eq!(Some(&owners[0].uid), world.machine().await.uid().as_ref());
    assert_eq!(owners[0].kind, "Machine");
}

#[tokio::test]
async fn other_firmware_is_refused_by_a_guard_that_never_saw_the_first_boot() {
    let tpm = approved_boot();
    let mut world = World::new(&tpm).await;
    world.unlock(&tpm).await;
    world.replace_guard().await;
    tpm.reboot();
    tpm.extend(PcrIndex::new(0).unwrap(), &Sha256Digest::new([1; 32]));
    boot(&tpm, KERNEL);
    assert_eq!(world.fetch(&tpm).await.unwrap_err(), Code::PlatformChanged);
    let approved = ["platform", "approve", &sample::machine_id(1).to_string(), "--yes"];
    standing::done(&world.bench, &approved).await;
    world.fetch(&tpm).await.unwrap();
    tpm.reboot();
    boot(&tpm, KERNEL);
    assert_eq!(world.fetch(&tpm).await.unwrap_err(), Code::PlatformChanged);
    let told = world.last_words().await;
    assert!(told.starts_with("PCR 0"), "{told}");
}
