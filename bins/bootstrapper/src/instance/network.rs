//! The pod network of a new cluster: the objects of a file, applied as an admin would.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::Value;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_node::host::ClusterNetwork;

/// Field manager of the objects.
const MANAGER: &str = "tec-bootstrapper";
/// Maximum size of the file.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// Time limit of a request: the API server was just created, on this machine.
const LIMIT: Duration = Duration::from_mins(2);

/// An object, and its kind.
#[derive(Clone)]
struct Part(GroupVersionKind, DynamicObject);

/// The objects of a file.
#[derive(Clone, derive_more::Debug)]
#[debug("Manifest({})", _0.len())]
pub struct Manifest(Vec<Part>);

impl Manifest {
    /// Reads a file of YAML documents.
    /// Errors: it cannot be read, or a document is not a Kubernetes object with a name.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("read {}", path.display());
        let size = std::fs::metadata(path).with_context(what)?.len();
        anyhow::ensure!(size <= MAX_FILE, "{}: more than {MAX_FILE} bytes", path.display());
        Self::parse(&std::fs::read_to_string(path).with_context(what)?).with_context(what)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).context("not YAML")?;
        let documents = documents.into_iter().filter(|document| !document.is_null());
        documents.map(part).collect::<anyhow::Result<_>>().map(Self)
    }

    async fn apply_to(&self, client: &Client) -> Result<(), PortError> {
        for Part(kind, object) in &self.0 {
            let name = object.name_any();
            let failed = |error: kube::Error| {
                let operation = format!("apply {} {name} of the network", kind.kind);
                PortError::new(PortErrorKind::Unavailable, operation).because(error)
            };
            let (resource, capabilities) = pinned_kind(client, kind).await.map_err(failed)?;
            let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
            let api: Api<DynamicObject> = match capabilities.scope {
                Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
                Scope::Cluster => Api::all_with(client.clone(), &resource),
            };
            let params = PatchParams::apply(MANAGER).force();
            api.patch(&name, &params, &Patch::Apply(object)).await.map_err(failed)?;
        }
        Ok(())
    }
}

fn part(document: Value) -> anyhow::Result<Part> {
    let object: DynamicObject =
        serde_json::from_value(document).context("a document is not a Kubernetes object")?;
    let types = object.types.as_ref().context("an object has no kind")?;
    let kind = GroupVersionKind::try_from(types)?;
    anyhow::ensure!(object.metadata.name.is_some(), "a {} has no name", types.kind);
    Ok(Part(kind, object))
}

#[async_trait]
impl ClusterNetwork for Manifest {
    async fn apply(&self, kubeconfig: &SecretBytes) -> Result<(), PortError> {
        let operation = "apply the network of the cluster";
        let failed = |kind| PortError::new(kind, operation);
        let invalid = || failed(PortErrorKind::Internal);
        let text = std::str::from_utf8(kubeconfig.expose("apply as the admin"));
        let text = text.map_err(|error| invalid().because(error))?;
        let config = Kubeconfig::from_yaml(text).map_err(|error| invalid().because(error))?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
        let config = config.map_err(|error| invalid().because(error))?;
        let client = Client::try_from(config).map_err(|error| invalid().because(error))?;
        let applied = tokio::time::timeout(LIMIT, self.apply_to(&client)).await;
        applied.map_err(|error| failed(PortErrorKind::Unavailable).because(error))?
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    const NETWORK: &str = "# comment\n---\napiVersion: v1\nkind: ServiceAccount\n\
        metadata: {name: net, namespace: kube-system}\n---\n\
        apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: net}\n";

    #[test]
    fn a_file_of_anything_but_named_objects_is_refused() {
        assert_eq!(Manifest::parse(NETWORK).unwrap().0.len(), 2);
        for text in ["kind: Pod", "{{", "- 1", "apiVersion: v1\nkind: Pod\nmetadata: {}"] {
            assert!(Manifest::parse(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn each_object_is_applied_where_it_belongs() {
        let patched = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&patched);
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let resource = |name: &str, kind: &str, namespaced: bool| {
                json!({"name": name, "singularName": "", "kind": kind, "namespaced": namespaced,
                       "verbs": ["patch"]})
            };
            let answer = match path.as_str() {
                "/api/v1" => json!({"groupVersion": "v1",
                    "resources": [resource("serviceaccounts", "ServiceAccount", true)]}),
                "/apis/rbac.authorization.k8s.io/v1" => json!({
                    "groupVersion": "rbac.authorization.k8s.io/v1",
                    "resources": [resource("clusterroles", "ClusterRole", false)]}),
                _ => {
                    assert_eq!(request.method(), Method::PATCH);
                    seen.lock().unwrap().push(path);
                    json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "net"}})
                }
            };
            async move {
                Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        let client = Client::new(service, "default");
        Manifest::parse(NETWORK).unwrap().apply_to(&client).await.unwrap();
        let expected = [
            "/api/v1/namespaces/kube-system/serviceaccounts/net",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/net",
        ];
        assert_eq!(*patched.lock().unwrap(), expected);
    }
}
