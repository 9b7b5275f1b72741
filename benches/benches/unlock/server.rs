//! A registered machine, the KBS that holds its key, and a guard in front of the KBS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum_server::tls_rustls::RustlsConfig;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tec_core::ak::{AkCandidate, ManualMatcher, PublicKey};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::flow;
use tec_core::flow::{AkPorts, ClaimLimits, ProvisionPorts};
use tec_core::id::MachineId;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::luks::CompatLuksKey;
use tec_core::machine::RegisteredBy;
use tec_core::pcr::PcrIndex;
use tec_core::port::{
    AkRegistry, AttemptLog, AuditSink, Clock, ClockLog, DiskKeys, Entropy, EntropyRng,
    ImageRegistry, MachineRegistry, PlatformLog, SecretStore, UnclaimedLimit,
};
use tec_core::store::Store;
use tec_core::testing::{MemoryRegistry, SeededEntropy};
use tec_core::time::Timestamp;
use tec_tpm::ak::{AkAlgorithm, AkHandle};
use tec_tpm::testing::{SoftTpm, Swtpm};
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::Tpm;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::guard::{Guard, GuardConfig, Registries};
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;

use crate::client::{Client, Prepared};

/// Nonces that the server issues repeatedly, so that evidence can be precomputed.
const NONCES: usize = 256;
/// Sessions last for seconds, so that millions of unlocks fit into memory.
const SESSION_SECONDS: u32 = 5;
/// Maximum number of sessions: more than are opened in that time, even if one client may open only a quarter
/// of them.
const MAX_SESSIONS: usize = 1 << 20;

/// A machine after its approved boot.
pub(crate) struct Machine {
    pub(crate) id: MachineId,
    pub(crate) tpm: SoftTpm,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let tpm = SoftTpm::rsa(1);
        tpm.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"));
        Self { id: MachineId::random(&mut EntropyRng::new(&SeededEntropy::new(1))), tpm }
    }
}

/// The same machine with a TPM emulator, which is faster than hardware TPMs: those need a tenth of a second
/// or more for a quote.
pub(crate) struct Emulated {
    pub(crate) id: MachineId,
    key: PublicKey,
    pub(crate) swtpm: Swtpm,
}

impl Emulated {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let swtpm = Swtpm::start()?;
        let tpm = Tpm::open(&swtpm.tcti())?;
        let key = tpm.ensure_ak(AkHandle::DEFAULT, AkAlgorithm::Rsa2048)?.key;
        tpm.pcr_extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::of("shim"))?;
        Ok(Self {
            id: MachineId::random(&mut EntropyRng::new(&SeededEntropy::new(2))),
            key: key.public().clone(),
            swtpm,
        })
    }
}

/// Seconds since the clock was created.
#[derive(Debug)]
struct Stopwatch(Instant);

impl Clock for Stopwatch {
    fn now(&self) -> Timestamp {
        let seconds = i64::try_from(self.0.elapsed().as_secs()).unwrap_or_default();
        Timestamp::from_unix_seconds(1_800_000_000 + seconds)
    }
}

/// Issues a few nonces repeatedly; all other randomness, which never has the length of a nonce, is new each
/// time.
#[derive(Debug)]
struct FewNonces {
    nonces: Vec<[u8; 32]>,
    next: AtomicUsize,
    rest: SeededEntropy,
}

impl FewNonces {
    fn new() -> Self {
        let seeded = SeededEntropy::new(7);
        let mut nonces = vec![[0; 32]; NONCES];
        for nonce in &mut nonces {
            seeded.fill(nonce);
        }
        Self { nonces, next: AtomicUsize::new(0), rest: seeded }
    }
}

impl Entropy for FewNonces {
    fn fill(&self, bytes: &mut [u8]) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        match self.nonces.get(next % NONCES) {
            Some(nonce) if nonce.len() == bytes.len() => bytes.copy_from_slice(nonce),
            _ => self.rest.fill(bytes),
        }
    }
}

/// Where the registries are.
pub(crate) enum Storage {
    /// In memory.
    Memory,
    /// In the embedded store, with every acknowledged write on disk.
    Embedded(tempfile::TempDir),
}

impl Storage {
    pub(crate) fn embedded() -> std::io::Result<Self> {
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map(Self::Embedded)
    }

    fn open(&self, what: &str) -> anyhow::Result<Side> {
        Ok(match self {
            Self::Memory => ports(Arc::new(MemoryRegistry::new())),
            Self::Embedded(dir) => {
                let store = Store::open(&dir.path().join(what), &SeededEntropy::new(3))?;
                ports(Arc::new(store))
            }
        })
    }
}

/// The stores of one of the two.
#[derive(Clone)]
struct Side {
    machines: Arc<dyn MachineRegistry>,
    ports: LivePorts,
}

fn ports<R>(registry: Arc<R>) -> Side
where
    R: MachineRegistry
        + AkRegistry
        + ImageRegistry
        + SecretStore
        + AuditSink
        + AttemptLog
        + ClockLog
        + DiskKeys
        + PlatformLog
        + 'static,
{
    let machines = registry.clone();
    Side { machines, ports: LivePorts::of(registry, Arc::new(Stopwatch(Instant::now()))) }
}

