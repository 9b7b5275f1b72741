//! `bootstrap-demo`: a cluster of three nodes, from `tec node init` to renewed certificates, with real
//! kubeadm, kubelets and pods, in namespaces of this machine, as root. See `cargo xtask bootstrap-demo`.
//!
//! ```text
//!   bridge 198.51.100.254 ── tec as the admin
//!     ├─ tec-n1 198.51.100.1  swtpm, containerd, kubelet; bootstrapper: Init ─► kubeadm init, etcd as a
//!     │                    static pod, add-ons, network; join-service as a pod
//!     ├─ tec-n2 198.51.100.2  the same programs; bootstrapper: ticket ─► kubeadm join, a worker
//!     └─ tec-n3 198.51.100.3  another worker, which is removed and comes back as a new machine
//! ```
//! Substitutes: swtpm for the TPM, a file for the state disk (this machine maps no devices), and a script for
//! systemd.

mod certificates;
mod cluster;
mod files;
mod host;
mod images;
mod intruder;
mod network;
mod stage;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tec_support::exit;

/// Plays the life of a bootstrapped cluster on real kubelets.
#[derive(Debug, Parser)]
#[command(name = "bootstrap-demo", version)]
struct Args {
    /// Directory with bootstrapper and tec
    #[arg(long)]
    bin_dir: PathBuf,
    /// Static join-service, for its image
    #[arg(long)]
    join_service: PathBuf,
    /// Directory with the programs of Kubernetes, and CoreDNS
    #[arg(long)]
    kubernetes: PathBuf,
    /// Path of etcd, in the version that kubeadm requires
    #[arg(long)]
    etcd: PathBuf,
    /// Directory with the custom resources
    #[arg(long)]
    crds: PathBuf,
    /// Manifest of the join service, with its service account
    #[arg(long)]
    manifest: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(story::play(&args).map(|()| exit::OK))
}
