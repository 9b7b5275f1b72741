//! Takes the node from nothing to Ready.
//!
//! ```text
//!   containerd ─► its two images ──────────────┐
//!   etcd ─► certificates ─► API server listens ─┴─► kubelet ─► controllers ─► Ready, names of Services
//! ```
//! A machine has few processors for so many programs: nothing here polls quickly, and nothing starts a
//! program just to poll.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::config::NODE;
use super::daemon::{inside, last_words, runs, start, stop};
use super::{ADDRESS, DAEMONS, DNS, Image, NETWORK, Node, PAUSE, config, daemon, output, until};

/// Deadline for a control plane or a node to be ready, on a machine that is also busy otherwise.
const READY: Duration = Duration::from_mins(2);
/// Port of the API server.
const PORT: u16 = 6443;
/// CoreDNS as deployed by kubeadm: two pods, and ten seconds between the first check of a pod, which comes
/// too early, and the next.
const DNS_OF_KUBEADM: [(&str, &str); 2] = [
    ("  replicas: 2\n", "  replicas: 1\n"),
    ("        readinessProbe:\n", "        readinessProbe:\n          periodSeconds: 1\n"),
];

/// The steps of [`Node::up`], and the duration of each.
pub type Steps = Vec<(&'static str, Duration)>;

impl Node {
    /// Starts a new node, after stopping the current one.
    ///
    /// # Errors
    /// A program is missing or does not become ready; its log is in the folder `log`.
    pub fn up(&self) -> anyhow::Result<Steps> {
        let mut steps = Steps::new();
        let mut begin = Instant::now();
        let mut done = |step| {
            let now = Instant::now();
            steps.push((step, now.duration_since(begin)));
            begin = now;
        };
        self.down();
        for folder in ["log", "pid", "cni", "conf"] {
            fs::create_dir_all(self.path(folder))?;
        }
        network()?;
        done("what was before is gone");
        std::thread::scope(|scope| {
            self.settings()?;
            let containers = scope.spawn(|| self.containers());
            start(&self.dir, "etcd", Path::new("etcd"), &config::etcd(&self.dir))?;
            self.certificates()?;
            done("certificates");
            self.begin_api_server()?;
            done("the API server listens");
            let failed = |_| anyhow::anyhow!("the thread of containerd panicked");
            containers.join().map_err(failed)??;
            done("containerd and its images");
            self.workers()?;
            self.api_server_is_ready()?;
            done("the API server is ready");
            self.controllers()?;
            self.objects()?;
            self.node_is_ready()?;
            done("the node is Ready");
            self.names_are_served()?;
            done("names of Services");
            anyhow::Ok(())
        })?;
        Ok(steps)
    }

    fn settings(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        for (name, text) in [
            ("conf/kubeadm.yaml", config::kubeadm(dir)),
            ("conf/containerd.toml", config::containerd(dir)),
            ("conf/kubelet.yaml", config::kubelet(dir)),
            ("conf/proxy.yaml", config::proxy(dir)),
            ("cni/10-bridge.conflist", config::bridge(dir)),
        ] {
            fs::write(self.path(name), text)?;
        }
        Ok(())
    }

    fn certificates(&self) -> anyhow::Result<()> {
        self.kubeadm("certs all", &[])?;
        let conf = format!("--kubeconfig-dir={}", self.path("conf").display());
        self.kubeadm("kubeconfig all", &[&conf]).map(drop)
    }

    fn kubeadm(&self, phase: &str, more: &[&str]) -> anyhow::Result<String> {
        let mut command = inside(self.program("kubeadm"));
        command.args(["init", "phase"]).args(phase.split(' ')).args(more);
        command.arg(format!("--config={}", self.path("conf/kubeadm.yaml").display()));
        output(&mut command)
    }

    /// Starts the API server, and waits until it is ready.
    pub fn start_api_server(&self) -> anyhow::Result<()> {
        self.begin_api_server()?;
        self.api_server_is_ready()
    }

    /// Stops the API server; everything else keeps running.
    pub fn stop_api_server(&self) {
        stop(&self.dir, "api-server");
    }

    fn begin_api_server(&self) -> anyhow::Result<()> {
        let program = self.program("kube-apiserver");
        start(&self.dir, "api-server", &program, &config::api_server(&self.dir))?;
        let address: SocketAddr = format!("{ADDRESS}:{PORT}").parse()?;
        // In a separate thread, which moves into the network of the node.
        let listens = || {
            daemon::enter()?;
            until("the API server listens", READY, || TcpStream::connect(address).is_ok())
        };
        let ended = std::thread::scope(|scope| scope.spawn(listens).join());
        ended.map_err(|_| anyhow::anyhow!("the thread that waits for the API server panicked"))?
    }

    fn api_server_is_ready(&self) -> anyhow::Result<()> {
        let is_ready = || self.kubectl(&["get", "--raw=/readyz"]).is_ok();
        until("the API server is ready", READY, is_ready)
    }

    fn containers(&self) -> anyhow::Result<()> {
        let config = format!("--config={}", self.path("conf/containerd.toml").display());
        start(&self.dir, "containerd", Path::new("containerd"), &[config])?;
        let is_ready = || output(self.ctr().arg("version")).is_ok();
        until("containerd answers", READY, is_ready)?;
        let mut pause = Image::of(PAUSE, "/bin/busybox");
        pause.words = ["sleep", "2147483647"].map(str::to_owned).into();
        self.load(&pause)?;
        // It listens on port 53, with a capability that only root keeps.
        self.load(&Image::of(DNS, self.program("coredns")).as_root())
    }

    /// They retry until the API server is ready.
    fn workers(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        start(dir, "kubelet", &self.program("kubelet"), &config::kubelet_flags(dir))?;
        let proxy = format!("--config={}", self.path("conf/proxy.yaml").display());
        start(dir, "kube-proxy", &self.program("kube-proxy"), &[proxy])
    }

    /// They exit if they have no permissions yet.
    fn controllers(&self) -> anyhow::Result<()> {
        let dir = &self.dir;
        let program = self.program("kube-controller-manager");
        start(dir, "controllers", &program, &config::controllers(dir))?;
        start(dir, "scheduler", &self.program("kube-scheduler"), &config::scheduler(dir))
    }

    fn objects(&self) -> anyhow::Result<()> {
        // What kubeadm binds for a cluster: logs and exec of pods.
        let role = "--clusterrole=system:kubelet-api-admin";
        let user = "--user=kube-apiserver-kubelet-client";
        self.kubectl(&["create", "clusterrolebinding", "kubelet-api", role, user])?;
        let mut dns = self.kubeadm("addon coredns", &["--print-manifest"])?;
        for (theirs, ours) in DNS_OF_KUBEADM {
            anyhow::ensure!(dns.contains(theirs), "kubeadm deploys CoreDNS without {theirs:?}");
            dns = dns.replacen(theirs, ours, 1);
        }
        let file = self.path("conf/coredns.yaml");
        fs::write(&file, dns)?;
        self.kubectl(&["create", "--filename", &file.display().to_string()]).map(drop)
    }

    fn node_is_ready(&self) -> anyhow::Result<()> {
        let node = format!("node/{NODE}");
        self.kubectl(&["wait", "--for=create", "--timeout=120s", &node])?;
        self.kubectl(&["wait", "--for=condition=Ready", "--timeout=120s", &node]).map(drop)
    }

    fn names_are_served(&self) -> anyhow::Result<()> {
        let rollout = [
            "rollout",
            "status",
            "--namespace=kube-system",
            "deployment/coredns",
            "--timeout=120s",
        ];
        let served = self.kubectl(&rollout);
        for name in DAEMONS {
            let is_up = runs(&self.dir, name);
            anyhow::ensure!(is_up, "{name} ended: {}", last_words(&self.dir, name));
        }
        served.map(drop)
    }
}

/// The namespace, and a veth pair with the address of the node on one end.
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
