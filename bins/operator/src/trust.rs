//! The controllers' facts as the desired state of `tec_trustee::publish`.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::Client;
use kube::ResourceExt as _;
use rustls::crypto::CryptoProvider;
use tec_core::ak::PublicKey;
use tec_core::attest::PinnedPcrs;
use tec_core::attest::Tee;
use tec_core::endpoint::Endpoint;
use tec_core::id::MachineId;
use tec_core::id::ResourcePath;
use tec_core::image::ApprovedImage;
use tec_core::pcr::PcrIndex;
use tec_core::port::Clock;
use tec_core::port::Entropy;
use tec_core::port::PortError;
use tec_core::port::PortErrorKind;
use tec_core::secret::SecretBytes;
use tec_k8s::api::PublishMode;
use tec_k8s::api::PublishSpec;
use tec_k8s::api::TargetStatus;
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::client::port_error;
use tec_k8s::controller::Published;
use tec_k8s::controller::Round;
use tec_k8s::controller::Trust;
use tec_k8s::render::KBS_SERVICE;
use tec_k8s::render::TRUSTEE_AUTH;
use tec_tpm::combine::Combiner;
use tec_trustee::client::Deadlines;
use tec_trustee::config::Generation;
use tec_trustee::policy::PolicyIntent;
use tec_trustee::publish::AdminApi;
use tec_trustee::publish::AdminKey;
use tec_trustee::publish::BrokerPublisher;
use tec_trustee::publish::Desired;
use tec_trustee::publish::Fanout;
use tec_trustee::publish::Health;

/// Registers that are pinned: boot loader and kernel, and the keys that shim accepts
/// (upstream-operator 2.5).
const PINNED: [PcrIndex; 2] = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK];
/// Evidence that counts (upstream-operator 2.6).
const TEES: [Tee; 2] = [Tee::Tpm, Tee::AzSnpVtpm];
/// Name of the cluster's own Trustee.
const OWN: &str = "trustee";
/// Port of its Service where the cluster object names none (upstream-operator 1.2).
const PORT: i32 = 8080;
/// Entries of Secrets (upstream-operator 1.2, 1.4).
const PRIVATE_KEY: &str = "private.key";
const CA: &str = "ca.crt";

/// What a target is made from; it is made anew when any of it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    url: String,
    ca: String,
    key_version: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    /// The attestation key of each machine.
    machines: BTreeMap<MachineId, Option<PublicKey>>,
    /// Machines whose disk key is stated.
    keys: BTreeSet<MachineId>,
    /// Number of the last change about a machine, also of one that is gone.
    changed: BTreeMap<MachineId, u64>,
    images: Vec<ApprovedImage>,
    targets: BTreeMap<String, Target>,
}

/// Trustees, fed through their admin API.
pub(crate) struct FedTrust {
    client: Client,
    namespace: String,
    generation: Generation,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    provider: Arc<CryptoProvider>,
    desired: Desired,
    /// Made anew when the targets change.
    fanout: Mutex<Arc<Fanout>>,
    state: Mutex<State>,
}

