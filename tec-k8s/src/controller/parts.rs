//! What a program brings to the controllers.

use std::sync::Arc;

use kube::Client;
use tec_core::luks::LuksKeyGenerator;
use tec_core::port::{Clock, Entropy};

use super::trust::{LabelReader, Trust, TrusteeMaker};
use crate::render::Deploy;

/// What the program brings.
#[derive(Clone)]
#[expect(clippy::exhaustive_structs, reason = "a bundle, built field by field")]
pub struct Parts {
    /// The API server.
    pub client: Client,
    /// The one namespace that is looked after.
    pub namespace: String,
    /// Name of this replica, unique: that of its pod.
    pub identity: String,
    /// Which images run, and as whom.
    pub deploy: Deploy,
    /// The Trustees.
    pub trust: Arc<dyn Trust>,
    /// Labels of images.
    pub labels: Arc<dyn LabelReader>,
    /// Files of the cluster's own Trustee.
    pub maker: Arc<dyn TrusteeMaker>,
    /// Makes the disk keys of new machines.
    pub keys: Arc<dyn LuksKeyGenerator>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("namespace", &self.namespace)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
