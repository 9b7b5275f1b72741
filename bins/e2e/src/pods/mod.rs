//! A Kubernetes node with real pods, on this machine.
//!
//! ```text
//!   namespace tec-node ─┬─ etcd ◄ API server ◄ controllers, scheduler
//!                       ├─ kubelet ─► containerd ─► runc        real pods, probes, volumes
//!                       ├─ kube-proxy (nftables)                Services, node ports
//!                       └─ bridge cni0                          10.244.0.0/24
//! ```
//! *What it is*: the programs that a cluster node runs, in their own network namespace: none of their
//! traffic, routes or rules touches the machine's network. There is one at a time; it keeps running until
//! [`Node::down`], so that you can work with it.
//!
//! *What it is not*: reachable from the outside, or durable: a new one starts empty.

mod charts;
mod config;
mod daemon;
mod image;
mod platform;
mod registry;
mod services;
mod start;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

pub use self::charts::{BROKER, Charts, NAMESPACE, OPERATOR, SERVERS, charts_of_today};
pub use self::config::ADDRESS;
use self::daemon::{NETWORK, inside, pause, runs, stop};
pub use self::daemon::{until, watch};
pub use self::image::Image;
pub use self::platform::{APPS, PLATFORM, Platform};
pub use self::registry::Registry;
pub use self::services::{collector, nats, opensearch};
pub use self::start::Steps;

/// Keeps the namespaces of a pod; named as in kubeadm.
const PAUSE: &str = "registry.k8s.io/pause:3.10";
const DNS: &str = "registry.k8s.io/coredns/coredns:v1.12.1";
/// In the order in which they are stopped: those that would restart others go first.
const DAEMONS: [&str; 7] =
    ["kube-proxy", "kubelet", "containerd", "scheduler", "controllers", "api-server", "etcd"];

/// Folder of this machine's only node, in the tools cache.
pub const FOLDER: &str = "pods";

/// The node.
#[derive(Clone, Debug)]
pub struct Node {
    dir: PathBuf,
    programs: PathBuf,
}

impl Node {
    /// The node in a folder, whether it is up or not; `programs` contains those of Kubernetes.
    pub fn at(dir: impl Into<PathBuf>, programs: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), programs: programs.into() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Stops everything; a node that is not up is fine. Images and data are deleted.
    pub fn down(&self) {
        for name in &DAEMONS[..2] {
            stop(&self.dir, name);
        }
        self.end_containers();
        for name in &DAEMONS[2..] {
            stop(&self.dir, name);
        }
        unmount(&self.dir);
        let _ = output(Command::new("ip").args(["netns", "del", NETWORK]));
        // Deletes only what is ours: no other folder, and no volume that is still mounted into this one.
        if self.path("pid").is_dir() && mounts_below(&self.dir).is_empty() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    fn end_containers(&self) {
        // Otherwise nothing answers, and `ctr` waits ten seconds for each answer.
        if !runs(&self.dir, "containerd") {
            return;
        }
        let listed = output(self.ctr().args(["tasks", "list", "--quiet"])).unwrap_or_default();
        for task in listed.split_whitespace() {
            let _ = output(self.ctr().args(["tasks", "kill", "--signal=9", task]));
        }
        for _ in 0..40 {
            match output(self.ctr().args(["tasks", "list"])) {
                Ok(tasks) if tasks.contains("RUNNING") => pause(Duration::from_millis(50)),
                _ => break,
            }
        }
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.kubeconfig().is_file() && self.kubectl(&["get", "--raw=/readyz"]).is_ok()
    }

    /// A kubeconfig with all permissions, for programs in the network of the node.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("conf/super-admin.conf")
    }

    /// Moves the calling thread into the network of the node, and with it every program and connection it
    /// starts from now on.
    pub fn enter(&self) -> anyhow::Result<()> {
        daemon::enter().context("cannot enter the network of the node")
    }

    /// A command in the network of the node, with its kubeconfig and the programs of Kubernetes.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = [self.programs.clone()].into_iter().chain(std::env::split_paths(&path));
        let mut command = inside(program);
        command.env("KUBECONFIG", self.kubeconfig());
        command.env("PATH", std::env::join_paths(paths).unwrap_or(path));
        command
    }

    /// Output of kubectl.
    ///
    /// # Errors
    /// kubectl fails; the error contains its output.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.command(self.program("kubectl")).args(arguments))
    }

    fn ctr(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.path("containerd.sock")).arg("--namespace=k8s.io");
        command
    }

    /// Loads an image into the node, which pulls none.
    ///
    /// # Errors
    /// A program or one of its libraries is missing, or containerd does not accept it.
    pub fn load(&self, image: &Image) -> anyhow::Result<()> {
        let work = tempfile::tempdir_in(&self.dir)?;
        self.import(&image.build(work.path())?)
    }

    fn import(&self, archive: &Path) -> anyhow::Result<()> {
        output(self.ctr().args(["images", "import"]).arg(archive)).map(drop)
    }
}

/// Unmounts what containerd and kubelet mounted below a folder, the deepest first.
fn unmount(dir: &Path) {
    for place in mounts_below(dir).into_iter().rev() {
        let _ = output(Command::new("umount").arg("-l").arg(place));
    }
}

fn mounts_below(dir: &Path) -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let below = format!("{}/", dir.display());
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    places.filter(|place| place.starts_with(&below)).map(str::to_owned).collect()
}

/// Runs a command that must succeed; returns its output.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let words = || {
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let words = words();
    let output = command.output().with_context(|| format!("cannot run {words}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{words}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
