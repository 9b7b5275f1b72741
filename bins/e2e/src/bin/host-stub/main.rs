//! `host-stub`: what a machine of tests lacks of a node. Static pods run as processes, and the
//! node is made known to the API server as a kubelet does it; a service manager that only notes
//! what is wanted; kubeadm without the steps that need a container runtime.

mod kubelet;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tec_support::exit;

/// Is there when the kubelet is wanted.
const WANTED: &str = "/run/kubelet-wanted";

#[derive(Debug, Parser)]
#[command(name = "host-stub", version)]
struct Args {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Wait until the kubelet is wanted, then run static pods
    Kubelet {
        /// Name of the node.
        #[arg(long)]
        node: String,
        /// Directory with the programs of Kubernetes.
        #[arg(long)]
        programs: PathBuf,
    },
    /// Note what is wanted
    Systemctl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run kubeadm without pulling images
    Kubeadm {
        /// The program.
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    exit::finish(run(Args::parse().command).map(|()| exit::OK))
}

fn run(what: What) -> anyhow::Result<()> {
    match what {
        What::Kubelet { node, programs } => kubelet::run(&node, &programs, Path::new(WANTED)),
        What::Systemctl { arguments } => {
            if arguments.iter().any(|one| one == "kubelet.service") {
                std::fs::write(WANTED, "").context("note that the kubelet is wanted")?;
            }
            Ok(())
        }
        What::Kubeadm { program, arguments } => {
            let mut command = Command::new(&program);
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            command.args(&arguments);
            match words.as_slice() {
                ["init" | "join", "phase", "preflight", ..] => command.arg("--dry-run"),
                // The option replaces what the configuration skips.
                ["join", "--config", ..] => {
                    command.arg("--skip-phases=preflight,control-plane-prepare/download-certs")
                }
                _ => &mut command,
            };
            Err(command.exec()).with_context(|| format!("run {}", program.display()))
        }
    }
}
