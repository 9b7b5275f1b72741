//! Images for the pods: programs of this machine, under the names used by kubeadm and the manifests.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Context as _;
use tec_e2e::pods::Image;
use tec_k8s::render::{NO_REGISTRY, image};

use crate::Args;
use crate::host::Host;

const KUBERNETES: &str = tec_e2e::admin::VERSION;
const BUSYBOX: &str = "/bin/busybox";
/// busybox programs in the image with a shell.
const APPLETS: [&str; 7] = ["sh", "sed", "mv", "ip", "sleep", "httpd", "nslookup"];

/// Image archives.
#[derive(Debug)]
pub(crate) struct Images {
    /// Images for every node.
    everywhere: Vec<PathBuf>,
    /// Additional images for control planes.
    control_plane: Vec<PathBuf>,
}

impl Images {
    pub(crate) fn build(args: &Args, base: &Path) -> anyhow::Result<Self> {
        let program = |name: &str| args.kubernetes.join(name);
        let of = |tag: &str, name: &str| Image::of(tag, program(name)).as_root();
        let tagged = |name: &str| of(&format!("registry.k8s.io/{name}:{KUBERNETES}"), name);
        let mut pause = Image::of("registry.k8s.io/pause:3.10.1", BUSYBOX);
        pause.words = ["sleep", "2147483647"].map(str::to_owned).into();
        let mut proxy = tagged("kube-proxy").with(which("nft")?);
        proxy.folder = "usr/local/bin".into();
        let mut tools = Image::of("registry.example/tools:1", BUSYBOX).as_root();
        tools.links = APPLETS.map(str::to_owned).into();
        let everywhere = vec![
            pause,
            proxy,
            of("registry.k8s.io/coredns/coredns:v1.12.1", "coredns"),
            tools.with(program("kubectl")),
        ];
        // As in the manifest of the checkout.
        let join_service = image(NO_REGISTRY, "tec-join-service");
        let control_plane = vec![
            Image::of("registry.k8s.io/etcd:3.6.5-0", &args.etcd).as_root(),
            tagged("kube-apiserver"),
            tagged("kube-controller-manager"),
            tagged("kube-scheduler"),
            Image::of(join_service, &args.join_service).as_root(),
        ];
        let folder = base.join("images");
        thread::scope(|scope| {
            let other = scope.spawn(|| archives(&folder.join("a"), &control_plane));
            let everywhere = archives(&folder.join("b"), &everywhere)?;
            let control_plane = other.join().ok().context("building images panicked")??;
            Ok(Self { everywhere, control_plane })
        })
    }

    /// Loads a worker's images.
    pub(crate) fn load_worker(&self, host: &Host) -> anyhow::Result<()> {
        self.everywhere.iter().try_for_each(|archive| host.load(archive))
    }

    /// Loads a control plane's images.
    pub(crate) fn load_control_plane(&self, host: &Host) -> anyhow::Result<()> {
        self.load_worker(host)?;
        self.control_plane.iter().try_for_each(|archive| host.load(archive))
    }
}

fn archives(folder: &Path, images: &[Image]) -> anyhow::Result<Vec<PathBuf>> {
    let build = |(number, image): (usize, &Image)| {
        let work = folder.join(number.to_string());
        std::fs::create_dir_all(&work)?;
        image.build(&work).with_context(|| format!("cannot build {}", image.tag))
    };
    images.iter().enumerate().map(build).collect()
}

fn which(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|place| place.is_file()).with_context(|| format!("{name} is missing"))
}
