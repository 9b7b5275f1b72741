//! The cluster object that counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tokio::sync::watch;

use super::watch::follow;
use crate::api::TrustedExecutionCluster;

/// The cluster object of a namespace. If there are several, the oldest counts, as for the operator; the
/// others have no effect.
#[derive(Debug)]
pub struct ClusterView {
    current: watch::Sender<Option<Arc<TrustedExecutionCluster>>>,
    synced: watch::Sender<bool>,
}

impl Default for ClusterView {
    fn default() -> Self {
        Self { current: watch::Sender::new(None), synced: watch::Sender::new(false) }
    }
}

impl ClusterView {
    /// The object that counts, and a way to wait for the next change.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<TrustedExecutionCluster>>> {
        self.current.subscribe()
    }

    /// Whether every object has been seen at least once.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Follows the objects of the namespace forever.
    pub async fn follow(&self, client: Client, namespace: &str) {
        let mut objects = BTreeMap::new();
        let mut initial = BTreeMap::new();
        follow(Api::namespaced(client, namespace), |event| match event {
            Event::Init => initial.clear(),
            Event::InitApply(object) => keep(&mut initial, object),
            Event::InitDone => {
                objects = std::mem::take(&mut initial);
                self.publish(&objects);
                self.synced.send_replace(true);
            }
            Event::Apply(object) => {
                keep(&mut objects, object);
                self.publish(&objects);
            }
            Event::Delete(object) => {
                objects.remove(&object.name_any());
                self.publish(&objects);
            }
        })
        .await;
    }

    fn publish(&self, objects: &BTreeMap<String, TrustedExecutionCluster>) {
        let counts = oldest(objects.values());
        self.current.send_if_modified(|current| {
            let is_same = current.as_deref() == counts;
            if !is_same {
                *current = counts.cloned().map(Arc::new);
            }
            !is_same
        });
    }
}

fn keep(objects: &mut BTreeMap<String, TrustedExecutionCluster>, object: TrustedExecutionCluster) {
    objects.insert(object.name_any(), object);
}

/// The oldest object that is not being removed; if several are equally old, the first by name.
fn oldest<'a>(
    objects: impl Iterator<Item = &'a TrustedExecutionCluster>,
) -> Option<&'a TrustedExecutionCluster> {
    let live = objects.filter(|object| object.metadata.deletion_timestamp.is_none());
    live.min_by_key(|object| (object.creation_timestamp(), object.name_any()))
}

/// The reference with which this cluster owns objects.
pub fn owner_of(cluster: &TrustedExecutionCluster) -> Option<OwnerReference> {
    cluster.controller_owner_ref(&())
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;

    fn cluster(name: &str, created: &str) -> TrustedExecutionCluster {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1",
            "kind": "TrustedExecutionCluster",
            "metadata": { "name": name, "creationTimestamp": created },
            "spec": {},
        }))
        .unwrap()
    }

    #[test]
    fn of_several_clusters_the_oldest_live_one_counts() {
        let mut first = cluster("z", "2026-01-01T00:00:00Z");
        let second = cluster("a", "2026-01-02T00:00:00Z");
        let name =
            |objects: &[TrustedExecutionCluster]| oldest(objects.iter()).map(ResourceExt::name_any);
        assert_eq!(name(&[second.clone(), first.clone()]).as_deref(), Some("z"));
        first.metadata.deletion_timestamp = first.metadata.creation_timestamp.clone();
        assert_eq!(name(&[second, first]).as_deref(), Some("a"));
        assert_eq!(name(&[]), None);
    }
}
