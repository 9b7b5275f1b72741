//! Debian packages needed to build and run the programs.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{process, term};

/// How to detect a package. Looks for programs and libraries rather than packages, so that other
/// distributions work, too, once the same things are installed there.
enum Probe {
    Program(&'static str),
    PkgConfig(&'static [&'static str]),
}

/// Something that must be installed.
pub(super) struct Requirement {
    package: &'static str,
    probe: Probe,
}

const fn program(package: &'static str, name: &'static str) -> Requirement {
    Requirement { package, probe: Probe::Program(name) }
}

/// What the programs and the demo need.
pub(super) const BASE: [Requirement; 15] = [
    program("build-essential", "cc"), // links every program, builds SQLite
    program("build-essential", "c++"), // builds libFuzzer
    program("pkg-config", "pkg-config"), // finds libtss2
    Requirement {
        package: "libtss2-dev", // the TPM software stack
        probe: Probe::PkgConfig(&["tss2-sys", "tss2-esys", "tss2-tctildr", "tss2-mu"]),
    },
    program("swtpm", "swtpm"),             // the TPM of demo and tests
    program("swtpm-tools", "swtpm_setup"), // its endorsement key and certificate
    program("tpm2-tools", "tpm2"),         // a second opinion on keys and quotes
    program("cryptsetup-bin", "cryptsetup"),
    program("clevis", "clevis"),
    program("clevis-luks", "clevis-luks-bind"),
    program("jose", "jose"),
    program("luksmeta", "luksmeta"),
    program("golang-go", "go"), // builds ignition-validate, Kubernetes and others
    program("openssl", "openssl"), // makes keys of virtual machines; verifies certificates as Trustee does
    Requirement {
        package: "libssl-dev", // josekit and the like
        probe: Probe::PkgConfig(&["openssl"]),
    },
];

/// What tests need in addition, for comparison with computed values.
pub(super) const TESTS: [Requirement; 5] = [
    program("pesign", "pesign"),
    program("osslsigncode", "osslsigncode"),
    program("sbsigntool", "sbsign"), // signs the images of virtual machines, too
    program("systemd", "/usr/lib/systemd/systemd-measure"),
    program("systemd", "systemd-analyze"), // reads units as systemd does
];

/// What virtual machines need in addition.
pub(super) const MACHINES: [Requirement; 2] = [
    program("qemu-system-x86", "qemu-system-x86_64"),
    program("mtools", "mformat"), // their EFI system partition
];

/// What virtual nodes need in addition: programs of the initial file system come from the machine that builds
/// it.
pub(super) const NODES: [Requirement; 10] = [
    Requirement {
        package: "libblkid-dev", // Ignition's engine links it
        probe: Probe::PkgConfig(&["blkid"]),
    },
    program("libpwquality-tools", "pwmake"), // Clevis makes passphrases with it
    program("musl-tools", "musl-gcc"),       // links node-agent statically
    program("udev", "udevadm"),
    program("dmsetup", "dmsetup"),
    program("e2fsprogs", "mke2fs"),
    program("iproute2", "ip"),
    program("kmod", "modprobe"),
    program("xz-utils", "xz"), // opens modules
    program("zstd", "zstd"),
];

/// What the tests on a Kubernetes API server need in addition.
pub(super) const KUBERNETES: [Requirement; 2] = [
    program("etcd-server", "etcd"),
    program("iproute2", "ip"), // namespaces of the bootstrap demo
];

/// What fetches programs from the Python index.
pub(super) const PIP: [Requirement; 1] = [program("python3-pip", "pip3")];

/// What a node with real pods needs in addition.
pub(super) const PODS: [Requirement; 9] = [
    program("busybox-static", "/bin/busybox"), // what keeps the namespaces of a pod
    program("conntrack", "conntrack"),
    program("containerd", "containerd"),
    program("containernetworking-plugins", "/usr/lib/cni/bridge"),
    program("dbus", "dbus-daemon"), // between systemd and its shutdown locks
    program("iptables", "iptables"), // masquerading and ports, by the plugins
    program("nftables", "nft"),     // Services, by kube-proxy
    program("runc", "runc"),
    program("systemd-container", "systemd-nspawn"), // units under systemd as PID 1
];

/// What tests of pages in a browser need in addition.
pub(super) const PAGES: [Requirement; 1] = [program("chromium", "chromium")];

