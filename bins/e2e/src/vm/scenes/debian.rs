//! Debian as it is: what its own boot chain measures is approved from its files, and what is done to it is refused.

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tec_core::endpoint::Endpoint;

use super::adversary::{Change, half_in_plain};
use crate::qemu::{disk, luks, must};
use crate::vm::distribution::{Chain, Debian, Guest, Started};
use crate::vm::stage::Stage;
use crate::vm::table;

/// Passphrase of the root that an attacker planted.
const PLANTED: &str = "planted";

/// The image that the firmware starts.
const UNIFIED: &str = "boot/efi/EFI/BOOT/BOOTX64.EFI";
/// Prints the versions of the packages' programs.
const VERSIONS: &str = "for deb in /var/tmp/packages/*.deb; do \
    dpkg --listfiles \"$(dpkg-deb --field \"$deb\" Package)\" | grep '^/usr/bin/' | while read -r program; do \
    [ -L \"$program\" ] || \"$program\" --version || exit 1; done || exit 1; done";
/// Servers release no key after the initramfs.
const LATE: &str = "TEC-A424";
/// Waits for the network.
const ONLINE: &str = "/lib/systemd/systemd-networkd-wait-online --timeout=240";

/// What someone does who has the disk in hand, with the code of the refusal.
type Attack = (&'static str, &'static str, fn(&Debian) -> anyhow::Result<()>);

const ON_GRUB: [Attack; 2] = [
    ("init=/bin/bash in grub.cfg", "TEC-A412", |debian| {
        debian.in_boot(|root| {
            let path = root.join("boot/grub/grub.cfg");
            let script = fs::read_to_string(&path)?;
            let edited = script.replace(" ro ", " ro init=/bin/bash ");
            ensure!(edited != script, "grub.cfg has no command line of the expected form");
            Ok(fs::write(path, edited)?)
        })
    }),
    ("bytes appended to the initramfs", "TEC-A412", |debian| {
        debian.in_boot(|root| {
            let path = find(&root.join("boot"), "initrd.img-")?;
            append(&path)
        })
    }),
];
const ON_UNIFIED: [Attack; 2] = [
    ("init=/bin/sh in the image", "TEC-A412", |debian| {
        debian.in_boot(|root| {
            let path = root.join(UNIFIED);
            let mut image = fs::read(&path)?;
            let (word, other) = (b"console=tty0", b"init=/bin/sh");
            let mut places = image.windows(word.len()).enumerate();
            // In the initramfs the words may be too, but that is compressed, and follows.
            let place = places.find_map(|(place, bytes)| (bytes == word).then_some(place));
            let place = place.context("the image has no command line of the expected form")?;
            image.splice(place..place + word.len(), *other);
            Ok(fs::write(path, image)?)
        })
    }),
    ("bytes appended to the initramfs in the image", "TEC-A412", |debian| {
        debian.in_boot(|root| {
            let path = root.join(UNIFIED);
            let initramfs = path.with_extension("initrd");
            let section = format!("-section=.initrd={}", initramfs.display());
            let copy =
                |verb| must(Command::new("objcopy").arg(format!("--{verb}{section}")).arg(&path));
            copy("dump")?;
            append(&initramfs)?;
            copy("update")?;
            Ok(fs::remove_file(initramfs)?)
        })
    }),
];
const ON_HEADER: [Attack; 2] = [
    ("the header declares a cipher that does nothing", "TEC-N426", |debian| {
        change_header(debian, |header| {
            header["segments"]["0"]["encryption"] = "cipher_null-ecb".into();
        })
    }),
    ("the header declares a part that is not encrypted", "TEC-N426", |debian| {
        change_header(debian, |header| half_in_plain(header, disk::INSTALLED_ROOT))
    }),
];

