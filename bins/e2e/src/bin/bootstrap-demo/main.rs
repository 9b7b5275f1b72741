//! `bootstrap-demo`: one init and two joins with real kubeadm, then two boots; in network and mount
//! namespaces of this machine, as root. See `cargo xtask bootstrap-demo`.
//!
//! ```text
//!   bridge 10.99.0.254 ── etcd, tec as the admin
//!     ├─ tec-n1 10.99.0.1  swtpm, bootstrapper: Init ─► kubeadm init; join-service
//!     ├─ tec-n2 10.99.0.2  swtpm, bootstrapper: ticket ─► kubeadm join, a control plane
//!     └─ tec-n3 10.99.0.3  swtpm, bootstrapper: ticket ─► kubeadm join, a worker
//! ```
//! Static pods run as processes (`host-stub`), since a machine of tests has no container runtime;
//! everything else is as on a node.

mod files;
mod host;
mod intruder;
mod network;
mod stage;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tec_support::exit;

/// Plays the bootstrap of a cluster, with real kubeadm.
#[derive(Debug, Parser)]
#[command(name = "bootstrap-demo", version)]
struct Args {
    /// Directory with bootstrapper, join-service, host-stub and tec.
    #[arg(long)]
    bin_dir: PathBuf,
    /// Directory with the programs of Kubernetes.
    #[arg(long)]
    kubernetes: PathBuf,
    /// Directory with the custom resources.
    #[arg(long)]
    crds: PathBuf,
    /// Manifest of the join service, with its account.
    #[arg(long)]
    manifest: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(story::play(&args).map(|()| exit::OK))
}
