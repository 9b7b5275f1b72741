//! A Kubernetes node with real pods, on this machine.
//!
//! ```text
//!   namespace tec-node ─┬─ etcd ◄ API server ◄ controllers, scheduler
//!                       ├─ kubelet ─► containerd ─► runc        real pods, probes, volumes
//!                       ├─ kube-proxy (nftables)                Services, node ports
//!                       └─ bridge cni0                          10.244.0.0/24
//! ```
//! *What it is*: the programs that a node of a cluster runs, in a network namespace of their own: no
//! traffic, route or rule of theirs touches the network of the machine. One at a time; it goes on until
//! [`Node::down`], so that people can work with it.
//!
//! *What it is not*: reachable from the outside, and not durable: a new one begins empty.

mod charts;
mod config;
mod daemon;
mod image;
mod platform;
mod registry;
mod services;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

pub use self::charts::{BROKER, Charts, NAMESPACE, OPERATOR, SERVERS, charts_of_today};
pub use self::config::ADDRESS;
use self::config::NODE;
pub use self::daemon::until;
use self::daemon::{NETWORK, inside, pause, runs, start, stop};
pub use self::image::Image;
pub use self::platform::{APPS, PLATFORM, Platform};
pub use self::registry::Registry;
pub use self::services::{collector, nats, opensearch};

/// What keeps the namespaces of a pod; the name that kubeadm gives it.
const PAUSE: &str = "registry.k8s.io/pause:3.10";
const DNS: &str = "registry.k8s.io/coredns/coredns:v1.12.1";
/// In the order in which they end: those that would start others again go first.
const DAEMONS: [&str; 7] =
    ["kube-proxy", "kubelet", "containerd", "scheduler", "controllers", "api-server", "etcd"];
/// A control plane or a node must be ready by then, on a machine that does other things, too.
const READY: Duration = Duration::from_mins(2);

/// Folder of the one node of this machine, in the cache of the tools.
pub const FOLDER: &str = "pods";

/// The node.
#[derive(Clone, Debug)]
pub struct Node {
    dir: PathBuf,
    programs: PathBuf,
}

