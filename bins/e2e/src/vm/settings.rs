//! Where everything is, and what to play.

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
    /// Number of power failures in the scenes `cuts`, `rotation`, `bootstrap` and `join`
    #[arg(long, default_value_t = 3)]
    pub cuts: u32,
    /// Seed of the random times of power failures
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Cache of tools and boot files, as set up by `cargo xtask vm`
    #[arg(long, env = "TEC_CACHE")]
    pub cache: PathBuf,
    /// Directory with the program `tec`
    #[arg(long, env = "TEC_BIN_DIR")]
    pub bin_dir: PathBuf,
    /// The program `tec-node`, statically linked
    #[arg(long, default_value = "target/guest/tec-node")]
    pub node: PathBuf,
    /// The program `node-agent` as included in an initramfs, statically linked
    #[arg(long, default_value = "target/x86_64-unknown-linux-musl/node/node-agent")]
    pub agent: PathBuf,
    /// Debian package to install in the scenes of distributions; repeatable
    #[arg(long = "package", value_name = "FILE")]
    pub packages: Vec<PathBuf>,
    /// Directory for consoles and logs, and for disks while a scene is played or after it failed
    #[arg(long, default_value = "target/vm")]
    pub artefacts: PathBuf,
}

impl Scene {
    /// Whether it is played in a network of its own.
    pub(super) const fn has_network(self) -> bool {
        matches!(self, Self::Network | Self::NetworkDracut)
    }
}

/// A scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Scene {
    /// First boot, reboot, a boot that was tampered with, and the content of the disk
    Short,
    /// An update in two steps, a rollback, a revocation
    Update,
    /// Power failures during the first boot
    Cuts,
    /// Power failures while a disk key is rotated
    Rotation,
    /// What an attacker may boot, and the code of each refusal
    Adversary,
    /// Same as short, with the charts, Services and node ports of a Kubernetes node with real pods
    Cluster,
    /// The server is gone, the recovery key is typed, the server returns
    Recovery,
    /// The state disk of a bootstrapped node: created, re-keyed by Init, recovered; power failures
    Bootstrap,
    /// Debian 12 as it is: its GRUB, initramfs-tools and Clevis, on an encrypted disk, an upgrade of it, and attacks on it
    Debian,
    /// The same with a unified kernel image that the firmware starts, and an initramfs made by dracut, with systemd
    DebianUki,
    /// Same as debian, with Debian 13
    #[value(name = "debian-13")]
    Debian13,
    /// Same as debian-uki, with Debian 13 and systemd-boot
    #[value(name = "debian-13-uki")]
    Debian13Uki,
    /// Same as debian, with Debian's unstable suite, which has one kernel at a time
    DebianSid,
    /// Same as debian-13-uki, with Debian's unstable suite
    DebianSidUki,
    /// The network in the initramfs of Debian 12, by initramfs-tools
    Network,
    /// The same of Debian 13, by dracut with systemd
    NetworkDracut,
    /// A second machine joins it over attested TLS; power failures until it is a member
    Join,
}
