//! A key broker inside an axum server that has routes of its own.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tec_core::ak::{AkCandidate, PublicKey, TofuMatcher};
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::boot::Pins;
use tec_core::endpoint::Endpoint;
use tec_core::flow;
use tec_core::flow::{AkOutcome, AkPorts, ProvisionPorts, RegisterPorts, UnpinnedInputs};
use tec_core::ignition::{ClevisPinGenerator, PinConfig, PinGenerator as _};
use tec_core::image::{ApprovedImage, ExpectedPcrs};
use tec_core::luks::RandomLuksKey;
use tec_core::port::{Clock as _, EntropyRng, MachineRegistry, UnclaimedLimit};
use tec_core::store::Store;
use tec_core::system::{SystemClock, SystemEntropy};
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;

/// Any error; your own program has its own type here.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The broker and its store.
#[derive(Debug)]
pub struct Broker(Arc<Store>);

impl Broker {
    /// Opens its store, or creates it.
    ///
    /// # Errors
    /// Other users can read the directory, or it contains something other than a store.
    pub fn open(directory: &Path) -> Result<Self, Failure> {
        Ok(Self(Arc::new(Store::open(directory, &SystemEntropy)?)))
    }

    /// Allows machines that boot this image to obtain their keys.
    pub async fn approve(&self, name: &str, expected: ExpectedPcrs) -> Result<(), Failure> {
        let image = ApprovedImage::new(name.parse()?, "built here", expected, SystemClock.now());
        // Only the kernel's PCR is known here: the initramfs is not checked.
        let (pins, inputs) = (Pins::Predicted, UnpinnedInputs::Accept);
        flow::publish_image(&*self.0, &*self.0, &image, pins, inputs).await?;
        Ok(())
    }

    /// Admits a machine: it gets an ID, its key is bound, and it gets a disk key. Returns what its Clevis pin
    /// needs.
    pub async fn admit(&self, key: PublicKey, reached_at: Endpoint) -> Result<PinConfig, Failure> {
        let (store, clock, entropy) = (&*self.0, &SystemClock, &SystemEntropy);
        let pins = ClevisPinGenerator::new(reached_at);
        let ports = RegisterPorts::new(store, store, &pins, clock, entropy);
        let machine = flow::register(ports, UnclaimedLimit::AtMost(100)).await?.machine;

        let ports = AkPorts::new(store, store, &TofuMatcher, store, clock);
        let candidate = AkCandidate::from_node(key, None);
        let outcome = flow::approve(ports, machine, candidate).await?;
        let AkOutcome::Bound(_) = outcome else {
            return Err(format!("the key was not bound: {outcome:?}").into());
        };
        let ports = ProvisionPorts::new(store, &RandomLuksKey, clock, entropy);
        flow::provision(ports, machine).await?;
        Ok(pins.pin_config(&machine))
    }

    /// The server: the requests of nodes, and a route that is not ours.
    pub fn router(&self) -> Result<Router, Failure> {
        let store = Arc::clone(&self.0);
        let ports = LivePorts::of(Arc::clone(&store), Arc::new(SystemClock));
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
        let kbs = Kbs::new(KbsConfig::new(
            Arc::new(LiveBackend::new(ports, &intent)),
            Arc::new(TpmVerifier::new()),
            TokenSigner::random(&mut EntropyRng::new(&SystemEntropy)),
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        ));
        Ok(kbs.router().route("/machines", get(async move || machines(&store).await)))
    }
}

async fn machines(store: &Store) -> Result<String, String> {
    let machines = MachineRegistry::list(store, None, 100).await;
    let machines = machines.map_err(|error| error.to_string())?;
    Ok(machines.iter().map(|machine| format!("{}\n", machine.id)).collect())
}