impl Node {
    /// The node of a folder, whether it is up or not; `programs` has those of Kubernetes.
    pub fn at(dir: impl Into<PathBuf>, programs: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), programs: programs.into() }
    }

    /// Brings up a new node, and ends what was up before.
    ///
    /// # Errors
    /// A program is missing or does not become ready; its log is in the folder `log`.
    pub fn up(&self) -> anyhow::Result<()> {
        self.down();
        for folder in ["log", "pid", "cni", "conf"] {
            fs::create_dir_all(self.path(folder))?;
        }
        network()?;
        self.prepare()?;
        self.control_plane()?;
        self.containers()?;
        self.workers()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Files of settings, certificates and kubeconfigs.
    fn prepare(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        for (name, text) in [
            ("conf/kubeadm.yaml", config::kubeadm(dir)),
            ("conf/containerd.toml", config::containerd(dir)),
            ("conf/kubelet.yaml", config::kubelet(dir)),
            ("conf/proxy.yaml", config::proxy(dir)),
            ("cni/10-bridge.conflist", config::BRIDGE.to_owned()),
        ] {
            fs::write(self.path(name), text)?;
        }
        self.kubeadm("certs all", &[])?;
        let conf = format!("--kubeconfig-dir={}", self.path("conf").display());
        for who in ["admin", "super-admin", "controller-manager", "scheduler", "kubelet"] {
            self.kubeadm(&format!("kubeconfig {who}"), &[&conf])?;
        }
        Ok(())
    }

    fn kubeadm(&self, phase: &str, more: &[&str]) -> anyhow::Result<()> {
        let mut command = inside(self.program("kubeadm"));
        command.args(["init", "phase"]).args(phase.split(' ')).args(more);
        command.arg(format!("--config={}", self.path("conf/kubeadm.yaml").display()));
        output(&mut command).map(drop)
    }

    fn control_plane(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        start(dir, "etcd", Path::new("etcd"), &config::etcd(dir))?;
        self.start_api_server()?;
        let program = self.program("kube-controller-manager");
        start(dir, "controllers", &program, &config::controllers(dir))?;
        start(dir, "scheduler", &self.program("kube-scheduler"), &config::scheduler(dir))
    }

    /// Starts the API server, and waits until it is ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start_api_server(&self) -> anyhow::Result<()> {
        let program = self.program("kube-apiserver");
        start(&self.dir, "api-server", &program, &config::api_server(&self.dir))?;
        let is_ready = || self.kubectl(&["get", "--raw=/readyz"]).is_ok();
        until("the API server is ready", READY, is_ready)
    }

    /// Ends the API server; everything else goes on.
    pub fn stop_api_server(&self) {
        stop(&self.dir, "api-server");
    }

    fn containers(&self) -> anyhow::Result<()> {
        let config = format!("--config={}", self.path("conf/containerd.toml").display());
        start(&self.dir, "containerd", Path::new("containerd"), &[config])?;
        let is_ready = || output(self.ctr().arg("version")).is_ok();
        until("containerd answers", READY, is_ready)?;
        let mut pause = Image::of(PAUSE, "/bin/busybox");
        pause.words = ["sleep", "2147483647"].map(str::to_owned).into();
        self.load(&pause)?;
        // It listens on port 53, by a capability that only root keeps.
        self.load(&Image::of(DNS, self.program("coredns")).as_root())
    }

    fn workers(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        start(dir, "kubelet", &self.program("kubelet"), &config::kubelet_flags(dir))?;
        let proxy = format!("--config={}", self.path("conf/proxy.yaml").display());
        start(dir, "kube-proxy", &self.program("kube-proxy"), &[proxy])?;
        // What kubeadm binds when it makes a whole cluster: logs and exec of pods.
        let role = "--clusterrole=system:kubelet-api-admin";
        let user = "--user=kube-apiserver-kubelet-client";
        self.kubectl(&["create", "clusterrolebinding", "kubelet-api", role, user])?;
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig().display());
        self.kubeadm("addon coredns", &[&kubeconfig])?;
        let dns = "deployment/coredns";
        self.kubectl(&["scale", "--namespace=kube-system", dns, "--replicas=1"])?;
        let node = format!("node/{NODE}");
        let is_there = || self.kubectl(&["get", &node]).is_ok();
        until("the node is known", READY, is_there)?;
        self.kubectl(&["wait", "--for=condition=Ready", "--timeout=120s", &node])?;
        let rollout = ["rollout", "status", "--namespace=kube-system", dns, "--timeout=120s"];
        let served = self.kubectl(&rollout);
        for name in DAEMONS {
            anyhow::ensure!(runs(dir, name), "{name} ended: {}", daemon::last_words(dir, name));
        }
        served.map(drop)
    }

    /// Ends everything; a node that is not up is fine. Images and data are gone with it.
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
        // Nothing that is not ours: no other folder, and no volume that is still mounted into this one.
        if self.path("pid").is_dir() && mounts_below(&self.dir).is_empty() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    fn end_containers(&self) {
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

    /// A kubeconfig that may do anything, for programs in the network of the node.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("conf/super-admin.conf")
    }

    /// Moves the calling thread into the network of the node, and with it every program and connection
    /// that it starts from now on.
    ///
    /// # Errors
    /// The node is not up.
    pub fn enter(&self) -> anyhow::Result<()> {
        daemon::enter().context("enter the network of the node")
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

    /// What kubectl prints.
    ///
    /// # Errors
    /// It fails; the error has what it said.
    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.command(self.program("kubectl")).args(arguments))
    }

    fn ctr(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.path("containerd.sock")).arg("--namespace=k8s.io");
        command
    }

    /// Ends a container as a power cut does, by the id that its pod's status has.
    ///
    /// # Errors
    /// There is no such container.
    pub fn kill_container(&self, id: &str) -> anyhow::Result<()> {
        output(self.ctr().args(["tasks", "kill", "--signal=9", id])).map(drop)
    }

    /// Gives an image to the node, which pulls none.
    ///
    /// # Errors
    /// A program or one of its libraries is not there, or containerd does not take it.
    pub fn load(&self, image: &Image) -> anyhow::Result<()> {
        let work = tempfile::tempdir_in(&self.dir)?;
        self.import(&image.build(work.path())?)
    }

    fn import(&self, archive: &Path) -> anyhow::Result<()> {
        output(self.ctr().args(["images", "import"]).arg(archive)).map(drop)
    }
}

/// The namespace, and a pair of devices whose one end has the address of the node.
fn network() -> anyhow::Result<()> {
    output(Command::new("ip").args(["netns", "add", NETWORK])).context("root is needed")?;
    for words in [
        "link set lo up".to_owned(),
        "link add node0 type veth peer name node1".to_owned(),
        "link set node1 up".to_owned(),
        format!("addr add {ADDRESS}/24 dev node0"),
        "link set node0 up".to_owned(),
        "route add default dev node0".to_owned(),
    ] {
        output(inside("ip").args(words.split(' ')))?;
    }
    output(inside("sysctl").args(["-qw", "net.ipv4.ip_forward=1"])).map(drop)
}

/// Takes away what containerd and kubelet mounted below a folder, the deepest first.
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

/// Runs a command that must succeed; what it printed.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let words = || {
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    };
    let words = words();
    let output = command.output().with_context(|| format!("run {words}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{words}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
