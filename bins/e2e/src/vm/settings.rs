//! Where everything is, and what is played.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Plays the life of nodes in virtual machines with real firmware.
#[derive(Clone, Debug, Parser)]
#[command(version)]
#[non_exhaustive]
pub struct Settings {
    /// Scenes to play, in order
    #[arg(long = "scene", value_enum, required = true)]
    pub scenes: Vec<Scene>,
    /// How many machines lose their power in the scenes `cuts`, `bootstrap` and `join`
    #[arg(long, default_value_t = 3)]
    pub cuts: u32,
    /// Where the random moments of the power cuts begin
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Cache of tools and boot files, as `cargo xtask vm` fills it
    #[arg(long, env = "TEC_CACHE")]
    pub cache: PathBuf,
    /// Directory with the program `tec`
    #[arg(long, env = "TEC_BIN_DIR")]
    pub bin_dir: PathBuf,
    /// The program `tec-node`, linked statically
    #[arg(long, default_value = "target/guest/tec-node")]
    pub node: PathBuf,
    /// The program `node-agent` as it goes into an initramfs, linked statically
    #[arg(long, default_value = "target/x86_64-unknown-linux-musl/node/node-agent")]
    pub agent: PathBuf,
    /// Where consoles, disks and logs are kept
    #[arg(long, default_value = "target/vm")]
    pub artefacts: PathBuf,
}

/// A scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Scene {
    /// First boot, reboot, a boot that was tampered with; and what lies on the disk
    Short,
    /// An update in two steps, a rollback, a revocation
    Update,
    /// Three machines at once
    Fleet,
    /// The power fails during the first boot
    Cuts,
    /// What an adversary may boot, and who is refused for what
    Adversary,
    /// The same as short with the operator and its servers, on a Kubernetes API server
    Operator,
    /// The same as operator with real pods: charts, Services and node ports of a Kubernetes node
    Cluster,
    /// The server is gone, the recovery key is typed, the server comes back
    Recovery,
    /// Trust moves from a laptop into a cluster, and the laptop is switched off
    Migration,
    /// The state disk of a node that is bootstrapped: made, re-keyed by Init, recovered; power cuts
    Bootstrap,
    /// A second machine joins it by attested TLS; power cuts until it is a member
    Join,
}
