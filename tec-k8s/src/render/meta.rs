//! Metadata that objects share.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::Resource as _;

use super::name::{Component, FIELD_MANAGER};
use crate::api::TrustedExecutionCluster;

/// A cluster object cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The object was never stored: the API server gives each object a name, a namespace and a UID.
    #[error("cluster object {name:?} has no {field}; only a stored one can own others")]
    NotStored {
        /// Its name, if it has one.
        name: String,
        /// What is missing.
        field: &'static str,
    },
}

/// Labels of an object that belongs to a component.
pub(super) fn labels(component: Component) -> BTreeMap<String, String> {
    let own = [
        ("app", component.app()),
        ("app.kubernetes.io/component", component.service_account()),
        ("app.kubernetes.io/managed-by", FIELD_MANAGER),
        ("app.kubernetes.io/part-of", super::DEFAULT_NAMESPACE),
    ];
    text_map(own)
}

/// Selects the pods of a component. A Deployment's selector can never change, so it uses only the label of
/// existing clusters.
pub(super) fn selector(component: Component) -> BTreeMap<String, String> {
    text_map([("app", component.app())])
}

/// The same, for fields that take a label selector.
pub(super) fn label_selector(component: Component) -> LabelSelector {
    LabelSelector { match_labels: Some(selector(component)), ..LabelSelector::default() }
}

pub(super) fn text_map<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Creates metadata for objects that one cluster object owns.
pub(super) struct Owner {
    namespace: String,
    reference: OwnerReference,
}

impl Owner {
    pub(super) fn new(cluster: &TrustedExecutionCluster) -> Result<Self, RenderError> {
        let missing = |field| RenderError::NotStored {
            name: cluster.metadata.name.clone().unwrap_or_default(),
            field,
        };
        let namespace = cluster.metadata.namespace.clone();
        Ok(Self {
            namespace: namespace.ok_or_else(|| missing("namespace"))?,
            reference: cluster
                .controller_owner_ref(&())
                .ok_or_else(|| missing("name or UID"))
                .map(blocking)?,
        })
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Metadata of an object of a component.
    pub(super) fn metadata(&self, name: &str, component: Component) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels(component)),
            owner_references: Some(vec![self.reference.clone()]),
            ..ObjectMeta::default()
        }
    }
}

/// Foreground deletion waits for it (trusted-cluster-operator).
fn blocking(reference: OwnerReference) -> OwnerReference {
    OwnerReference { block_owner_deletion: Some(true), ..reference }
}