/// What static programs and their images need in addition.
pub(super) const IMAGES: [Requirement; 2] =
    [program("buildah", "buildah"), program("musl-tools", "musl-gcc")];

/// What other architectures need in addition.
pub(super) const CROSS: [Requirement; 1] = [program("clang", "clang")];

/// What a release needs in addition.
pub(super) const DIST: [Requirement; 4] = [
    program("e2fsprogs", "debugfs"),
    program("e2fsprogs", "mke2fs"),
    program("help2man", "help2man"),
    program("mmdebstrap", "mmdebstrap"), // a fresh system, to install packages into
];

/// What networks of virtual machines need in addition.
pub(super) const NETWORKS: [Requirement; 1] = [program("dnsmasq-base", "dnsmasq")];

/// What OpenSearch needs in addition.
pub(super) const OPENSEARCH: [Requirement; 2] = [
    program("openjdk-17-jre-headless", super::JAVA),
    program("maven", "mvn"), // fetches the archives
];

/// Names of the programs to look for.
pub(super) fn programs() -> impl Iterator<Item = &'static str> {
    BASE.iter()
        .chain(&MACHINES)
        .chain(&NODES)
        .chain(&KUBERNETES)
        .chain(&PIP)
        .chain(&PODS)
        .chain(&PAGES)
        .chain(&IMAGES)
        .filter_map(|requirement| match requirement.probe {
            Probe::Program(name) => Some(name),
            Probe::PkgConfig(_) => None,
        })
}

impl Requirement {
    fn is_met(&self) -> bool {
        match self.probe {
            Probe::Program(name) => process::which(name).is_some(),
            Probe::PkgConfig(names) => {
                let mut query = process::command("pkg-config");
                process::output(query.arg("--exists").args(names))
                    .is_ok_and(|output| output.status.success())
            }
        }
    }
}

fn missing(requirements: &[Requirement]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = requirements
        .iter()
        .filter(|requirement| !requirement.is_met())
        .map(|requirement| requirement.package)
        .collect();
    packages.dedup();
    packages
}

/// apt-get, which updates its package lists at most once per run.
#[derive(Debug, Default)]
pub(super) struct Apt {
    updated: bool,
}

impl Apt {
    /// Updates the package lists. An unreachable source is not an error: whether packages are available is
    /// decided when they are requested.
    pub(super) fn update(&mut self) {
        if self.updated {
            return;
        }
        self.updated = true;
        term::note("apt-get update");
        let result = as_root("apt-get")
            .and_then(|mut command| process::capture(command.args(["-q", "update"])));
        if let Err(error) = result {
            term::warn(&format!("package lists may be old: {error:#}"));
        }
    }

    fn install(&mut self, packages: &[&str]) -> Result<()> {
        self.update();
        term::note(&format!("apt-get install {}", packages.join(" ")));
        let mut command = as_root("apt-get")?;
        command.args(["install", "-y", "-q", "--no-install-recommends"]).args(packages);
        process::capture(&mut command).map(drop)
    }
}

/// The program as root: directly, or through `sudo` if that needs no password.
fn as_root(program: &str) -> Result<Command> {
    let id = process::capture(process::command("id").arg("-u"))?;
    // The front end variable is on the command line because sudo drops it from the environment.
    let assignment = "DEBIAN_FRONTEND=noninteractive";
    if id.trim() == "0" {
        let mut command = process::command("env");
        command.args([assignment, program]);
        return Ok(command);
    }
    if process::which("sudo").is_none() {
        bail!("`{program}` needs root, this user is not root, and there is no sudo");
    }
    let mut command = process::command("sudo");
    command.args(["-n", "env", assignment, program]);
    Ok(command)
}

/// Installs the packages whose programs or libraries are missing.
pub(super) fn ensure_packages(apt: &mut Apt, requirements: &[Requirement]) -> Result<()> {
    let packages = missing(requirements);
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if process::which("apt-get").is_none() {
        bail!(
            "missing, and there is no apt-get to install them: {list} (these are Debian's package \
             names; install their like with your distribution's package manager)"
        );
    }
    if let Err(error) = apt.install(&packages) {
        bail!("cannot install {list}: {error:#}\nrun as root: apt-get install {list}");
    }
    let still = missing(requirements);
    if !still.is_empty() {
        bail!("installed, yet its programs are not found: {}", still.join(" "));
    }
    Ok(())
}
