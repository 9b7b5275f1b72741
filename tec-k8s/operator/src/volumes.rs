//! The cluster's own Trustee, with files from ConfigMaps and Secrets that are mounted into its pod.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_k8s::client::port_error;
use tec_k8s::render::TRUSTEE_DEPLOYMENT;
use tec_trustee::publish::{
    Change, MountedTarget, Object, Observed, Patch as Difference, Pod, RESTART_ANNOTATION,
};

/// Field manager of our part of the pod; the cluster controller owns the rest.
const FIELD_MANAGER: &str = "trusted-cluster-operator-volumes";
/// Label of the mounted ConfigMaps.
const MOUNTED: (&str, &str) = ("trusted-execution-clusters.io/mounted-by", "trustee");

/// Digests of the values in an object, by key.
type Digests = BTreeMap<String, Sha256Digest>;

/// The files of one Trustee.
#[derive(derive_more::Debug)]
#[debug("Volumes {{ namespace: {namespace:?}, .. }}")]
pub(crate) struct Volumes {
    client: Client,
    namespace: String,
    owner: OwnerReference,
    /// Secrets known to have the intended content. The controllers of machines and keys create them, never
    /// this module; each is read once.
    secrets: Mutex<BTreeMap<String, Digests>>,
}

impl Volumes {
    /// Starts without knowledge of the Secrets. New objects belong to `owner`.
    pub(crate) fn new(client: Client, namespace: &str, owner: OwnerReference) -> Self {
        Self { client, namespace: namespace.to_owned(), owner, secrets: Mutex::default() }
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a ConfigMap, or changes some of its keys.
    async fn merge(
        &self,
        name: &str,
        keys: &BTreeMap<String, Change<Vec<u8>>>,
    ) -> Result<(), PortError> {
        let failed = |error| port_error(format!("write the ConfigMap {name}"), error);
        let mut data = serde_json::Map::new();
        for (key, change) in keys {
            let value = match change {
                Change::Set(value) => Value::from(text(name, key, value)?),
                Change::Remove => Value::Null,
            };
            data.insert(key.clone(), value);
        }
        let (label, value) = MOUNTED;
        let metadata = json!({"labels": {label: value}, "ownerReferences": [self.owner]});
        let patch = Patch::Merge(json!({"metadata": metadata, "data": data}));
        let params = PatchParams::default();
        match self.config_maps().patch(name, &params, &patch).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(failed(error)),
        }
        let data = data.into_iter();
        let made = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(BTreeMap::from([(label.to_owned(), value.to_owned())])),
                owner_references: Some(vec![self.owner.clone()]),
                ..ObjectMeta::default()
            },
            data: Some(
                data.filter_map(|(key, value)| Some((key, value.as_str()?.to_owned()))).collect(),
            ),
            ..ConfigMap::default()
        };
        let made = self.config_maps().create(&PostParams::default(), &made).await;
        made.map(drop).map_err(failed)
    }

    async fn remove(&self, name: &str) -> Result<(), PortError> {
        match self.config_maps().delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(port_error(format!("remove the ConfigMap {name}"), error)),
        }
    }

    /// Makes sure that a Secret has the content to mount.
    async fn check(
        &self,
        name: &str,
        keys: &BTreeMap<String, Change<SecretBytes>>,
    ) -> Result<(), PortError> {
        let operation = || format!("mount the Secret {name}");
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = secrets.get_opt(name).await;
        let secret = secret.map_err(|error| port_error(operation(), error))?;
        let Some(data) = secret.and_then(|secret| secret.data) else {
            let error = PortError::new(PortErrorKind::Unavailable, operation());
            return Err(error.because("it is not there"));
        };
        let mut digests = Digests::new();
        for (key, change) in keys {
            let Change::Set(wanted) = change else {
                continue;
            };
            let wanted = Sha256Digest::of(wanted.expose("its digest is compared"));
            if data.get(key).map(|there| Sha256Digest::of(&there.0)) != Some(wanted) {
                let error = PortError::new(PortErrorKind::Unavailable, operation());
                return Err(error.because(format!("its entry {key} is another one")));
            }
            digests.insert(key.clone(), wanted);
        }
        self.secrets.lock().insert(name.to_owned(), digests);
        Ok(())
    }

    /// Changes the pod's volumes, which replaces the pod.
    async fn mount(&self, pod: &Pod) -> Result<(), PortError> {
        let failed = |error| port_error("mount volumes into the Trustee", error);
        let deployments = self.deployments();
        let there = deployments.get_metadata_opt(TRUSTEE_DEPLOYMENT).await;
        if there.map_err(failed)?.is_none() {
            let error =
                PortError::new(PortErrorKind::Unavailable, "mount volumes into the Trustee");
            return Err(error.because("its Deployment is not there"));
        }
        let apply = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": TRUSTEE_DEPLOYMENT},
            "spec": {"template": pod.to_json()},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let applied = deployments.patch(TRUSTEE_DEPLOYMENT, &params, &Patch::Apply(apply)).await;
        applied.map(drop).map_err(failed)
    }
}

/// ConfigMaps of these files are text.
fn text(name: &str, key: &str, value: &[u8]) -> Result<String, PortError> {
    String::from_utf8(value.to_vec()).map_err(|error| {
        let operation = format!("write {key} of the ConfigMap {name}");
        PortError::new(PortErrorKind::Internal, operation).because(error)
    })
}

#[async_trait]
impl MountedTarget for Volumes {
    async fn observe(&self) -> Result<Observed, PortError> {
        let failed = |error| port_error("look at the files of the Trustee", error);
        let (label, value) = MOUNTED;
        let ours = ListParams::default().labels(&format!("{label}={value}"));
        let mut observed = Observed::default();
        for object in self.config_maps().list(&ours).await.map_err(failed)? {
            let data = object.data.iter().flatten();
            let digests = data.map(|(key, value)| (key.clone(), Sha256Digest::of(value)));
            observed.config_maps.insert(object.name_any(), digests.collect());
        }
        observed.secrets.clone_from(&self.secrets.lock());
        let deployment = self.deployments().get_opt(TRUSTEE_DEPLOYMENT).await;
        let template = deployment.map_err(failed)?.and_then(|deployment| deployment.spec);
        let annotations = template.and_then(|spec| spec.template.metadata?.annotations);
        let digest = annotations.and_then(|mut all| all.remove(RESTART_ANNOTATION));
        observed.restart_digest = digest.and_then(|digest| digest.parse().ok());
        Ok(observed)
    }

    async fn apply(&self, patch: &Difference) -> Result<(), PortError> {
        for (name, object) in &patch.config_maps {
            match object {
                Object::Merge(keys) => self.merge(name, keys).await?,
                Object::Delete => self.remove(name).await?,
            }
        }
        for (name, object) in &patch.secrets {
            if let Object::Merge(keys) = object {
                self.check(name, keys).await?;
            }
        }
        if let Some(pod) = &patch.pod {
            self.mount(pod).await?;
        }
        // Disk keys and attestation keys are removed with their owners.
        for (name, object) in &patch.secrets {
            if matches!(object, Object::Delete) {
                self.secrets.lock().remove(name);
            }
        }
        Ok(())
    }
}
