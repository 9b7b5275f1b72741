//! The whole attestation flow inside another program: no operator, no Kubernetes, no TPM, no files.
//!
//! ```text
//! cargo run -p tec-examples --bin embed_flow
//! ```
//! One in-memory type serves as every store, a key broker listens on the loopback address, and a software TPM
//! attests. For production, put your own stores behind the same ports (or take `tec_core::store`), serve the
//! router with TLS, and let a real TPM attest (`tec_tpm::tpm::TpmAttester`). The calls stay the same.
#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use std::future::IntoFuture as _;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use rand_core::{Rng as _, UnwrapErr};
use tec_core::ak::{AkCandidate, TofuMatcher};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::endpoint::Endpoint;
use tec_core::explain::StepState;
use tec_core::flow;
use tec_core::flow::{
    AkOutcome, AkPorts, ClaimLimits, ProvisionPorts, RegisterPorts, UnpinnedInputs,
};
use tec_core::id::MachineId;
use tec_core::ignition::{ClevisPinGenerator, PinGenerator as _};
use tec_core::image::ApprovedImage;
use tec_core::luks::{RandomLuksKey, content_key};
use tec_core::port::{AttemptLog, Clock, Entropy, EntropyRng, UnclaimedLimit};
use tec_core::reference::PcrComputer as _;
use tec_core::testing::{ManualClock, MemoryRegistry};
use tec_core::time::Timestamp;
use tec_tpm::compute::testing::{application, debian_chain};
use tec_tpm::compute::{ChainComputer, Measurement, MemoryImage, SecureBoot};
use tec_tpm::event_log::EventLogBuilder;
use tec_tpm::testing::SoftTpm;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::client::{Deadlines, RcarClient, RcarError};
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;
use tokio::net::TcpListener;

/// The kernel's path in the image of [`debian_chain`].
const KERNEL: &str = "boot/vmlinuz-6.12.0-amd64";

/// A port is a trait with one or a few methods: here, the randomness of the operating system.
#[derive(Debug)]
struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        UnwrapErr(getrandom::SysRng).fill_bytes(bytes);
    }
}

/// The server side: the stores and the clock.
struct Anchor {
    /// Machines, keys, images, secrets, audit and attempts; a database in production.
    store: Arc<MemoryRegistry>,
    clock: Arc<dyn Clock>,
}

impl Anchor {
    /// Approves an image: computes what its boot measures, and allows such boots to obtain keys.
    async fn approve_image(&self, image: &MemoryImage) -> anyhow::Result<()> {
        let expected = ChainComputer::new(SecureBoot::On).compute(image)?;
        let approved =
            ApprovedImage::new("debian".parse()?, "in memory", expected, self.clock.now());
        // Of a GRUB chain, only PCR 4 is computed here: the initramfs is not checked.
        let (pins, inputs) = (Pins::Predicted, UnpinnedInputs::Accept);
        flow::publish_image(&*self.store, &*self.store, &approved, pins, inputs).await?;
        println!("image    {} approved", approved.name);
        Ok(())
    }

    /// First boot of a machine: it gets an ID and its pin, its key is bound, and it gets a disk key. A server
    /// does this in response to two requests; see `tec_core::http`.
    async fn admit(&self, pins: &ClevisPinGenerator, tpm: &SoftTpm) -> anyhow::Result<MachineId> {
        let (store, clock) = (&*self.store, &*self.clock);
        let entropy = &SystemEntropy;
        let ports = RegisterPorts::new(store, store, pins, clock, entropy);
        let machine = flow::register(ports, UnclaimedLimit::AtMost(100)).await?.machine;

        let matcher = &TofuMatcher;
        let ports =
            AkPorts::new(store, store, matcher, store, clock).with_claims(ClaimLimits::default());
        let candidate = AkCandidate::from_node(tpm.public_key(), None);
        let outcome = flow::approve(ports, machine, candidate).await?;
        let AkOutcome::Bound(reason) = outcome else { bail!("the key was not bound: {outcome:?}") };

        let generator = &RandomLuksKey;
        let ports = ProvisionPorts::new(store, generator, clock, entropy);
        flow::provision(ports, machine).await?;
        println!("machine  {machine}\nkey      {} bound: {reason}", tpm.public_key().fingerprint());
        Ok(machine)
    }

