//! A machine with an emulated TPM, the real program under its Clevis names, and all services in this process.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use axum::Router;
use tec_core::ak::{AkMatcher, TofuMatcher};
use tec_core::attest::{Attempt, PinnedPcrs, Tee};
use tec_core::boot::Pins;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::flow::{ClaimLimits, UnpinnedInputs, publish_image};
use tec_core::http::{AkService, AkServiceConfig};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::ignition::{ClevisPinGenerator, PinGenerator as _};
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::luks::CompatLuksKey;
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::pcr::PcrIndex;
use tec_core::port::{
    AttemptLog as _, Clock as _, EntropyRng, MachineRegistry as _, SecretStore, UnclaimedLimit,
};
use tec_core::testing::{ManualClock, MemoryRegistry};
use tec_support::serve::{Shutdown, Transport, bind, serve};
use tec_support::tls::{LiveCertificate, Source, built_in_ca, ca_pem};
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::direct::Tpm;
use tec_tpm::ek::CredentialIssuer;
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) const PASSPHRASE: &str = "canary-passphrase";
/// An address where nothing answers: port 1 is reserved (tcpmux) and unused.
pub(crate) const NOBODY: &str = "http://127.0.0.1:1";

const YEAR: i64 = 365 * 24 * 3600;

/// How nodes reach the services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Plain,
    Tls,
    /// The server's clock, which dates its certificates, is this many years ahead of the node's.
    TlsAhead(i64),
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) registry: Arc<MemoryRegistry>,
    pub(crate) endpoint: Endpoint,
    pub(crate) directory: TempDir,
    pub(crate) runtime: Runtime,
}

/// A machine whose TPM measured an approved kernel, with its servers.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) world: World,
    pub(crate) tpm: Swtpm,
    pub(crate) machine: MachineId,
    pub(crate) config: serde_json::Value,
}

impl Node {
    /// Switched on for the first time.
    pub(crate) fn start(wire: Wire) -> Self {
        let world = World::start(wire, TofuMatcher);
        world.approve("kernel");
        let tpm = Swtpm::start().unwrap();
        boot(&tpm, "kernel");
        let (machine, config) = world.machine();
        Self { world, tpm, machine, config }
    }

    pub(crate) fn reboot(&mut self, kernel: &str) {
        self.tpm.restart().unwrap();
        boot(&self.tpm, kernel);
    }

    pub(crate) fn encrypt(&self) -> Output {
        self.world.encrypt(&self.tpm, &self.config)
    }

    pub(crate) fn decrypt(&self, sealed: &[u8]) -> Output {
        self.world.decrypt(&self.tpm, sealed)
    }
}

impl World {
    pub(crate) fn start(wire: Wire, matcher: impl AkMatcher + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let registry = Arc::new(MemoryRegistry::new());
        let router = router(&registry, matcher);
        let endpoint = run(&runtime, directory.path(), wire, router);
        let links = Command::new(env!("CARGO_BIN_EXE_node-agent"))
            .arg("install-links")
            .arg(directory.path())
            .output()
            .unwrap();
        assert!(links.status.success(), "{links:?}");
        Self { registry, endpoint, directory, runtime }
    }

