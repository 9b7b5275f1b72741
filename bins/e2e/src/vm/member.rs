//! The initial file system of a node that is bootstrapped: systemd as process 1, the units and the
//! lines of crypttab(5) and fstab(5) that are deployed with `bootstrapper`, as they are.
//!
//! *What it is not*: a node of Kubernetes. Programs stand in for kubeadm and the kubelet.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tec_core::digest::Sha256Digest;

use super::initial::InitialSystem;
use super::programs;
use super::settings::Settings;
use crate::admin::INIT_SECRET;
use crate::qemu::must;

/// Beside those of every node: what maps the state disk, and what stands in for a kubelet.
const PROGRAMS: [&str; 2] = ["chmod", "sleep"];
/// Programs and units of systemd that map a disk.
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
/// What makes the system an initial one, and what only Ignition and Clevis need: firmware reads slowly.
const NOT: [&str; 7] = [
    "etc/initrd-release",
    "etc/os-release",
    "usr/bin/ignition",
    "usr/bin/node-agent",
    "usr/bin/tec-node",
    "usr/lib/systemd/system/node.service",
    "usr/lib/udev/rules.d/99-xx-unformatted.rules",
];
const TEXTS: [(&str, &str); 11] = [
    (
        "usr/lib/systemd/system/tec-recover.service",
        include_str!("../../../bootstrapper/deploy/tec-recover.service"),
    ),
    (
        "usr/lib/systemd/system/tec-bootstrapper.service",
        include_str!("../../../bootstrapper/deploy/tec-bootstrapper.service"),
    ),
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
    ("usr/libexec/member", include_str!("units/member/member")),
    ("usr/bin/kubeadm", include_str!("units/member/kubeadm")),
    ("etc/os-release", "ID=tec-member\nVERSION_ID=1\n"),
];
const CRYPTTAB: &str = include_str!("../../../bootstrapper/deploy/crypttab");
/// The device of the deployed line, and the partition that nodes of this host have.
const DEVICE: &str = "/dev/disk/by-partlabel/state";
const PARTITION: &str = "/dev/disk/by-partlabel/root";
/// Certificates that HTTP clients begin with.
const ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

impl InitialSystem {
    /// The system of a node that is bootstrapped.
    ///
    /// # Errors
    /// A program or a file is missing.
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
        let bare = work.join("bootstrapper");
        let mut strip = Command::new("strip");
        must(strip.arg("-o").arg(&bare).arg(settings.bin_dir.join("bootstrapper")))?;
        files = programs::add(files, &bare, "usr/bin/bootstrapper")?;
        for (place, text) in TEXTS {
            files = files.with(place, text);
        }
        let node = json!({"Name": "member", "Role": "ControlPlane", "VPCIP": "10.0.2.15"});
        let metadata = json!({
            "self": node, "peers": [], "endpoint": "10.0.2.15",
            "initSecretHash": format!("sha256:{}", Sha256Digest::of(INIT_SECRET)),
        });
        let configuration = format!(
            "[metadata]\nkind = 'file'\npath = '/etc/tec/metadata.json'\n\
             [disk]\ndevice = '{PARTITION}'\n\
             [join_services]\nattestation_keys = []\ndangerous_any_measurements = true\n"
        );
        let (certificate, key) = authority(work)?;
        files = files
            .with("etc/tec/bootstrapper.toml", configuration)
            .with("etc/tec/metadata.json", metadata.to_string())
            .with("etc/crypttab", CRYPTTAB.replace(DEVICE, PARTITION))
            .with("usr/share/member/ca.crt", certificate)
            .with("usr/share/member/ca.key", key)
            .with(ROOTS.trim_start_matches('/'), fs::read(ROOTS)?)
            .with_link(
                "etc/systemd/system/network-online.target.wants/member.service",
                "/usr/lib/systemd/system/member.service",
            );
        Ok(Self { files })
    }
}

/// A CA as kubeadm makes one: certificate and key, in the form that it writes.
fn authority(work: &Path) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let at = |name: &str| work.join(name);
    let mut make = Command::new("openssl");
    make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=kubernetes", "-addext", "keyUsage=keyCertSign,digitalSignature"])
        .arg("-out")
        .arg(at("ca.crt"))
        .arg("-keyout")
        .arg(at("ca.pkcs8"));
    must(&mut make)?;
    let mut convert = Command::new("openssl");
    convert.args(["rsa", "-traditional", "-in"]).arg(at("ca.pkcs8"));
    must(convert.arg("-out").arg(at("ca.key")))?;
    Ok((fs::read(at("ca.crt"))?, fs::read(at("ca.key"))?))
}
