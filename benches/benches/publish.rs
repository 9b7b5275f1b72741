//! Publishing the 10,001st machine to a key broker that holds 10,000, over its admin API on
//! loopback: requests and bytes, and the time against sending the list of all keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tec_benches::{Figure, Suite, Unit, load};
use tec_core::ak::PublicKey;
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::pcr::PcrIndex;
use tec_core::port::{EntropyRng, KeyBroker};
use tec_core::testing::{ManualClock, SeededEntropy, sample};
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::client::Deadlines;
use tec_trustee::kbs::{AdminAuth, Kbs, KbsConfig, MemoryBackend};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::publish::{
    AdminApi, AdminKey, BrokerPublisher, Desired, Progress, Publisher as _,
};
use tec_trustee::token::TokenSigner;
use tokio::runtime::Runtime;

/// Number of existing machines.
const FLEET: u64 = 10_000;
/// Largest accepted body: the whole list exceeds the default of 2 MiB.
const MAX_PAYLOAD: usize = 64 * 1024 * 1024;

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    if suite.wants("publish/") {
        let runtime = load::runtime()?;
        measure(&suite, &runtime)?;
    }
    suite.finish();
    Ok(())
}

fn measure(suite: &Suite, runtime: &Runtime) -> anyhow::Result<()> {
    let world = runtime.block_on(World::new())?;
    let state = fleet()?;
    let ours = || runtime.block_on(world.one_more(&state));
    // What is sent for each machine if all keys are one value.
    let keys: Vec<PublicKey> = (0..=FLEET).map(key).collect::<anyhow::Result<_>>()?;
    let list: serde_json::Value = keys.iter().map(PublicKey::to_base64).collect();
    let baseline = || runtime.block_on(world.whole_list(&list));

    runtime.block_on(world.restart(&state))?;
    let restart = world.counts.take();
    ours()?;
    let one = world.counts.take();
    baseline()?;
    let whole = world.counts.take();
    let note = "the 10,001st machine: index, key and disk key, each value read back";
    report(suite, "one_more", one, note)?;
    let note = "the 10,001st machine where all keys are one list: disk key and list";
    report(suite, "whole_list", whole, note)?;
    let times = |name: &str, times: f64| {
        let note = "how many times what the 10,001st machine needs the list of all keys needs";
        suite.figure(Figure::new(name, times, Unit::Count, note))
    };
    times("publish/requests/times", whole.0 / one.0)?;
    times("publish/bytes/times", whole.1 / one.1)?;
    let note = "a publisher that starts, where all 10,000 machines are there: its notes are read";
    report(suite, "restart", restart, note)?;
    let note = "publish the 10,001st machine / send its disk key and the list of all keys";
    suite.ratio("publish/one_more", note, || ours().is_ok(), || baseline().is_ok())?;
    // What failed was not measured.
    ours()?;
    baseline()
}

fn report(suite: &Suite, name: &str, counts: (f64, f64), note: &str) -> anyhow::Result<()> {
    let (requests, bytes) = counts;
    suite.figure(Figure::new(&format!("publish/requests/{name}"), requests, Unit::Count, note))?;
    suite.figure(Figure::new(&format!("publish/bytes/{name}"), bytes, Unit::Bytes, note))
}

/// Requests, and bytes of bodies in both directions.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    fn take(&self) -> (f64, f64) {
        let take = |count: &AtomicU64| {
            f64::from(u32::try_from(count.swap(0, Ordering::Relaxed)).unwrap_or(u32::MAX))
        };
        (take(&self.requests), take(&self.bytes))
    }
}

async fn count(State(counts): State<Arc<Counts>>, request: Request, next: Next) -> Response {
    counts.requests.fetch_add(1, Ordering::Relaxed);
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_PAYLOAD).await.unwrap_or_default();
    counts.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, MAX_PAYLOAD).await.unwrap_or_default();
    counts.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
    Response::from_parts(parts, Body::from(body))
}

/// An embedded key broker that holds the fleet, and its publisher.
struct World {
    counts: Arc<Counts>,
    api: Arc<AdminApi>,
    publisher: BrokerPublisher,
    next: AtomicU64,
}

