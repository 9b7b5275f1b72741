//! The parts that a program supplies to the controllers.

use std::sync::Arc;

use kube::Client;
use tec_core::luks::{CompatLuksKey, LuksKeyGenerator};
use tec_core::port::{Clock, Entropy};

use super::trust::{LabelReader, TagReader, Trust, TrusteeMaker};
use crate::client::ServerClock;
use crate::render::Deploy;

/// The parts that the program supplies.
#[derive(Clone, derive_more::Debug)]
#[debug("Parts {{ namespace: {namespace:?}, identity: {identity:?}, .. }}")]
#[non_exhaustive]
pub struct Parts {
    /// The API server.
    pub client: Client,
    /// The one namespace that is managed.
    pub namespace: String,
    /// Name of this replica, unique: that of its pod.
    pub identity: String,
    /// Which images run, and as which user.
    pub deploy: Deploy,
    /// The Trustees.
    pub trust: Arc<dyn Trust>,
    /// Labels of images.
    pub labels: Arc<dyn LabelReader>,
    /// Tags of images, if some may be followed.
    pub tags: Option<Arc<dyn TagReader>>,
    /// Files of the cluster's own Trustee.
    pub maker: Arc<dyn TrusteeMaker>,
    /// Generates the disk keys of new machines.
    pub keys: Arc<dyn LuksKeyGenerator>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The API server's clock, if it has to agree.
    pub server_clock: Option<ServerClock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

impl Parts {
    /// Uses these parts, the images of this release, and the form of disk keys that existing clusters use.
    #[expect(clippy::too_many_arguments, reason = "ports, each of a type of its own")]
    pub fn new(
        client: Client,
        namespace: impl Into<String>,
        identity: impl Into<String>,
        trust: Arc<dyn Trust>,
        labels: Arc<dyn LabelReader>,
        maker: Arc<dyn TrusteeMaker>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            client,
            namespace: namespace.into(),
            identity: identity.into(),
            deploy: Deploy::default(),
            trust,
            labels,
            tags: None,
            maker,
            keys: Arc::new(CompatLuksKey),
            clock,
            server_clock: None,
            entropy,
        }
    }

    /// Follows tags with this reader.
    pub fn with_tags(self, tags: Arc<dyn TagReader>) -> Self {
        Self { tags: Some(tags), ..self }
    }

    /// Makes no time-based decisions while the clock differs from the API server's.
    pub fn with_server_clock(self) -> Self {
        let clock = ServerClock::new(self.client.clone(), Arc::clone(&self.clock));
        Self { server_clock: Some(clock), ..self }
    }

    /// Deploys these images.
    pub fn with_deploy(self, deploy: Deploy) -> Self {
        Self { deploy, ..self }
    }

    /// Generates the disk keys of new machines with this generator.
    pub fn with_keys(self, keys: Arc<dyn LuksKeyGenerator>) -> Self {
        Self { keys, ..self }
    }
}
