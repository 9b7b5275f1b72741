//! Turns the controllers' facts into the desired state of `tec_trustee::publish`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use tec_core::ak::PublicKey;
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::boot::{LiveImages, Pins};
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::BaseUrl;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::image::ApprovedImage;
use tec_core::pcr::PcrIndex;
use tec_core::port::{Clock, Entropy, PortError, PortErrorKind, chain};
use tec_core::secret::SecretBytes;
use tec_k8s::api::{PublishSpec, TargetStatus, TrustedExecutionCluster};
use tec_k8s::controller::{Published, Round, Trust};
use tec_tpm::combine::{Combined, Combiner};
use tec_trustee::policy::{PolicyIntent, PolicyIntentError, pcr_reference_name};
use tec_trustee::publish::{Desired, Fanout, Health};

use crate::target::{Reach, Target};

/// Accepted types of evidence (trusted-cluster-operator).
const TEES: [Tee; 2] = [Tee::Tpm, Tee::AzSnpVtpm];
#[derive(Debug, Default)]
struct State {
    /// The attestation key of each machine.
    machines: BTreeMap<MachineId, Option<PublicKey>>,
    /// Machines whose disk key is set.
    keys: BTreeSet<MachineId>,
    /// Number of the last change to a machine, including removed ones.
    changed: BTreeMap<MachineId, u64>,
    images: Vec<ApprovedImage>,
    /// The registers in the policies.
    pinned: Option<PinnedPcrs>,
    targets: BTreeMap<String, Target>,
}

/// Trustees, each published to as the cluster object specifies.
#[derive(derive_more::Debug)]
#[debug("FedTrust {{ namespace: {:?}, .. }}", reach.namespace)]
pub struct FedTrust {
    reach: Reach,
    pins: Pins,
    desired: Desired,
    /// Rebuilt when the targets change.
    fanout: Mutex<Arc<Fanout>>,
    state: Mutex<State>,
}