    /// A key broker over the same stores. A revocation in them takes effect at the next request.
    fn key_broker(&self) -> anyhow::Result<Kbs> {
        let store = &self.store;
        let ports = LivePorts::new(
            store.clone(),
            store.clone(),
            store.clone(),
            store.clone(),
            (store.clone(), store.clone()),
            store.clone(),
            Arc::clone(&self.clock),
        );
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
        Ok(Kbs::new(KbsConfig::new(
            Arc::new(LiveBackend::new(ports, &intent)),
            Arc::new(TpmVerifier::new()),
            TokenSigner::random(&mut EntropyRng::new(&SystemEntropy)),
            Arc::clone(&self.clock),
            Arc::new(SystemEntropy),
        )))
    }

    /// Explains why a boot was refused, check by check.
    async fn explain(&self, error: &RcarError) -> anyhow::Result<()> {
        let RcarError::Denied { code: Some(code), attempt: Some(attempt), .. } = error else {
            bail!("not a refusal: {error}");
        };
        ensure!(*code == Code::PcrMismatch);
        println!("refused  {code} {}", code.title());
        let attempts: &dyn AttemptLog = &*self.store;
        let attempt = attempts.find(attempt).await?.context("the attempt was not recorded")?;
        for step in attempt.ladder.steps.iter().filter(|s| s.state != StepState::NotReached) {
            println!("  {:<8} {}: {}", format!("{:?}", step.state), step.gate.label(), step.detail);
        }
        Ok(())
    }
}

/// Boots an image: like firmware and boot loaders, measures each file into the TPM, and logs it.
fn boot(tpm: &SoftTpm, image: &MemoryImage) -> anyhow::Result<()> {
    tpm.reboot();
    // Its keys are not known, so any valid signature will do; what was started is measured anyway.
    let chain = ChainComputer::new(SecureBoot::On);
    let mut log = EventLogBuilder::new();
    for Measurement { pcr, kind, digest, file, .. } in chain.measure(image)? {
        tpm.extend(pcr, &digest);
        match file {
            Some(file) => log.image(digest, &file),
            None => log.measure_digest(pcr, kind, digest, b""),
        };
    }
    tpm.set_event_log(log.build());
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // The server. A program takes the system's clock; this one stands still.
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_795_000_000)));
    let anchor = Anchor { store: Arc::new(MemoryRegistry::new()), clock };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let kbs = Endpoint::new(format!("http://{}", listener.local_addr()?).parse()?, "");
    let server = axum::serve(listener, anchor.key_broker()?.router());

    tokio::select! {
        ended = server.into_future() => bail!("the key broker ended: {ended:?}"),
        told = story(&anchor, kbs) => told,
    }
}

async fn story(anchor: &Anchor, kbs: Endpoint) -> anyhow::Result<()> {
    let image = debian_chain("2.12");
    anchor.approve_image(&image).await?;

    // The node: it boots, is admitted, attests, and gets the key of its own disk.
    let tpm = SoftTpm::p256(1);
    boot(&tpm, &image)?;
    let pins = ClevisPinGenerator::new(kbs);
    let machine = anchor.admit(&pins, &tpm).await?;
    let pin = pins.pin_config(&machine);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let deadlines = Deadlines::default();
    let client = RcarClient::new(&pin.servers, deadlines, &provider, Arc::new(SystemEntropy))?;
    let released = client.fetch(&pin.path, &tpm).await?;
    content_key(&released).context("the released resource is a disk key")?;
    println!("released {released:?} at {}", pin.path);

    // A different kernel, with everything else unchanged: no key, and a reason.
    boot(&tpm, &image.with(KERNEL, application("Linux, but not as approved")))?;
    let Err(error) = client.fetch(&pin.path, &tpm).await else {
        bail!("a changed kernel was given the key");
    };
    anchor.explain(&error).await
}
