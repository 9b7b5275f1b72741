//! One namespace of an API server.

use anyhow::{Context as _, anyhow};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde_json::Value;
use tec_core::code::Code;
use tec_k8s::api::TrustedExecutionCluster;
use tec_k8s::client::Object;
use tec_support::exit::CodedError;

use super::FIELD_MANAGER;
use crate::args::Access;
use crate::args::DryRun;

/// Objects per page; the same as in kubectl.
const PAGE: u32 = 500;

/// A client for one namespace.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Cluster {
    /// Uses the kubeconfig or, within a pod, the service account.
    pub(crate) async fn connect(access: &Access) -> anyhow::Result<Self> {
        // Fails only if a provider is already installed, which is just as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = config(access).await?;
        let namespace = access.namespace.clone();
        Ok(Self {
            namespace: namespace.unwrap_or_else(|| config.default_namespace.clone()),
            client: Client::try_from(config).context("cannot set up the client")?,
        })
    }

    /// Objects of one kind.
    pub(crate) fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// All objects of a kind, page by page.
    pub(crate) async fn list<K: Object>(&self) -> Result<Vec<K>, CodedError> {
        self.select(ListParams::default()).await
    }

    /// The objects of a kind that match a label selector.
    pub(crate) async fn list_labeled<K: Object>(&self, labels: &str) -> Result<Vec<K>, CodedError> {
        self.select(ListParams::default().labels(labels)).await
    }

    async fn select<K: Object>(&self, query: ListParams) -> Result<Vec<K>, CodedError> {
        let mut query = query.limit(PAGE);
        let mut objects = Vec::new();
        loop {
            let what = || format!("list {} in {}", K::plural(&()), self.namespace);
            let page = self.api::<K>().list(&query).await;
            let page = page.map_err(coded(what()))?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => query = query.continue_token(&next),
                None => return Ok(objects),
            }
        }
    }

    /// One object, if it exists.
    pub(crate) async fn find<K: Object>(&self, name: &str) -> Result<Option<K>, CodedError> {
        let what = format!("look up {} {name} in {}", K::kind(&()), self.namespace);
        self.api::<K>().get_opt(name).await.map_err(coded(what))
    }

    /// One object.
    pub(crate) async fn get<K: Object>(&self, name: &str) -> Result<K, CodedError> {
        let missing = || {
            let what = format!("there is no {} {name} in {}", K::kind(&()), self.namespace);
            CodedError::new(Code::ClusterMissing, what)
        };
        self.find(name).await?.ok_or_else(missing)
    }

    /// The only cluster object of the namespace.
    pub(crate) async fn cluster_object(&self) -> Result<TrustedExecutionCluster, CodedError> {
        let mut found = self.list::<TrustedExecutionCluster>().await?;
        match (found.pop(), found.is_empty()) {
            (Some(object), true) => Ok(object),
            (None, _) => Err(CodedError::new(
                Code::ClusterMissing,
                format!("there is no TrustedExecutionCluster in {}", self.namespace),
            )),
            (Some(_), false) => Err(CodedError::new(
                Code::ClusterConflict,
                format!("{} has several TrustedExecutionClusters", self.namespace),
            )),
        }
    }

    /// Creates an object.
    pub(crate) async fn create<K>(&self, object: &K, dry_run: DryRun) -> Result<K, CodedError>
    where
        K: Object + Serialize,
    {
        let name = object.meta().name.clone().unwrap_or_default();
        let params =
            PostParams { dry_run: dry_run.dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
        let created = self.api::<K>().create(&params, object).await;
        created.map_err(coded(format!("create {} {name}", K::kind(&()))))
    }

    /// Changes fields of an existing object.
    pub(crate) async fn merge<K: Object>(
        &self,
        name: &str,
        change: &Value,
        dry_run: DryRun,
    ) -> Result<K, CodedError> {
        let params = PatchParams {
            dry_run: dry_run.dry_run,
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(change);
        let changed = self.api::<K>().patch(name, &params, &patch).await;
        changed.map_err(coded(format!("change {} {name}", K::kind(&()))))
    }

    /// Applies fields of an object's status, and leaves the fields of other owners alone.
    pub(crate) async fn apply_status<K: Object>(
        &self,
        name: &str,
        status: &Value,
        dry_run: DryRun,
    ) -> Result<K, CodedError> {
        let params =
            PatchParams { dry_run: dry_run.dry_run, ..PatchParams::apply(FIELD_MANAGER).force() };
        let patch = Patch::Apply(serde_json::json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": name},
            "status": status,
        }));
        let applied = self.api::<K>().patch_status(name, &params, &patch).await;
        applied.map_err(coded(format!("change the status of {} {name}", K::kind(&()))))
    }
}

async fn config(access: &Access) -> anyhow::Result<Config> {
    let options =
        KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &access.kubeconfig {
        let file = Kubeconfig::read_from(path)
            .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
        return Config::from_custom_kubeconfig(file, &options)
            .await
            .with_context(|| format!("cannot use the kubeconfig {}", path.display()));
    }
    // Errors about the file contain their causes.
    if let Some(context) = &access.context {
        return Config::from_kubeconfig(&options).await.map_err(|error| {
            anyhow!(
                "cannot use the context {context}: {error} (list the contexts with `kubectl config \
                 get-contexts`, or pass --kubeconfig FILE)"
            )
        });
    }
    Config::infer().await.map_err(|error| {
        // Outside a pod, only the file matters.
        let why = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string);
        anyhow!("cannot reach a cluster: {why} (set KUBECONFIG, or pass --kubeconfig FILE)")
    })
}

/// Gives an error of the API server its code.
pub(crate) fn coded(context: String) -> impl FnOnce(kube::Error) -> CodedError {
    move |error| {
        let code = match &error {
            kube::Error::Api(status) => match status.code {
                401 | 403 => Code::ClusterForbidden,
                404 => Code::ClusterMissing,
                409 => Code::ClusterConflict,
                400..=499 => Code::ClusterRefused,
                _ => Code::ClusterUnreachable,
            },
            _ => Code::ClusterUnreachable,
        };
        CodedError::caused(code, context, error)
    }
}
