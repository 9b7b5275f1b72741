//! `tec node init`: makes the first node of a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tec_core::node::derive::ClusterId;
use tec_core::secret::SecretBytes;
use tec_support::exit::OK;
use tec_support::files::write_private;

use super::args::{TrustArgs, address, cluster_id};
use super::asking::Asking;
use super::keys::{KeyArgs, make_master_secret, secret_line};
use super::request::Request;
use crate::args::DryRun;
use crate::output::Output;

/// Port of Init (Constellation).
const PORT: u16 = 9000;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The node, `HOST` or `HOST:PORT`.
    node: String,
    #[command(flatten)]
    trust: TrustArgs,
    /// Where keys come from. A file of `--master-secret` that is not there is made.
    #[command(flatten)]
    keys: KeyArgs,
    /// File with the init secret, whose hash the node has from its platform.
    #[arg(long, value_name = "FILE")]
    init_secret_file: PathBuf,
    /// Version of Kubernetes, for example v1.34.3.
    #[arg(long, value_name = "VERSION", required_unless_present = "components")]
    kubernetes_version: Option<String>,
    /// Version of Kubernetes and what the node installs, JSON: the file of the join service.
    #[arg(long, value_name = "FILE", conflicts_with = "kubernetes_version")]
    components: Option<PathBuf>,
    /// Cluster without kube-proxy, for a network that replaces it.
    #[arg(long)]
    without_kube_proxy: bool,
    /// File of mode 0600 that the admin's kubeconfig is written to.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The cluster that this very request makes, by the id that `--dry-run` told: a node that began
    /// with it may be in it. Not needed with a master secret, which tells it.
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    cluster: Option<ClusterId>,
    /// Seconds until the node must have answered, from the start and from each connection that
    /// broke; it may take longer to become a cluster.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    wait: u64,
    #[command(flatten)]
    dry_run: DryRun,
}

/// What came of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    node: String,
    cluster_id: String,
    /// `None` with `--dry-run`.
    kubeconfig: Option<PathBuf>,
}

pub(crate) async fn init(args: InitArgs, output: &Output) -> anyhow::Result<u8> {
    let request = read(&args)?;
    if !args.dry_run.dry_run {
        ensure_writable(&args.kubeconfig)?;
    }
    let node = address(&args.node, PORT);
    let endpoint = args.trust.endpoint_of_any_cluster()?;
    let wait = Duration::from_secs(args.wait);
    let asking = Asking::new(endpoint, &node, &request, (wait, args.cluster))?;
    let response = if args.dry_run.dry_run { asking.check().await? } else { asking.make().await? };
    let kubeconfig = SecretBytes::new(response.kubeconfig);
    let made = Made {
        node,
        cluster_id: hex::encode(&response.cluster_id),
        kubeconfig: (!args.dry_run.dry_run).then(|| args.kubeconfig.clone()),
    };
    if let Some(path) = &made.kubeconfig {
        let content = kubeconfig.expose("the admin asked for a file");
        write_private(path, content).with_context(|| format!("write {}", path.display()))?;
    }
    output.print(&made, |made| match &made.kubeconfig {
        Some(path) => format!("cluster {}\nkubeconfig {}", made.cluster_id, path.display()),
        None => format!("{} could become cluster {}", made.node, made.cluster_id),
    })?;
    Ok(OK)
}

/// A node gives the kubeconfig once, and ends its bootstrapper: a place for it that cannot be
/// written must be found before.
fn ensure_writable(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    anyhow::ensure!(!path.is_dir(), "{shown} is a directory");
    let mut probe = path.as_os_str().to_owned();
    probe.push(".probe");
    let probe = Path::new(&probe);
    write_private(probe, &[]).with_context(|| format!("write {shown}"))?;
    std::fs::remove_file(probe).with_context(|| format!("write {shown}"))
}

/// Everything that can be wrong at this desk is found before the node is asked.
fn read(args: &InitArgs) -> anyhow::Result<Request> {
    let (kubernetes_version, components) = match &args.components {
        Some(path) => tec_node::instance::components::read(path)?,
        None => (args.kubernetes_version.clone().unwrap_or_default(), vec![]),
    };
    if let Some(path) = &args.keys.master_secret
        && !args.dry_run.dry_run
        && make_master_secret(path)?
    {
        tracing::info!(file = %path.display(), "made a master secret: keep it safe");
    }
    Ok(Request {
        uris: args.keys.read()?,
        init_secret: secret_line(&args.init_secret_file)?,
        kubernetes_version,
        components,
        keep_proxy: !args.without_kube_proxy,
    })
}
