//! A fleet of one model: each machine has its own key and address; all booted the same image, with the same
//! event log.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::Value;
use tec_benches::synthetic;
use tec_core::ak::{AkCandidate, ManualMatcher, PublicKey};
use tec_core::attest::Tee;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::flow;
use tec_core::flow::{AkPorts, ClaimLimits, ProvisionPorts};
use tec_core::id::MachineId;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::luks::RandomLuksKey;
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::port::{
    AttestationEvidence, Attester, Clock as _, ImageRegistry as _, MachineRegistry as _, PortError,
    UnclaimedLimit,
};
use tec_core::store::Store;
use tec_e2e::wire::{Session, some_pubkey};
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::event_log::EventLog;
use tec_tpm::evidence::TpmEvidence;
use tec_tpm::testing::{AttestFields, SoftTpm};
use tec_trustee::wire::token_claims;
use tokio::task::JoinSet;

/// Size of each event log.
const LOG: usize = 48 << 10;
/// Registrations at a time, which the store commits together.
const AT_ONCE: usize = 64;
/// Machines whose keys are created by one task.
const CHUNK: usize = 256;
/// Time since the machines booted.
const UP: Duration = Duration::from_hours(1);
const TIMEOUT: Duration = Duration::from_mins(1);
/// The registers that the image states.
const PINNED: [PcrIndex; 2] = [PcrIndex::BOOT_MANAGER, PcrIndex::BOOT_FILES];
const AFFIRMING: &str = "affirming";

/// The boot that all machines share.
#[derive(Debug)]
struct Boot {
    log: Vec<u8>,
    registers: PcrValues,
    /// When the clocks of the TPMs read [`UP`].
    since: Instant,
}

/// A running machine.
#[derive(Debug)]
struct Node {
    id: MachineId,
    tpm: SoftTpm,
    key: PublicKey,
    address: IpAddr,
    boot: Arc<Boot>,
}

/// The machines.
pub(crate) struct Fleet {
    nodes: Vec<Arc<Node>>,
    boot: Arc<Boot>,
}

impl Fleet {
    /// Creates this many machines, on all cores.
    pub(crate) async fn new(count: u64) -> anyhow::Result<Self> {
        let log = synthetic::event_log(1, LOG);
        let registers = EventLog::parse(&log)?.replay_sha256()?;
        let boot = Arc::new(Boot { log, registers, since: Instant::now() });
        let numbers: Vec<u64> = (0..count).collect();
        let mut tasks = JoinSet::new();
        for chunk in numbers.chunks(CHUNK) {
            let (chunk, boot) = (chunk.to_vec(), boot.clone());
            tasks.spawn_blocking(move || {
                let nodes = chunk.into_iter().map(|number| Node::new(number, &boot));
                nodes.collect::<anyhow::Result<Vec<_>>>()
            });
        }
        let mut nodes = Vec::new();
        while let Some(done) = tasks.join_next().await {
            nodes.extend(done??.into_iter().map(Arc::new));
        }
        Ok(Self { nodes, boot })
    }

