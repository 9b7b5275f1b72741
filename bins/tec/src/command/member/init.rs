//! `tec node init`: initializes the first node of a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tec_core::secret::SecretBytes;
use tec_node::derive::ClusterId;
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
    /// Address of the node, `HOST` or `HOST:PORT`.
    node: String,
    #[command(flatten)]
    trust: TrustArgs,
    /// Where keys come from. A missing `--master-secret` file is created.
    #[command(flatten)]
    keys: KeyArgs,
    /// File with the init secret, whose hash the platform has given to the node.
    #[arg(long, value_name = "FILE")]
    init_secret_file: PathBuf,
    /// Kubernetes version, for example v1.34.3.
    #[arg(long, value_name = "VERSION", required_unless_present = "components")]
    kubernetes_version: Option<String>,
    /// File with the Kubernetes version and the components that the node installs, JSON: the file of the join
    /// service.
    #[arg(long, value_name = "FILE", conflicts_with = "kubernetes_version")]
    components: Option<PathBuf>,
    /// Omit kube-proxy, for a network plugin that replaces it.
    #[arg(long)]
    without_kube_proxy: bool,
    /// Output file for the admin's kubeconfig, mode 0600.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// ID of the cluster that this request creates, as printed by `--dry-run`: accepts a node that has
    /// already begun to create it. Not needed with a master secret, which determines the ID.
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    cluster: Option<ClusterId>,
    /// Time limit for the node's answer, in seconds; it starts again after each broken connection.
    /// Creating the cluster may take longer.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    wait: u64,
    #[command(flatten)]
    dry_run: DryRun,
}

/// The outcome.
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
        write_private(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output.print(&made, |made| match &made.kubeconfig {
        Some(path) => format!("cluster {}\nkubeconfig {}", made.cluster_id, path.display()),
        None => format!("{} could become cluster {}", made.node, made.cluster_id),
    })?;
    Ok(OK)
}

/// A node returns the kubeconfig once, and then stops its bootstrapper, so a file that cannot be written must
/// be detected beforehand.
fn ensure_writable(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    anyhow::ensure!(!path.is_dir(), "{shown} is a directory");
    let mut probe = path.as_os_str().to_owned();
    probe.push(".probe");
    let probe = Path::new(&probe);
    write_private(probe, &[]).with_context(|| format!("cannot write {shown}"))?;
    std::fs::remove_file(probe).with_context(|| format!("cannot write {shown}"))
}

/// Detects every local problem before the node is contacted.
fn read(args: &InitArgs) -> anyhow::Result<Request> {
    let (kubernetes_version, components) = match &args.components {
        Some(path) => bootstrapper::instance::components::read(path)?,
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
