//! A controller of your own over the custom resources: every Machine gets a disk key from your own generator.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, Resource as _};
use tec_core::flow;
use tec_core::flow::ProvisionPorts;
use tec_core::luks::{LuksKeyGenerator, LuksResource};
use tec_core::port::{Entropy, PortError, PortErrorKind, PutOutcome};
use tec_core::secret::SecretArray;
use tec_core::system::{SystemClock, SystemEntropy};
use tec_k8s::api::Machine;
use tec_k8s::client::KubeRegistry;

/// Time after which a failure is retried.
const AGAIN: Duration = Duration::from_secs(10);

/// Generates keys from two sources, such as the kernel and a smart card, so that one bad source alone does
/// not produce a bad key.
#[derive(Debug)]
pub struct TwoSources(pub Arc<dyn Entropy>);

impl LuksKeyGenerator for TwoSources {
    fn generate(&self, rng: &mut dyn rand_core::CryptoRng) -> LuksResource {
        let (mut key, mut other) = ([0; 32], [0; 32]);
        rng.fill_bytes(&mut key);
        self.0.fill(&mut other);
        let both = std::array::from_fn(|byte| key[byte] ^ other[byte]);
        LuksResource::of_key(&SecretArray::new(both))
    }
}

/// Gives disk keys to machines.
#[derive(Debug)]
pub struct DiskKeys {
    registry: KubeRegistry,
    generator: TwoSources,
}

impl DiskKeys {
    /// Creates a controller for the machines of a namespace.
    pub fn new(client: Client, namespace: &str, other_source: Arc<dyn Entropy>) -> Self {
        let registry = KubeRegistry::new(client, namespace, Arc::new(SystemClock));
        Self { registry, generator: TwoSources(other_source) }
    }

    /// Creates the key of one machine, unless there is one.
    ///
    /// # Errors
    /// The object is not a machine's, or the API server does not answer.
    pub async fn provide(&self, machine: &Machine) -> Result<PutOutcome, PortError> {
        let invalid = |error| PortError::new(PortErrorKind::Invalid, "read").because(error);
        let id = machine.to_core().map_err(invalid)?.id;
        // The Secret is deleted with its Machine, and so belongs to this Machine alone.
        let owner = machine.controller_owner_ref(&());
        let secrets = owner.map_or(self.registry.clone(), |owner| self.registry.owned_by(owner));
        let (clock, entropy) = (&SystemClock, &SystemEntropy);
        let ports = ProvisionPorts::new(&secrets, &self.generator, clock, entropy);
        flow::provision(ports, id).await
    }

    /// Watches the machines of the namespace; each item reports the result for one of them.
    pub fn run(self: Arc<Self>) -> impl Stream<Item = Result<(), String>> {
        let machines: Api<Machine> = self.registry.objects();
        let reconcile = |machine: Arc<Machine>, keys: Arc<Self>| async move {
            keys.provide(&machine).await.map(|_| Action::await_change())
        };
        let again = |_: Arc<Machine>, _: &PortError, _: Arc<Self>| Action::requeue(AGAIN);
        let controller = Controller::new(machines, watcher::Config::default());
        let done = controller.run(reconcile, again, self);
        done.map(|outcome| outcome.map(|_| ()).map_err(|error| error.to_string()))
    }
}