async fn register(side: &Side, id: MachineId, key: PublicKey) -> anyhow::Result<()> {
    let Side { machines, ports } = side;
    let now = ports.clock.now();
    let fresh = tec_core::machine::Machine::unclaimed(id, RegisteredBy::Admin, now);
    machines.create(&fresh, UnclaimedLimit::Unlimited).await?;
    let key = AkCandidate::from_admin(key, None);
    let approval =
        AkPorts::new(&**machines, &*ports.aks, &ManualMatcher, &*ports.audit, &*ports.clock)
            .with_claims(ClaimLimits::NONE);
    flow::approve(approval, id, key).await?;
    let entropy = SeededEntropy::new(2);
    let provision = ProvisionPorts::new(&*ports.secrets, &CompatLuksKey, &*ports.clock, &entropy);
    flow::provision(provision, id).await?;
    Ok(())
}

async fn approve(ports: &LivePorts) -> anyhow::Result<()> {
    let event = ImageEvent::new("EV_IPL", PcrIndex::BOOT_MANAGER, Sha256Digest::of("shim"), "shim");
    let expected = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, [event]);
    let expected = ExpectedPcrs::new(vec![expected]);
    let image =
        ApprovedImage::new("image".parse()?, "registry.example/os", expected, ports.clock.now());
    ports.images.put(&image).await?;
    Ok(())
}

/// KBS and guard, on loopback, over plain HTTP and, as nodes reach them, over TLS.
pub(crate) struct Server {
    pub(crate) kbs: SocketAddr,
    pub(crate) guard: SocketAddr,
    pub(crate) kbs_tls: Endpoint,
    pub(crate) guard_tls: Endpoint,
    prepared: Arc<Prepared>,
    sides: [Side; 2],
}

impl Server {
    pub(crate) async fn start(machine: &Machine, storage: &Storage) -> anyhow::Result<Self> {
        let behind = storage.open("kbs")?;
        let before = storage.open("guard")?;
        for side in [&behind, &before] {
            register(side, machine.id, machine.tpm.public_key()).await?;
            approve(&side.ports).await?;
        }
        let sides = [behind.clone(), before.clone()];
        let (behind, before) = (behind.ports, before.ports);
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
        let entropy = Arc::new(FewNonces::new());
        let nonces: Vec<String> = entropy.nonces.iter().map(|n| STANDARD.encode(n)).collect();
        let mut rng = EntropyRng::new(&*entropy);
        let signer = TokenSigner::random(&mut rng);
        let verifier = Arc::new(TpmVerifier::new());
        let (clock, entropy) = (behind.clock.clone(), entropy.clone());
        let backend = Arc::new(LiveBackend::new(behind, &intent));
        let config = KbsConfig::new(backend, verifier.clone(), signer, clock, entropy)
            .with_lifetimes(SESSION_SECONDS, SESSION_SECONDS)
            .with_limits(MAX_SESSIONS, 1 << 20);
        let broker = Kbs::new(config).router();
        let kbs = serve(broker.clone()).await?;

        let gatekeeper = Registries {
            aks: before.aks,
            boots: None,
            clocks: before.clocks,
            platforms: None,
            attempts: before.attempts,
            audit: before.audit,
            clock: before.clock.clone(),
        };
        let upstream = kbs.to_string().parse()?;
        let random = Arc::new(SeededEntropy::new(4));
        let config =
            GuardConfig::new(upstream, verifier, Arc::new(gatekeeper), before.clock, random)
                .with_limits(MAX_SESSIONS, 1 << 20, Duration::from_secs(10));
        let guard = Guard::new(config).router();
        Ok(Self {
            kbs,
            guard: serve(guard.clone()).await?,
            kbs_tls: serve_tls(broker)?,
            guard_tls: serve_tls(guard)?,
            prepared: Arc::new(Prepared::new(machine, &nonces)?),
            sides,
        })
    }

    /// Registers the machine with the KBS and the guard.
    pub(crate) async fn enroll(&self, machine: &Emulated) -> anyhow::Result<()> {
        for side in &self.sides {
            register(side, machine.id, machine.key.clone()).await?;
        }
        Ok(())
    }

    pub(crate) async fn clients(&self, to: SocketAddr, count: u32) -> anyhow::Result<Vec<Client>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let client = Client::connect(to, &self.prepared).await?;
            // The first one shows whether it works at all.
            client.unlock(1).await?;
            clients.push(client);
        }
        Ok(clients)
    }
}

async fn serve(router: axum::Router) -> anyhow::Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    #[expect(clippy::disallowed_methods, reason = "the server ends with the program")]
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}

/// Serves over TLS, with a separate certificate that the endpoint pins.
fn serve_tls(router: axum::Router) -> anyhow::Result<Endpoint> {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let url = format!("https://localhost:{}", listener.local_addr()?.port()).parse()?;
    let config = RustlsConfig::from_config(Arc::new(config));
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum_server::from_tcp_rustls(listener, config)?;
    #[expect(clippy::disallowed_methods, reason = "the server ends with the program")]
    tokio::spawn(async move { server.serve(service).await });
    Ok(Endpoint::new(url, cert.pem()))
}
