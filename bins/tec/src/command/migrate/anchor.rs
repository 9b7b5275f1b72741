//! Anchors as named on the command line: a state directory, or a namespace of a cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use tec_core::code::Code;
use tec_core::migrate::TrustAnchor;
use tec_core::store::Store;
use tec_k8s::client::KubeRegistry;
use tec_support::exit::CodedError;

use super::super::coded;
use crate::args::Access;
use crate::kube;
use crate::state::{open, open_existing};

/// The flags that select a namespace for one end. Clap accepts flag names only as literals.
macro_rules! namespace_flags {
    ($name:ident, $end:literal, $whose:literal) => {
        #[derive(Clone, Debug, Args)]
        struct $name {
            #[arg(
                id = concat!($end, "_namespace"),
                long = concat!($end, "-namespace"),
                value_name = "NAMESPACE",
                help = concat!("Namespace of the ", $whose, ", where it is on Kubernetes")
            )]
            namespace: Option<String>,
            #[arg(
                id = concat!($end, "_context"),
                long = concat!($end, "-context"),
                value_name = "CONTEXT",
                requires = concat!($end, "_namespace"),
                help = concat!("Context of the ", $whose, "'s kubeconfig; the current one where not given")
            )]
            context: Option<String>,
            #[arg(
                id = concat!($end, "_kubeconfig"),
                long = concat!($end, "-kubeconfig"),
                value_name = "FILE",
                requires = concat!($end, "_namespace"),
                help = concat!("Kubeconfig of the ", $whose,
                    "; that of KUBECONFIG or of the home directory where not given")
            )]
            kubeconfig: Option<PathBuf>,
        }

        impl $name {
            async fn open(&self) -> anyhow::Result<Anchor> {
                let access = Access {
                    namespace: self.namespace.clone(),
                    context: self.context.clone(),
                    kubeconfig: self.kubeconfig.clone(),
                };
                Ok(Anchor::Namespace(Box::new(kube::registry(&access).await?)))
            }
        }
    };
}

namespace_flags!(FromNamespace, "from", "source");
namespace_flags!(ToNamespace, "to", "target");

/// Where the trust is: --state-dir, unless a namespace is given.
#[derive(Clone, Debug, Args)]
pub(super) struct FromArgs {
    #[command(flatten)]
    namespace: FromNamespace,
}

impl FromArgs {
    pub(super) async fn open(&self, state_dir: &Path) -> anyhow::Result<Anchor> {
        match self.namespace.namespace {
            Some(_) => self.namespace.open().await,
            None => Ok(Anchor::Store(open_existing(state_dir)?, state_dir.to_owned())),
        }
    }
}

/// Where the trust goes.
#[derive(Clone, Debug, Args)]
pub(super) struct ToArgs {
    /// State directory of the target; its server can keep running.
    #[arg(
        id = "to",
        long = "to",
        value_name = "DIRECTORY",
        conflicts_with = "to_namespace",
        required_unless_present = "to_namespace"
    )]
    directory: Option<PathBuf>,
    #[command(flatten)]
    namespace: ToNamespace,
}

impl ToArgs {
    pub(super) async fn open(&self) -> anyhow::Result<Anchor> {
        match &self.directory {
            Some(directory) => Anchor::open(directory),
            None => self.namespace.open().await,
        }
    }
}

/// One of the two anchors.
pub(super) enum Anchor {
    Store(Arc<Store>, PathBuf),
    Namespace(Box<KubeRegistry>),
}

impl Anchor {
    fn open(directory: &Path) -> anyhow::Result<Self> {
        // A target anchor may be empty, but creating its directory is up to its admin.
        anyhow::ensure!(directory.is_dir(), "there is no directory {}", directory.display());
        Ok(Self::Store(open(directory)?, directory.to_owned()))
    }

    pub(super) fn port(&self) -> &dyn TrustAnchor {
        match self {
            Self::Store(store, _) => &**store,
            Self::Namespace(registry) => &**registry,
        }
    }

    /// The error code if the anchor does not answer.
    pub(super) fn unavailable(&self) -> Code {
        match self {
            Self::Store(..) => Code::StoreUnavailable,
            Self::Namespace(_) => Code::ClusterUnreachable,
        }
    }

    /// Refuses until nodes can get all of their keys here: on Kubernetes, other servers release the keys, and
    /// must have received them and the policies.
    pub(super) async fn is_published(&self) -> anyhow::Result<()> {
        let Self::Namespace(registry) = self else {
            return Ok(());
        };
        let read = coded(self.unavailable(), "ask what the target has published");
        let count = registry.unpublished().await.map_err(read)?;
        if count > 0 {
            let what =
                format!("{count} machines of the target are not published; does its operator run?");
            return Err(CodedError::new(Code::TrustIncomplete, what).into());
        }
        self.is_fed().await
    }

    /// Refuses as long as a Trustee known to its operator lags behind.
    pub(super) async fn is_fed(&self) -> anyhow::Result<()> {
        let Self::Namespace(registry) = self else {
            return Ok(());
        };
        let read = coded(self.unavailable(), "ask what the target has published");
        if let Some(lagging) = registry.lagging().await.map_err(read)? {
            let what = format!("{lagging} does not hold yet what the target publishes");
            return Err(CodedError::new(Code::TrustIncomplete, what).into());
        }
        Ok(())
    }
}