impl Stage {
    /// Installs it, binds its disk, boots it, and attacks it; each attack is undone before the next one.
    pub(in crate::vm) fn debian(&mut self, system: &str, chain: Chain) -> anyhow::Result<()> {
        let (image, options, attacks) = match chain {
            Chain::Grub => ("", &[][..], ON_GRUB),
            // Nobody signed it.
            Chain::Unified => (UNIFIED, &["--secure-boot", "off"][..], ON_UNIFIED),
        };
        self.story.scene('m', &format!("Debian {system}: {}", chain.title()));
        let mut story = std::mem::take(&mut self.story);
        let mut debian = story.works("installed, with an initramfs that has the pin", || {
            Debian::install(&self.settings, (system, chain), &self.merge)
        })?;
        let covered = story.works("its image is approved from its files", || {
            debian.in_boot(|root| self.approve_tree(&root.join(image), options))
        })?;
        story.shows("what is checked of it", &covered);
        let mut rows: Vec<[String; 3]> = Vec::new();
        let added = self.anchor.tec_text(&["machine", "add", "--name", "debian"])?;
        let added: Value = serde_json::from_str(&added).context("no Ignition config")?;
        story.works("first boot, with the typed passphrase: Clevis binds the disk", || {
            let guest = debian.boot_typed()?;
            bind(&guest, &added)?;
            guest.off()
        })?;
        let (path, kbs) = (path_of(&added)?, self.anchor.kbs()?);
        let row =
            story.works("reboot: the root opens by itself, and gets no key any more", || {
                let guest = opened(debian.boot(None)?)?;
                guest.must("node-agent attest")?;
                guest.must("systemctl is-active tec-refresh-ca.timer")?;
                guest.must(VERSIONS)?;
                let refused = self.ask_late(&guest, &kbs, &path)?;
                guest.off()?;
                Ok(refused)
            })?;
        rows.push(row);
        for (what, code, attack) in attacks.into_iter().chain(ON_HEADER) {
            let row = story.works(what, || self.attack(&mut debian, (what, code, attack)))?;
            rows.push(row);
        }
        for (what, passphrase) in [
            ("another root with its own passphrase is planted", Some(PLANTED)),
            ("a root that is not encrypted is planted", None),
        ] {
            let row = story.works(what, || {
                let before = keep(&debian.disk())?;
                match passphrase {
                    Some(passphrase) => debian.plant(passphrase)?,
                    None => debian.plant_plain()?,
                }
                let guest = opened(debian.boot(passphrase)?)?;
                let [_, code, said] = self.ask_late(&guest, &kbs, &path)?;
                guest.off()?;
                restore(&debian.disk(), &before)?;
                Ok([what.to_owned(), code, said])
            })?;
            rows.push(row);
        }
        story.works("the disk as it was opens by itself", || opened(debian.boot(None)?)?.off())?;
        let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
        story.shows("refused", &table::render(&["what was done", "code", "what is said"], &rows));
        self.story = story;
        Ok(())
    }

    /// Approves what is at a path; returns the table of what is checked.
    fn approve_tree(&self, path: &Path, options: &[&str]) -> anyhow::Result<String> {
        let path = path.to_str().context("the path is not UTF-8")?;
        let command = [&["image", "approve", "debian", path], options].concat();
        let said = self.anchor.tec_text(&command)?;
        let told = said.lines().filter(|line| line.contains("checked by") || line.contains("NOT"));
        Ok(told.map(str::trim).collect::<Vec<_>>().join("\n"))
    }

