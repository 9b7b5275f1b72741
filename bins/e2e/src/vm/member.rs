//! The initial file system of a bootstrapped node: systemd as process 1, and, unchanged, the units and the
//! lines of crypttab(5) and fstab(5) that are deployed with `bootstrapper`. What differs between nodes comes
//! from the firmware, see [`Cloud`](super::cloud::Cloud).
//!
//! *What it is not*: a Kubernetes node. Programs stand in for kubeadm and the kubelet.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::initial::InitialSystem;
use super::programs;
use super::settings::Settings;
use crate::qemu::must;

/// In addition to those of every node: what maps the state disk, and what stands in for a kubelet.
const PROGRAMS: [&str; 2] = ["chmod", "sleep"];
/// Our own programs.
const OWN: [&str; 2] = ["bootstrapper", "join-service"];
/// systemd's programs and units that map a disk.
const FILES: [&str; 9] = [
    "/usr/lib/systemd/systemd-cryptsetup",
    "/usr/lib/systemd/system-generators/systemd-cryptsetup-generator",
    "/usr/lib/systemd/system-generators/systemd-fstab-generator",
    "/usr/lib/systemd/system/blockdev@.target",
    "/usr/lib/systemd/system/cryptsetup-pre.target",
    "/usr/lib/systemd/system/cryptsetup.target",
    "/usr/lib/systemd/system/local-fs-pre.target",
    "/usr/lib/systemd/system/local-fs.target",
    "/usr/lib/systemd/system/umount.target",
];
/// Left out: what marks an initial system, and what only Ignition and Clevis need, because firmware reads
/// slowly.
const NOT: [&str; 7] = [
    "etc/initrd-release",
    "etc/os-release",
    "usr/bin/ignition",
    "usr/bin/node-agent",
    "usr/bin/tec-node",
    "usr/lib/systemd/system/node.service",
    "usr/lib/udev/rules.d/99-xx-unformatted.rules",
];
/// The deployed units.
pub(super) const UNITS: [(&str, &str); 2] = [
    ("tec-recover.service", include_str!("../../../bootstrapper/deploy/tec-recover.service")),
    (
        "tec-bootstrapper.service",
        include_str!("../../../bootstrapper/deploy/tec-bootstrapper.service"),
    ),
];
const TEXTS: [(&str, &str); 10] = [
    ("etc/fstab", include_str!("../../../bootstrapper/deploy/fstab")),
    (
        "etc/systemd/system/tec-recover.service.d/console.conf",
        include_str!("units/member/console.conf"),
    ),
    (
        "etc/systemd/system/tec-bootstrapper.service.d/console.conf",
        include_str!("units/member/console.conf"),
    ),
    ("usr/lib/systemd/system/default.target", include_str!("units/member/default.target")),
    ("usr/lib/systemd/system/kubelet.service", include_str!("units/member/kubelet.service")),
    ("usr/lib/systemd/system/member.service", include_str!("units/member/member.service")),
    (
        "usr/lib/systemd/system/join-service.service",
        include_str!("units/member/join-service.service"),
    ),
    ("usr/libexec/member", include_str!("units/member/member")),
    ("usr/bin/kubeadm", include_str!("units/member/kubeadm")),
    ("etc/os-release", "ID=tec-member\nVERSION_ID=1\n"),
];
const CRYPTTAB: &str = include_str!("../../../bootstrapper/deploy/crypttab");
/// The device in the deployed line, and the partition of nodes on this host.
const DEVICE: &str = "/dev/disk/by-partlabel/state";
pub(super) const PARTITION: &str = "/dev/disk/by-partlabel/root";
/// CA certificates that HTTP clients load on start.
const ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

impl InitialSystem {
    /// The initial system of a bootstrapped node.
    pub(super) fn of_member(&self, settings: &Settings, work: &Path) -> anyhow::Result<Self> {
        let mut files = self.files.clone();
        for path in NOT {
            files = files.without(path);
        }
        for name in PROGRAMS {
            let program = programs::find(name)?;
            files = programs::add(files, &program, &programs::below_usr(&program))?;
        }
        for file in FILES {
            files = programs::add(files, Path::new(file), file.trim_start_matches('/'))?;
        }
        for name in OWN {
            let bare = work.join(name);
            let mut strip = Command::new("strip");
            must(strip.arg("-o").arg(&bare).arg(settings.bin_dir.join(name)))?;
            files = programs::add(files, &bare, &format!("usr/bin/{name}"))?;
        }
        for (name, text) in UNITS {
            files = files.with(&format!("usr/lib/systemd/system/{name}"), text);
        }
        for (place, text) in TEXTS {
            files = files.with(place, text);
        }
        for (name, content) in authority(work)? {
            files = files.with(&format!("usr/share/member/{name}"), content);
        }
        files = files
            .with("etc/crypttab", CRYPTTAB.replace(DEVICE, PARTITION))
            .with(ROOTS.trim_start_matches('/'), fs::read(ROOTS)?)
            .with_link(
                "etc/systemd/system/network-online.target.wants/member.service",
                "/usr/lib/systemd/system/member.service",
            );
        Ok(Self { files })
    }
}

/// Files as created by kubeadm: the certificate and key of a CA, in its format, and a file with the addresses
/// of the API server.
fn authority(work: &Path) -> anyhow::Result<[(&'static str, Vec<u8>); 3]> {
    let at = |name: &str| work.join(name);
    let make = |name: &str, key: &str, more: &[&str]| {
        let mut make = Command::new("openssl");
        make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]).args(more);
        must(make.arg("-out").arg(at(name)).arg("-keyout").arg(at(key)))
    };
    let usage = ["-addext", "keyUsage=keyCertSign,digitalSignature"];
    make("ca.crt", "ca.pkcs8", &[&["-subj", "/CN=kubernetes"], &usage[..]].concat())?;
    let names = ["-addext", "subjectAltName=IP:10.0.2.2"];
    let server = [&["-subj", "/CN=kube-apiserver"], &names[..]].concat();
    make("apiserver.crt", "apiserver.key", &server)?;
    let mut convert = Command::new("openssl");
    convert.args(["rsa", "-traditional", "-in"]).arg(at("ca.pkcs8"));
    must(convert.arg("-out").arg(at("ca.key")))?;
    let read = |name: &'static str| anyhow::Ok((name, fs::read(at(name))?));
    Ok([read("ca.crt")?, read("ca.key")?, read("apiserver.crt")?])
}
