//! Where an operator is installed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tec_core::pcr::PcrIndex;

use super::Deploy;
use super::meta::labels;
use super::name::{Component, DEFAULT_NAMESPACE, NO_REGISTRY, OPERATOR_IMAGE, image};

/// Where the operator is installed, and what it runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Installation {
    /// The namespace; operator and cluster object share it.
    pub namespace: String,
    /// Image of the operator.
    pub image: String,
    /// Images that it deploys, and the user of all pods.
    pub deploy: Deploy,
    /// Secrets for pulling images, for all pods.
    pub pull_secrets: Vec<String>,
    /// Further flags of the operator.
    pub arguments: Vec<String>,
    /// Registers that must match approved images in every boot; if empty, the operator chooses them.
    pub pcrs: Vec<PcrIndex>,
}

impl Default for Installation {
    /// Installs this release in the default namespace, from [no registry](NO_REGISTRY).
    fn default() -> Self {
        Self {
            namespace: DEFAULT_NAMESPACE.to_owned(),
            image: image(NO_REGISTRY, OPERATOR_IMAGE),
            deploy: Deploy::default(),
            pull_secrets: Vec::new(),
            arguments: Vec::new(),
            pcrs: Vec::new(),
        }
    }
}

impl Installation {
    /// Metadata of an object of a component.
    pub(super) fn metadata(&self, name: &str, component: Component) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels(component)),
            ..ObjectMeta::default()
        }
    }
}
