//! A Kubernetes node with real pods on this machine, for tests and for manual use: up, down, a shell.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use tec_e2e::pods::{Image, Node, collector, nats, opensearch};

#[derive(Debug, Parser)]
#[command(name = "cluster", about = "One Kubernetes node with real pods, on this machine")]
struct Cli {
    /// Folder of the node; removed by `down`
    #[arg(long)]
    dir: PathBuf,
    /// Folder with kubelet, kube-apiserver and the other programs
    #[arg(long)]
    kubernetes: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a new node, and stop any that is running
    Up,
    /// Stop the node, and remove what it left
    Down,
    /// Open a shell in the network of the node, with kubectl
    Shell,
    /// Load an image of a program into the node; pods never pull
    Load {
        /// Name and tag
        tag: String,
        /// The program, with its libraries
        program: PathBuf,
    },
    /// Write an image of the services' chart with a third-party program, as an archive
    Image {
        /// Name of the image
        #[arg(value_enum)]
        name: Foreign,
        /// Archive to write
        archive: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Foreign {
    #[value(name = "tec-nats")]
    Nats,
    #[value(name = "tec-collector")]
    Collector,
    #[value(name = "tec-opensearch")]
    OpenSearch,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let node = Node::at(cli.dir, cli.kubernetes);
    match cli.verb {
        Verb::Up => {
            let mut out = std::io::stdout();
            for (step, took) in node.up()? {
                writeln!(out, "{:5.1} s  {step}", took.as_secs_f64())?;
            }
            let kubeconfig = node.kubeconfig();
            writeln!(out, "Ready. Its kubeconfig: {}", kubeconfig.display())?;
        }
        Verb::Down => node.down(),
        Verb::Shell => {
            anyhow::ensure!(node.is_up(), "the node is not running (run `cargo xtask cluster up`)");
            let shell = std::env::var_os("SHELL").unwrap_or_else(|| "sh".into());
            let mut shell = node.command(shell);
            return Err(shell.stdin(std::process::Stdio::inherit()).exec().into());
        }
        Verb::Load { tag, program } => node.load(&Image::of(tag, program))?,
        Verb::Image { name, archive } => {
            let image = match name {
                Foreign::Nats => nats()?,
                Foreign::Collector => collector()?,
                Foreign::OpenSearch => opensearch()?,
            };
            let beside = archive.parent().unwrap_or(&archive);
            let work = tempfile::tempdir_in(beside)?;
            std::fs::rename(image.build(work.path())?, &archive)?;
        }
    }
    Ok(())
}