    /// Registers the machines, with their disk keys, and approves what they booted.
    pub(crate) async fn enroll(&self, state_dir: &Path) -> anyhow::Result<()> {
        let store = Arc::new(Store::open(state_dir, &SystemEntropy)?);
        store.put(&self.boot.image()?).await?;
        let mut tasks = JoinSet::new();
        for node in &self.nodes {
            if tasks.len() >= AT_ONCE
                && let Some(done) = tasks.join_next().await
            {
                done??;
            }
            let (node, store) = (node.clone(), store.clone());
            tasks.spawn(async move { node.register(&store).await });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// One machine attests, as `node-agent attest` does: over a connection of its own, without fetching a key.
    pub(crate) fn attest(
        &self,
        number: usize,
        server: &Arc<Endpoint>,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + 'static + use<>> {
        let node = self.nodes.get(number % self.nodes.len()).context("a machine")?.clone();
        let server = server.clone();
        Ok(async move { node.attest_to(&server).await })
    }

    /// What a machine signs, its signature and its key: for the baseline.
    pub(crate) fn evidence(&self) -> anyhow::Result<TpmEvidence> {
        Ok(self.nodes.first().context("a machine")?.quote(&[0x5a; 32]))
    }
}

impl Boot {
    /// The image that was booted: what its log measured into the registers of boot loader and kernel.
    fn image(&self) -> anyhow::Result<ApprovedImage> {
        let log = EventLog::parse(&self.log)?;
        let measured = |pcr: PcrIndex| {
            let events = log.events().iter().filter(move |event| event.extends() == Some(pcr));
            let digests = events.filter_map(|event| event.digests.sha256.copied());
            let event = |digest| ImageEvent::new("EV_IPL", pcr, Sha256Digest::new(digest), "event");
            ExpectedPcr::from_events(pcr, digests.map(event))
        };
        let expected = PINNED.map(measured);
        let same = |pcr: &ExpectedPcr| pcr.value == *self.registers.value(pcr.id);
        ensure!(expected.iter().all(same), "the image differs from the log");
        let expected = ExpectedPcrs::new(expected.into());
        let now = SystemClock.now();
        Ok(ApprovedImage::new("image".parse()?, "registry.example/os", expected, now))
    }
}

impl Node {
    fn new(number: u64, boot: &Arc<Boot>) -> anyhow::Result<Self> {
        let tpm = SoftTpm::p256(number);
        let [_, high, middle, low] = u32::try_from(number + 1)?.to_be_bytes();
        Ok(Self {
            id: MachineId::random(&mut ChaCha20Rng::seed_from_u64(number)),
            key: tpm.public_key(),
            tpm,
            // 127.1.0.1 and following.
            address: Ipv4Addr::new(127, high + 1, middle, low).into(),
            boot: boot.clone(),
        })
    }

    async fn register(&self, store: &Store) -> anyhow::Result<()> {
        let machine = Machine::unclaimed(self.id, RegisteredBy::Admin, SystemClock.now());
        store.create(&machine, UnclaimedLimit::Unlimited).await?;
        let ports = AkPorts::new(store, store, &ManualMatcher, store, &SystemClock);
        let key = AkCandidate::from_admin(self.key.clone(), None);
        flow::approve(ports.with_claims(ClaimLimits::NONE), self.id, key).await?;
        let ports = ProvisionPorts::new(store, &RandomLuksKey, &SystemClock, &SystemEntropy);
        flow::provision(ports, self.id).await?;
        Ok(())
    }

    fn quote(&self, nonce: &[u8]) -> TpmEvidence {
        let values: Vec<_> = self.boot.registers.iter().map(|(_, value)| *value).collect();
        let clock = UP + self.boot.since.elapsed();
        let fields = AttestFields {
            clock_ms: u64::try_from(clock.as_millis()).unwrap_or(u64::MAX),
            ..AttestFields::quote(nonce, &values)
        };
        let message = fields.marshal();
        let signature = self.tpm.sign(&message);
        let evidence = TpmEvidence::new(message, signature, values, self.key.clone());
        evidence.with_event_log(self.boot.log.clone())
    }

    async fn attest_to(&self, server: &Endpoint) -> anyhow::Result<()> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .local_address(self.address)
            .tls_certs_only(reqwest::Certificate::from_pem_bundle(server.cert.as_bytes())?)
            .build()?;
        let session = Session::open_with(client, server).await?;
        let proof = session.prove(self, some_pubkey()).await?;
        let reply = session.attest(&proof).await?;
        ensure!(reply.status == 200, "attest: {} {}", reply.status, reply.body);
        let token = reply.body.get("token").and_then(Value::as_str).context("no token")?;
        let claims = token_claims(token).context("no claims in the token")?;
        let status = claims.pointer("/submods/cpu0/ear.status").and_then(Value::as_str);
        ensure!(status == Some(AFFIRMING), "the server refused the boot: {claims}");
        Ok(())
    }
}

#[async_trait]
impl Attester for Node {
    fn tee(&self) -> Tee {
        Tee::Tpm
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let nonce = report_data.get(..32).unwrap_or_default();
        Ok(AttestationEvidence::new(Tee::Tpm, self.quote(nonce).to_value()))
    }
}