impl FedTrust {
    /// Starts without targets; they come with the cluster object. `pins` determines which registers must
    /// match approved images.
    pub fn new(
        client: Client,
        namespace: &str,
        pins: Pins,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, PolicyIntentError> {
        let intent = PolicyIntent::new(pins.shared(&LiveImages::at(&[], clock.now())), TEES)?;
        let fanout = Fanout::new(Arc::clone(&clock), Arc::clone(&entropy));
        Ok(Self {
            reach: Reach {
                client,
                namespace: namespace.to_owned(),
                clock,
                entropy,
                provider,
                own_url: None,
            },
            pins,
            desired: Desired::from_intent(&intent),
            fanout: Mutex::new(Arc::new(fanout)),
            state: Mutex::default(),
        })
    }

    /// Reaches the cluster's own Trustee at `url` instead of at its Service.
    pub fn with_own_url(mut self, url: Option<BaseUrl>) -> Self {
        self.reach.own_url = url;
        self
    }

    fn fanout(&self) -> Arc<Fanout> {
        Arc::clone(&self.fanout.lock())
    }

    /// Sets the policies and the values of their registers. A Trustee's policy cannot match values of several
    /// registers to one image, nor skip a register for some images: it has the registers that every image
    /// pins, and the check in front of it covers the rest.
    fn set_values(&self, state: &mut State, images: &[ApprovedImage]) -> Result<(), PortError> {
        let live = LiveImages::at(images, self.reach.clock.now());
        let pinned = self.pins.shared(&live);
        let mut values: BTreeMap<PcrIndex, Vec<Sha256Digest>> = BTreeMap::new();
        for (_, class) in self.pins.classes(&live) {
            let combined = combined(&class)?;
            for pcr in pinned.iter() {
                values.entry(pcr).or_default().extend(combined.values(pcr));
            }
        }
        let intent = PolicyIntent::new(pinned, TEES).map_err(invalid)?;
        // Values first: a round in between must not find new, less strict policies together with the values
        // of images that are gone.
        for pcr in pinned.iter() {
            let values = values.remove(&pcr).unwrap_or_default();
            self.desired.set_pcr(pcr, values).map_err(invalid)?;
        }
        self.desired.set_policies(intent.render_attestation(), intent.render_resource());
        for pcr in state.pinned.replace(pinned).into_iter().flat_map(PinnedPcrs::iter) {
            if let (false, Ok(name)) = (pinned.contains(pcr), pcr_reference_name(pcr).parse()) {
                self.desired.remove_reference(&name);
            }
        }
        Ok(())
    }
}

/// The states of images that pin the same registers. An image that cannot be combined with those before it,
/// in order of approval, is left out, so that it cannot keep changes to the others from Trustees.
fn combined(live: &LiveImages<'_>) -> Result<Combined, PortError> {
    let mut named: Vec<_> =
        live.iter().map(|image| (image.name.as_str(), &image.expected)).collect();
    if let Ok(combined) = Combiner::new().combine(&named) {
        return Ok(combined);
    }
    let mut sorted: Vec<_> = live.iter().collect();
    sorted.sort_by_key(|image| (image.approved_at, image.name.clone()));
    named.clear();
    for image in sorted {
        named.push((image.name.as_str(), &image.expected));
        if let Err(error) = Combiner::new().combine(&named) {
            let (image, error) = (image.name.as_str(), chain(&error));
            tracing::error!(image, error, "it is left out: its boots get no key");
            named.pop();
        }
    }
    Combiner::new().combine(&named).map_err(invalid)
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> PortError {
    PortError::new(PortErrorKind::Invalid, "combine the approved images").because(error)
}

#[async_trait]
impl Trust for FedTrust {
    async fn configure(
        &self,
        cluster: &TrustedExecutionCluster,
        publish: &PublishSpec,
    ) -> Result<(), PortError> {
        let (targets, refusal) = self.reach.targets(cluster, publish).await?;
        let told = refusal.map_or(Ok(()), Err);
        let plain = targets.iter().map(|(name, (target, _))| (name.clone(), target.clone()));
        let plain: BTreeMap<_, _> = plain.collect();
        if self.state.lock().targets == plain {
            return told;
        }
        let (clock, entropy) = (Arc::clone(&self.reach.clock), Arc::clone(&self.reach.entropy));
        let mut fanout = Fanout::new(clock, entropy);
        for (name, (target, key)) in &targets {
            fanout.add(name, self.reach.publisher(name, target, key.as_ref())?);
        }
        *self.fanout.lock() = Arc::new(fanout);
        self.state.lock().targets = plain;
        told
    }

    fn pins(&self) -> Pins {
        self.pins
    }

    fn knows_key(&self, machine: &MachineId) -> bool {
        self.state.lock().keys.contains(machine)
    }

    fn set_machine(
        &self,
        machine: &MachineId,
        ak: Option<&PublicKey>,
        key: Option<SecretBytes>,
    ) -> Result<bool, PortError> {
        let mut state = self.state.lock();
        let known = state.machines.get(machine).cloned();
        let is_new = known.as_ref().is_none_or(|known| known.as_ref() != ak) || key.is_some();
        if !is_new {
            return Ok(false);
        }
        if let Some(Some(old)) = known.filter(|known| known.as_ref() != ak) {
            self.desired.unbind_key(&old);
        }
        if let Some(ak) = ak {
            self.desired.bind_key(ak, machine).map_err(|error| {
                PortError::new(PortErrorKind::Conflict, format!("state the key of {machine}"))
                    .because(error)
            })?;
        }
        state.machines.insert(*machine, ak.cloned());
        if let Some(key) = key {
            self.desired.put_secret(ResourcePath::luks_root(machine), key);
            state.keys.insert(*machine);
        }
        state.changed.insert(*machine, self.desired.revision());
        Ok(true)
    }

    fn keep_machine(&self, machine: &MachineId, ak: Option<&PublicKey>) -> Result<bool, PortError> {
        let before = self.desired.revision();
        let is_new = self.set_machine(machine, ak, None)?;
        let mut state = self.state.lock();
        self.desired.keep_secret(ResourcePath::luks_root(machine));
        let after = self.desired.revision();
        if before != after {
            state.changed.insert(*machine, after);
        }
        Ok(is_new || before != after)
    }

    fn forget_machine(&self, machine: &MachineId) -> bool {
        let mut state = self.state.lock();
        let Some(ak) = state.machines.remove(machine) else {
            return false;
        };
        if let Some(ak) = ak {
            self.desired.unbind_key(&ak);
        }
        self.desired.remove_secret(&ResourcePath::luks_root(machine));
        state.keys.remove(machine);
        state.changed.insert(*machine, self.desired.revision());
        true
    }

    fn set_images(&self, images: Vec<ApprovedImage>) -> Result<bool, PortError> {
        let mut state = self.state.lock();
        // Also at startup, when there are none: a Trustee may hold values from before.
        let is_new = state.images != images || self.desired.is_empty();
        if is_new {
            self.set_values(&mut state, &images)?;
            self.desired.set_images(images.iter().cloned());
            state.images = images;
        }
        Ok(is_new)
    }

    fn published(&self, machine: &MachineId) -> Published {
        let all = self.fanout().status();
        let mut state = self.state.lock();
        // A machine that was not mentioned since startup: what Trustees hold of it is removed in the first
        // round.
        let since = state.changed.get(machine).copied().unwrap_or(1);
        let has_it = |status: &tec_trustee::publish::TargetStatus| {
            status.converged_at.is_some() && status.revision >= since
        };
        let names = all.iter().filter(|(_, status)| has_it(status)).map(|(name, _)| name.clone());
        let published = Published::new(names.collect(), all.len());
        if published.is_complete && !state.machines.contains_key(machine) {
            state.changed.remove(machine);
        }
        published
    }

    async fn round(&self) -> Round {
        let fanout = self.fanout();
        let status = fanout.publish(&self.desired).await;
        let targets = status.into_iter().map(|(name, status)| {
            let lag = u32::try_from(status.lag).unwrap_or(u32::MAX);
            let is_healthy = status.health == Health::Healthy;
            let why =
                status.error.or_else(|| (!is_healthy).then(|| "changes are gathered".to_owned()));
            TargetStatus::new(name, lag, why)
        });
        let targets = targets.collect();
        let now = self.reach.clock.now().unix_seconds();
        let due = fanout.next_due().map(|due| due.unix_seconds().saturating_sub(now));
        let again = due.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        Round::new(targets, again)
    }

    async fn distrust(&self, target: &str) {
        self.fanout().distrust(target).await;
    }
}
