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
    #[arg(long, value_name = "NAMESPACE")]
    from_namespace: Option<String>,
    /// Context of the source's kubeconfig; the current one where not given.
    #[arg(long, value_name = "CONTEXT", requires = "from_namespace")]
    from_context: Option<String>,
    /// Kubeconfig of the source; that of KUBECONFIG or of the home directory where not given.
    #[arg(long, value_name = "FILE", requires = "from_namespace")]
    from_kubeconfig: Option<PathBuf>,
}

impl FromArgs {
    pub(super) async fn open(&self, state_dir: &Path) -> anyhow::Result<Anchor> {
        if self.from_namespace.is_none() {
            return Ok(Anchor::Store(open_existing(state_dir)?));
        }
        let access = Access {
            namespace: self.from_namespace.clone(),
            context: self.from_context.clone(),
            kubeconfig: self.from_kubeconfig.clone(),
        };
        Ok(Anchor::Namespace(kube::registry(&access).await?))
    }
}

/// Where the trust goes.
#[derive(Clone, Debug, Args)]
#[group(id = "target", required = true, multiple = true)]
pub(super) struct ToArgs {
    /// State directory of the target; its server may run.
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
    /// Namespace of the target, where it is on Kubernetes; its operator may run.
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "to")]
    to_namespace: Option<String>,
    /// Context of the target's kubeconfig; the current one where not given.
    #[arg(long, value_name = "CONTEXT", requires = "to_namespace")]
    to_context: Option<String>,
    /// Kubeconfig of the target; that of KUBECONFIG or of the home directory where not given.
    #[arg(long, value_name = "FILE", requires = "to_namespace")]
    to_kubeconfig: Option<PathBuf>,
}

impl ToArgs {
    pub(super) async fn open(&self) -> anyhow::Result<Anchor> {
        if let Some(directory) = &self.to {
            return Ok(Anchor::Store(open_existing(directory)?));
        }
        let access = Access {
            namespace: self.to_namespace.clone(),
            context: self.to_context.clone(),
            kubeconfig: self.to_kubeconfig.clone(),
        };
        Ok(Anchor::Namespace(kube::registry(&access).await?))
    }
}

/// One of the two anchors.
pub(super) enum Anchor {
    Store(Arc<Store>),
    Namespace(KubeRegistry),
}

impl Anchor {
    pub(super) fn port(&self) -> &dyn TrustAnchor {
        match self {
            Self::Store(store) => &**store,
            Self::Namespace(registry) => registry,
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