impl World {
    async fn new() -> anyhow::Result<Self> {
        let entropy = Arc::new(SeededEntropy::new(1));
        let clock = Arc::new(ManualClock::new(sample::time(0)));
        let admin = AdminKey::generate(&mut EntropyRng::new(&*entropy));
        let backend = Arc::new(MemoryBackend::new());
        let counts = Arc::new(Counts::default());

        let signer = TokenSigner::random(&mut EntropyRng::new(&*entropy));
        let verifier = Arc::new(TpmVerifier::new());
        let config = KbsConfig::new(
            Arc::clone(&backend) as _,
            verifier,
            signer,
            Arc::clone(&clock) as _,
            Arc::clone(&entropy) as _,
        );
        let config = config
            .with_admin(AdminAuth::from_pem(&admin.public_pem())?)
            .with_limits(16, MAX_PAYLOAD);
        let layer = axum::middleware::from_fn_with_state(Arc::clone(&counts), count);
        let router = Kbs::new(config).router().layer(layer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        // Ends with the runtime.
        tokio::runtime::Handle::current().spawn(async { axum::serve(listener, router).await });

        let endpoint = Endpoint::new(url.parse()?, "");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let deadlines = Deadlines::new(Duration::from_secs(10), Duration::from_mins(1));
        let api = AdminApi::new(&endpoint, admin, clock, deadlines, &provider)?;
        let api = Arc::new(api);
        let world = Self {
            counts,
            publisher: BrokerPublisher::new(Arc::clone(&api) as _, Arc::clone(&entropy) as _),
            api,
            next: AtomicU64::new(FLEET),
        };
        // The fleet itself is published directly, bypassing HTTP.
        let near = BrokerPublisher::new(backend as _, entropy);
        near.publish(&fleet()?).await?;
        Ok(world)
    }

    /// The first round of a publisher that knows nothing yet.
    async fn restart(&self, desired: &Desired) -> anyhow::Result<()> {
        let progress = self.publisher.publish(desired).await?;
        anyhow::ensure!(matches!(progress, Progress::Converged { changes: 0, .. }), "{progress:?}");
        Ok(())
    }

    async fn one_more(&self, desired: &Desired) -> anyhow::Result<()> {
        register(desired, self.next.fetch_add(1, Ordering::Relaxed))?;
        let progress = self.publisher.publish(desired).await?;
        anyhow::ensure!(matches!(progress, Progress::Converged { changes: 2, .. }), "{progress:?}");
        Ok(())
    }

    async fn whole_list(&self, list: &serde_json::Value) -> anyhow::Result<()> {
        self.api.put(&sample::secret_path(0), &sample::secret(0)).await?;
        self.api.set_reference_value("trusted_aks", list).await.context("the list")
    }
}

/// The desired state of the fleet.
fn fleet() -> anyhow::Result<Desired> {
    let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
    let desired = Desired::from_intent(&intent);
    desired.set_pcr(PcrIndex::BOOT_MANAGER, [Sha256Digest::of("a boot")])?;
    for number in 0..FLEET {
        register(&desired, number)?;
    }
    Ok(desired)
}

fn register(desired: &Desired, number: u64) -> anyhow::Result<()> {
    desired.bind_key(&key(number)?, &sample::machine_id(number))?;
    desired.put_secret(sample::secret_path(number), sample::secret(number));
    Ok(())
}

/// A 2048-bit RSA key, like attestation keys: the SubjectPublicKeyInfo of a made-up modulus (RFC 8017,
/// A.1.1), with which nothing can be verified.
fn key(number: u64) -> anyhow::Result<PublicKey> {
    const HEAD: [u8; 33] = [
        0x30, 0x82, 0x01, 0x22, 0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01,
        0x01, 0x01, 0x05, 0x00, 0x03, 0x82, 0x01, 0x0f, 0x00, 0x30, 0x82, 0x01, 0x0a, 0x02, 0x82,
        0x01, 0x01, 0x00,
    ];
    let mut der = HEAD.to_vec();
    for part in 0_u8..8 {
        let mut seed = number.to_be_bytes().to_vec();
        seed.push(part);
        der.extend(Sha256Digest::of(seed).as_bytes());
    }
    if let Some(first) = der.get_mut(HEAD.len()) {
        *first |= 0x80;
    }
    der.extend([0x02, 0x03, 0x01, 0x00, 0x01]);
    Ok(PublicKey::from_der(&der)?)
}