impl fmt::Debug for FedTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FedTrust")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl FedTrust {
    /// No targets yet; they come with the cluster object.
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        generation: Generation,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> anyhow::Result<Self> {
        let pinned = PinnedPcrs::new(PINNED.into_iter().collect())?;
        let intent = PolicyIntent::new(pinned, TEES)?;
        let fanout = Fanout::new(Arc::clone(&clock), Arc::clone(&entropy));
        Ok(Self {
            client,
            namespace: namespace.to_owned(),
            generation,
            clock,
            entropy,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            desired: Desired::from_intent(&intent),
            fanout: Mutex::new(Arc::new(fanout)),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fanout(&self) -> Arc<Fanout> {
        Arc::clone(&self.fanout.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One entry of a Secret, and the Secret's version.
    async fn entry(
        &self,
        name: &str,
        entry: &str,
    ) -> Result<(SecretBytes, Option<String>), PortError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = |error| port_error(format!("read the Secret {name}"), error);
        let mut secret = secrets.get(name).await.map_err(read)?;
        let bytes = secret.data.as_mut().and_then(|data| data.remove(entry));
        let bytes = bytes.ok_or_else(|| {
            let why = format!("the Secret {name} has no entry {entry}");
            PortError::new(PortErrorKind::Invalid, why)
        })?;
        Ok((SecretBytes::new(bytes.0), secret.resource_version()))
    }

    async fn certificate(&self, secret: Option<&str>) -> Result<String, PortError> {
        let Some(name) = secret else {
            return Ok(String::new());
        };
        let (bytes, _) = self.entry(name, CA).await?;
        String::from_utf8(bytes.expose("certificates are public").to_vec()).map_err(|error| {
            let why = format!("{CA} of the Secret {name} is no text");
            PortError::new(PortErrorKind::Invalid, why).because(error)
        })
    }

    /// The targets that the cluster object asks for, and the publisher of each.
    async fn targets(
        &self,
        cluster: &TrustedExecutionCluster,
        publish: &PublishSpec,
    ) -> Result<BTreeMap<String, (Target, SecretBytes)>, PortError> {
        let spec = &cluster.spec;
        let mut wanted = vec![self.own(cluster, spec.trustee_secret.as_deref())];
        wanted.extend(publish.targets.iter().map(|target| {
            let ca = target.ca_secret.as_deref();
            (
                target.name.clone(),
                target.url.clone(),
                target.admin_key_secret.as_str(),
                ca,
            )
        }));
        let mut targets = BTreeMap::new();
        for (name, url, key_secret, ca_secret) in wanted {
            let (key, key_version) = self.entry(key_secret, PRIVATE_KEY).await?;
            let ca = self.certificate(ca_secret).await?;
            let target = Target {
                url,
                ca,
                key_version,
            };
            targets.insert(name, (target, key));
        }
        Ok(targets)
    }

    /// The cluster's own Trustee, within the cluster: no public name need resolve.
    fn own<'a>(
        &self,
        cluster: &TrustedExecutionCluster,
        ca: Option<&'a str>,
    ) -> (String, String, &'a str, Option<&'a str>) {
        let scheme = if ca.is_some() { "https" } else { "http" };
        let port = cluster.spec.trustee_kbs_port.unwrap_or(PORT);
        let url = format!("{scheme}://{KBS_SERVICE}.{}.svc:{port}", self.namespace);
        (OWN.to_owned(), url, TRUSTEE_AUTH, ca)
    }

    fn publisher(
        &self,
        name: &str,
        target: &Target,
        key: &SecretBytes,
    ) -> Result<Arc<BrokerPublisher>, PortError> {
        let invalid = |error: Box<dyn std::error::Error + Send + Sync>| {
            PortError::new(PortErrorKind::Invalid, format!("reach the Trustee {name}"))
                .because(error)
        };
        let url = target
            .url
            .parse()
            .map_err(|error| invalid(Box::new(error)))?;
        let endpoint = Endpoint::new(url, &*target.ca);
        let key = AdminKey::from_pem(key).map_err(|error| invalid(Box::new(error)))?;
        let clock = Arc::clone(&self.clock);
        let deadlines = Deadlines::default();
        let api = if name == OWN && !endpoint.url.is_tls() {
            tracing::warn!("without spec.trusteeSecret disk keys go to the Trustee in clear text");
            AdminApi::dangerous_plain_http(
                &endpoint,
                self.generation,
                key,
                clock,
                deadlines,
                &self.provider,
            )
        } else {
            AdminApi::new(
                &endpoint,
                self.generation,
                key,
                clock,
                deadlines,
                &self.provider,
            )
        };
        let api = api.map_err(|error| invalid(Box::new(error)))?;
        Ok(Arc::new(BrokerPublisher::new(
            Arc::new(api),
            Arc::clone(&self.entropy),
        )))
    }

    /// States the values that each pinned register may have, also of boots between two images.
    fn set_values(&self, images: &[ApprovedImage]) -> Result<(), PortError> {
        let invalid = |error: Box<dyn std::error::Error + Send + Sync>| {
            PortError::new(PortErrorKind::Invalid, "combine the approved images").because(error)
        };
        let named: Vec<_> = images
            .iter()
            .map(|image| (image.name.as_str(), &image.expected))
            .collect();
        let combined = Combiner::new()
            .combine(&named)
            .map_err(|error| invalid(Box::new(error)))?;
        for pcr in PINNED {
            let set = self.desired.set_pcr(pcr, combined.values(pcr));
            set.map_err(|error| invalid(Box::new(error)))?;
        }
        Ok(())
    }
}

#[async_trait]
impl Trust for FedTrust {
    async fn configure(
        &self,
        cluster: &TrustedExecutionCluster,
        publish: &PublishSpec,
    ) -> Result<(), PortError> {
        if publish.mode == PublishMode::Volumes {
            let why = "publish through volumes: this operator feeds Trustees by their admin API";
            return Err(PortError::new(PortErrorKind::Invalid, why));
        }
        let targets = self.targets(cluster, publish).await?;
        let plain = targets
            .iter()
            .map(|(name, (target, _))| (name.clone(), target.clone()));
        let plain: BTreeMap<_, _> = plain.collect();
        if self.state().targets == plain {
            return Ok(());
        }
        let mut fanout = Fanout::new(Arc::clone(&self.clock), Arc::clone(&self.entropy));
        for (name, (target, key)) in &targets {
            fanout.add(name, self.publisher(name, target, key)?);
        }
        *self.fanout.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(fanout);
        self.state().targets = plain;
        Ok(())
    }

    fn knows_key(&self, machine: &MachineId) -> bool {
        self.state().keys.contains(machine)
    }

    fn set_machine(
        &self,
        machine: &MachineId,
        ak: Option<&PublicKey>,
        key: Option<SecretBytes>,
    ) -> Result<bool, PortError> {
        let mut state = self.state();
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
                PortError::new(
                    PortErrorKind::Conflict,
                    format!("state the key of {machine}"),
                )
                .because(error)
            })?;
        }
        state.machines.insert(*machine, ak.cloned());
        if let Some(key) = key {
            self.desired
                .put_secret(ResourcePath::luks_root(machine), key);
            state.keys.insert(*machine);
        }
        state.changed.insert(*machine, self.desired.revision());
        Ok(true)
    }

    fn forget_machine(&self, machine: &MachineId) -> bool {
        let mut state = self.state();
        let Some(ak) = state.machines.remove(machine) else {
            return false;
        };
        if let Some(ak) = ak {
            self.desired.unbind_key(&ak);
        }
        self.desired
            .remove_secret(&ResourcePath::luks_root(machine));
        state.keys.remove(machine);
        state.changed.insert(*machine, self.desired.revision());
        true
    }

    fn set_images(&self, images: Vec<ApprovedImage>) -> Result<bool, PortError> {
        let mut state = self.state();
        // Also at the start, when there are none: a Trustee may hold values from before.
        let is_new = state.images != images || self.desired.is_empty();
        if is_new {
            self.set_values(&images)?;
            state.images = images;
        }
        Ok(is_new)
    }

    fn published(&self, machine: &MachineId) -> Published {
        let all = self.fanout().status();
        let mut state = self.state();
        // A machine that nobody spoke of since the start: what Trustees hold of it goes with the
        // first round.
        let since = state.changed.get(machine).copied().unwrap_or(1);
        let has_it = |status: &tec_trustee::publish::TargetStatus| {
            status.converged_at.is_some() && status.revision >= since
        };
        let names = all
            .iter()
            .filter(|(_, status)| has_it(status))
            .map(|(name, _)| name.clone());
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
            let why = status
                .error
                .or_else(|| (!is_healthy).then(|| "changes are gathered".to_owned()));
            TargetStatus::new(name, lag, why)
        });
        let targets = targets.collect();
        let now = self.clock.now().unix_seconds();
        let due = fanout
            .next_due()
            .map(|due| due.unix_seconds().saturating_sub(now));
        let again = due.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        Round::new(targets, again)
    }

    async fn distrust(&self, target: &str) {
        self.fanout().distrust(target).await;
    }
}
