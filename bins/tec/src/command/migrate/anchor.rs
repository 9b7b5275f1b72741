//! Anchors as people name them: a state directory, or a namespace of a cluster.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tec_core::code::Code;
use tec_core::migrate::TrustAnchor;
use tec_core::store::Store;
use tec_k8s::client::KubeRegistry;
use tec_support::exit::CodedError;

use super::super::coded;
use crate::kube;
use crate::kube::cli::Access;
use crate::state::open_existing;

/// Where the trust is.
#[derive(Clone, Debug, Args)]
pub(super) struct FromArgs {
    /// Namespace of the source, where it is on Kubernetes; --state-dir otherwise.
    #[arg(
        id = "from_namespace",
        long = "from-namespace",
        value_name = "NAMESPACE"
    )]
    namespace: Option<String>,
    /// Context of the source's kubeconfig; the current one where not given.
    #[arg(
        id = "from_context",
        long = "from-context",
        value_name = "CONTEXT",
        requires = "from_namespace"
    )]
    context: Option<String>,
    /// Kubeconfig of the source; that of KUBECONFIG or of the home directory where not given.
    #[arg(
        id = "from_kubeconfig",
        long = "from-kubeconfig",
        value_name = "FILE",
        requires = "from_namespace"
    )]
    kubeconfig: Option<PathBuf>,
}

impl FromArgs {
    pub(super) async fn open(&self, state_dir: &Path) -> anyhow::Result<Anchor> {
        if self.namespace.is_none() {
            return Ok(Anchor::Store(open_existing(state_dir)?));
        }
        let access = Access {
            namespace: self.namespace.clone(),
            context: self.context.clone(),
            kubeconfig: self.kubeconfig.clone(),
        };
        Ok(Anchor::Namespace(Box::new(kube::registry(&access).await?)))
    }
}

/// Where the trust goes.
#[derive(Clone, Debug, Args)]
#[group(id = "target", required = true, multiple = true)]
pub(super) struct ToArgs {
    /// State directory of the target; its server may run.
    #[arg(id = "to", long = "to", value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Namespace of the target, where it is on Kubernetes; its operator may run.
    #[arg(
        id = "to_namespace",
        long = "to-namespace",
        value_name = "NAMESPACE",
        conflicts_with = "to"
    )]
    namespace: Option<String>,
    /// Context of the target's kubeconfig; the current one where not given.
    #[arg(
        id = "to_context",
        long = "to-context",
        value_name = "CONTEXT",
        requires = "to_namespace"
    )]
    context: Option<String>,
    /// Kubeconfig of the target; that of KUBECONFIG or of the home directory where not given.
    #[arg(
        id = "to_kubeconfig",
        long = "to-kubeconfig",
        value_name = "FILE",
        requires = "to_namespace"
    )]
    kubeconfig: Option<PathBuf>,
}

impl ToArgs {
    pub(super) async fn open(&self) -> anyhow::Result<Anchor> {
        if let Some(directory) = &self.directory {
            return Ok(Anchor::Store(open_existing(directory)?));
        }
        let access = Access {
            namespace: self.namespace.clone(),
            context: self.context.clone(),
            kubeconfig: self.kubeconfig.clone(),
        };
        Ok(Anchor::Namespace(Box::new(kube::registry(&access).await?)))
    }
}

/// One of the two anchors.
pub(super) enum Anchor {
    Store(Arc<Store>),
    Namespace(Box<KubeRegistry>),
}

impl Anchor {
    pub(super) fn port(&self) -> &dyn TrustAnchor {
        match self {
            Self::Store(store) => &**store,
            Self::Namespace(registry) => &**registry,
        }
    }

    /// The code for one that does not answer.
    pub(super) fn unavailable(&self) -> Code {
        match self {
            Self::Store(_) => Code::StoreUnavailable,
            Self::Namespace(_) => Code::ClusterUnreachable,
        }
    }

    /// Refuses as long as nodes could not get all of their keys here: on Kubernetes others release
    /// them, and must have been told.
    pub(super) async fn is_published(&self) -> anyhow::Result<()> {
        let Self::Namespace(registry) = self else {
            return Ok(());
        };
        let read = coded(
            self.unavailable(),
            "ask which keys the target has published",
        );
        let count = registry.unpublished().await.map_err(read)?;
        if count == 0 {
            return Ok(());
        }
        let what =
            format!("{count} machines of the target are not published; does its operator run?");
        Err(CodedError::new(Code::TrustIncomplete, what).into())
    }
}