    /// What is said if the running system asks for its disk key.
    fn ask_late(&self, guest: &Guest, kbs: &Endpoint, path: &str) -> anyhow::Result<[String; 3]> {
        guest.must(ONLINE)?;
        guest.must(&format!("echo {} | base64 -d > /root/ca.pem", STANDARD.encode(&kbs.cert)))?;
        let url = &kbs.url;
        let ask =
            format!("node-agent attest --url {url}=/root/ca.pem --path {path} --write /root/key");
        let (status, said) = guest.run(&ask)?;
        ensure!(status != 0 && said.contains(LATE), "exit status {status}: {said}");
        guest.must("test ! -e /root/key")?;
        let attempt = said.split_whitespace().skip_while(|word| *word != "attempt").nth(1);
        let explained =
            self.anchor.tec_text(&["explain", attempt.context("no attempt is named")?])?;
        let line = explained.lines().find(|line| line.contains("NO"));
        let line =
            line.filter(|_| explained.contains(LATE)).context("tec explain names no refusal")?;
        Ok(["the running system asks for its key", LATE, line.trim()].map(str::to_owned))
    }

    fn attack(
        &self,
        debian: &mut Debian,
        (what, code, attack): Attack,
    ) -> anyhow::Result<[String; 3]> {
        let before = keep(&debian.disk())?;
        attack(debian)?;
        let started = debian.boot(None)?;
        restore(&debian.disk(), &before)?;
        let Started::Closed(said) = started else { anyhow::bail!("{what}: the disk was opened") };
        ensure!(said == code, "{what}: {said} instead of {code}");
        let explained = if code.starts_with("TEC-A") {
            let text = self.anchor.tec_text(&["explain"])?;
            let telling = text.lines().find(|line| line.contains("differs") || line.contains("!!"));
            telling.unwrap_or_default().trim().to_owned()
        } else {
            "(the node asked no server)".to_owned()
        };
        Ok([what.to_owned(), said, explained])
    }
}

fn opened(started: Started) -> anyhow::Result<Guest> {
    match started {
        Started::Open(guest) => Ok(guest),
        Started::Closed(code) => anyhow::bail!("the disk stayed closed: {code}"),
    }
}

/// Binds the disk as the documentation says.
fn bind(guest: &Guest, added: &Value) -> anyhow::Result<()> {
    let config = added["storage"]["luks"][0]["clevis"]["custom"]["config"].as_str();
    let config = config.context("the Ignition config has no pin")?.replace('\'', "'\\''");
    guest.must(ONLINE)?;
    guest.must(&format!(
        "printf %s hunter2 > /root/pass; \
         clevis luks bind -y -k /root/pass -d /dev/disk/by-partlabel/root trustee '{config}'"
    ))?;
    guest.must("cryptsetup luksDump /dev/disk/by-partlabel/root | grep -q clevis").map(drop)
}

fn path_of(added: &Value) -> anyhow::Result<String> {
    let config = added["storage"]["luks"][0]["clevis"]["custom"]["config"].as_str();
    let config: Value = serde_json::from_str(config.context("the Ignition config has no pin")?)?;
    Ok(config["path"].as_str().context("the pin has no path")?.to_owned())
}

fn append(file: &Path) -> anyhow::Result<()> {
    Ok(File::options().append(true).open(file)?.write_all(&[0; 512])?)
}

fn change_header(debian: &Debian, change: Change) -> anyhow::Result<()> {
    luks::change(&debian.disk(), disk::offset_of_installed_root(), change)
}

fn find(directory: &Path, begin: &str) -> anyhow::Result<std::path::PathBuf> {
    let entries = fs::read_dir(directory)?.filter_map(Result::ok);
    let mut paths = entries.map(|entry| entry.path());
    let is_it = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
    };
    paths.find(is_it).with_context(|| format!("no {begin} in {}", directory.display()))
}

/// Keeps a disk while it is changed; holes stay holes.
fn keep(disk: &Path) -> anyhow::Result<std::path::PathBuf> {
    let copy = disk.with_extension("before.img");
    copy_sparse(disk, &copy)?;
    Ok(copy)
}

fn restore(disk: &Path, before: &Path) -> anyhow::Result<()> {
    copy_sparse(before, disk)
}

fn copy_sparse(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut copy = std::process::Command::new("cp");
    crate::qemu::must(copy.arg("--sparse=always").arg(from).arg(to))
}