    /// Approves a boot whose PCR 4 is extended once, with the digest of `kernel`.
    pub(crate) fn approve(&self, kernel: &str) {
        let pcr4 = PcrIndex::BOOT_MANAGER;
        let event = ImageEvent::new("EV", pcr4, Sha256Digest::of(kernel), "Pcr4Vmlinuz");
        let expected = ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr4, [event])]);
        self.approve_values("os", expected);
    }

    /// Approves a boot with these values.
    pub(crate) fn approve_values(&self, name: &str, expected: ExpectedPcrs) {
        let name = name.parse().unwrap();
        let image = ApprovedImage::new(name, "registry.example/os", expected, SystemClock.now());
        let (pins, inputs) = (Pins::Predicted, UnpinnedInputs::Accept);
        let published = publish_image(&*self.registry, &*self.registry, &image, pins, inputs);
        self.runtime.block_on(published).unwrap();
    }

    /// Registers a machine; returns the configuration in its Ignition config, with one round of tries, so
    /// that refusals are immediate.
    pub(crate) fn machine(&self) -> (MachineId, serde_json::Value) {
        let id = MachineId::random(&mut EntropyRng::new(&SystemEntropy));
        let machine = Machine::unclaimed(id, RegisteredBy::FirstBoot, SystemClock.now());
        let created = self.registry.create(&machine, UnclaimedLimit::Unlimited);
        self.runtime.block_on(created).unwrap();
        let pins = ClevisPinGenerator::new(self.endpoint.clone());
        let pins = pins.register_ak_at(self.endpoint.clone());
        let mut config = serde_json::to_value(pins.pin_config(&id)).unwrap();
        config["num_retries"] = 1.into();
        (id, config)
    }

    /// The key of a machine's disk, as text.
    pub(crate) fn key_of(&self, machine: &MachineId) -> String {
        let path = ResourcePath::luks_root(machine);
        let secret = SecretStore::find(&*self.registry, &path);
        let secret = self.runtime.block_on(secret).unwrap().unwrap();
        let json: serde_json::Value =
            serde_json::from_slice(secret.expose("search for it")).unwrap();
        json["key"].as_str().unwrap().to_owned()
    }

    /// The latest attempt of a machine, as `tec explain` shows it.
    pub(crate) fn attempt(&self, machine: MachineId) -> Attempt {
        let latest = self.registry.latest(Some(machine), 1);
        self.runtime.block_on(latest).unwrap().remove(0)
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn encrypt(&self, tpm: &Swtpm, config: &serde_json::Value) -> Output {
        let mut command = Command::new(self.link("clevis-encrypt-trustee"));
        command.arg(config.to_string());
        pipe(self.prepare(&mut command, tpm), PASSPHRASE.as_bytes())
    }

    pub(crate) fn decrypt(&self, tpm: &Swtpm, sealed: &[u8]) -> Output {
        let mut command = Command::new(self.link("clevis-decrypt-trustee"));
        pipe(self.prepare(&mut command, tpm), sealed)
    }

    pub(crate) fn agent(&self, tpm: &Swtpm, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-agent"));
        pipe(self.prepare(command.args(arguments), tpm), b"")
    }

    /// Everything is passed through the environment, as under Clevis.
    pub(crate) fn prepare<'a>(&self, command: &'a mut Command, tpm: &Swtpm) -> &'a mut Command {
        let no_log = self.directory.path().join("no-event-log");
        std::fs::write(&no_log, b"").unwrap();
        command.env("TEC_TCTI", tpm.tcti()).env("TEC_EVENT_LOG", no_log).env_remove("TEC_LOG")
    }
}

fn router(registry: &Arc<MemoryRegistry>, matcher: impl AkMatcher + 'static) -> Router {
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let aks = AkService::new(
        AkServiceConfig::new(
            registry.clone(),
            registry.clone(),
            Arc::new(matcher),
            registry.clone(),
            clock.clone(),
            entropy.clone(),
            Arc::new(CredentialIssuer::new()),
        )
        .with_provision(registry.clone(), Arc::new(CompatLuksKey))
        .with_claims(ClaimLimits::default()),
    );
    let ports = LivePorts::new(
        registry.clone(),
        registry.clone(),
        registry.clone(),
        registry.clone(),
        (registry.clone(), registry.clone()),
        registry.clone(),
        clock.clone(),
    )
    .with_disk_keys(registry.clone());
    let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm]).unwrap();
    let backend = Arc::new(LiveBackend::new(ports, &intent));
    let signer = TokenSigner::random(&mut EntropyRng::new(&SystemEntropy));
    let verifier = Arc::new(TpmVerifier::new());
    let kbs = Kbs::new(KbsConfig::new(backend, verifier, signer, clock, entropy));
    Router::new()
        .route_service("/register-ak", aks.clone())
        .route_service("/register-ak/proof", aks)
        .fallback_service(kbs.router())
}

fn run(runtime: &Runtime, directory: &Path, wire: Wire, router: Router) -> Endpoint {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (transport, scheme, cert) = match wire {
        Wire::Plain => (Transport::DangerousPlain, "http", String::new()),
        Wire::Tls | Wire::TlsAhead(_) => {
            let years = match wire {
                Wire::TlsAhead(years) => years,
                _ => 0,
            };
            let clock = ManualClock::new(SystemClock.now().plus_seconds(years * YEAR));
            let source = Source::BuiltIn {
                directory: directory.to_owned(),
                names: vec!["127.0.0.1".to_owned()],
            };
            let live = LiveCertificate::load(source, &clock).unwrap();
            let ca = ca_pem(&built_in_ca(directory)).unwrap();
            (Transport::Tls(live.server_config()), "https", ca)
        }
    };
    runtime.spawn(async move {
        let (shutdown, _signals) = Shutdown::on_signals().unwrap();
        serve(listener, transport, router, shutdown).await.unwrap();
    });
    Endpoint::new(format!("{scheme}://{address}").parse().unwrap(), cert)
}

pub(crate) fn boot(tpm: &Swtpm, kernel: &str) {
    let open = Tpm::open(&tpm.tcti()).unwrap();
    open.pcr_extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of(kernel)).unwrap();
}

pub(crate) fn pipe(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that refuses its arguments does not read.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Output of a call that must work.
pub(crate) fn good(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// The report of a call that must fail: the last three lines, after warnings if there are any.
pub(crate) fn refused(output: &Output) -> [String; 3] {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!text.contains(PASSPHRASE), "{text}");
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let (warnings, report) = lines.split_at(lines.len() - 3);
    assert!(warnings.iter().all(|line| line.contains(" WARN ")), "{text}");
    report.to_vec().try_into().unwrap()
}
