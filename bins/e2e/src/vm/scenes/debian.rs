//! Debian as it is: what its own boot chain measures is approved from its files, and what is done to it is refused.

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tec_core::endpoint::Endpoint;

use super::adversary::{Change, half_in_plain};
use crate::qemu::{disk, luks, must};
use crate::story::Story;
use crate::vm::distribution::{Chain, Debian, Guest, HEADER, Started, command_line};
use crate::vm::stage::Stage;
use crate::vm::table;

/// The image that the firmware starts.
const UNIFIED: &str = "boot/efi/EFI/BOOT/BOOTX64.EFI";
/// The system partition, and the image that systemd-boot starts.
pub(super) const SYSTEM: &str = "boot/efi";
const MANAGED: &str = "boot/efi/EFI/Linux/debian.efi";
pub(super) const GRUB_CONFIG: &str = "boot/grub/grub.cfg";
/// Bytes of the block that GRUB keeps variables in (GRUB manual, "Environment block").
const GRUB_BLOCK: usize = 1024;
/// Prints the versions of the packages' programs.
const VERSIONS: &str = "for deb in /var/tmp/packages/*.deb; do \
    dpkg --listfiles \"$(dpkg-deb --field \"$deb\" Package)\" | grep '^/usr/bin/' | while read -r program; do \
    [ -L \"$program\" ] || \"$program\" --version || exit 1; done || exit 1; done";
/// Name of the image after the upgrade.
const UPGRADED: &str = "debian-upgraded";
/// Name of the image after the upgrade of its kernel.
const NEWER_KERNEL: &str = "debian-newer-kernel";
/// What an upgrade of the kernel does after it made an initramfs.
const INSTALL_KERNEL: &str = "mv /later/* /boot/ && update-grub";
const IS_NEWEST: &str = "test $(uname -r) = $(ls /lib/modules | sort -V | tail -n 1)";
/// The boot is that of no approved image.
const OTHER: &str = "TEC-A412";
/// Servers release no key after the initramfs.
const LATE: &str = "TEC-A424";
/// The root is not on the disk that the key opened.
const BESIDE: &str = "TEC-N427";
/// Waits for the network.
const ONLINE: &str = "/lib/systemd/systemd-networkd-wait-online --timeout=240";

/// What was done, the code or what was released, and what is said.
type Row = [String; 3];
/// What someone does who has the disk in hand, with the code of the refusal.
type Attack = (&'static str, &'static str, fn(&Debian) -> anyhow::Result<()>);

const ON_GRUB: [Attack; 4] = [
    ("init=/bin/bash in grub.cfg", OTHER, |debian| {
        debian.in_boot(|root| {
            let path = root.join(GRUB_CONFIG);
            let script = fs::read_to_string(&path)?;
            let edited = script.replace(" ro ", " ro init=/bin/bash ");
            ensure!(edited != script, "grub.cfg has no command line of the expected form");
            Ok(fs::write(path, edited)?)
        })
    }),
    ("a command is added to grub.cfg", OTHER, |debian| {
        debian.in_boot(|root| {
            let path = root.join(GRUB_CONFIG);
            let script = fs::read_to_string(&path)?;
            Ok(fs::write(path, format!("set evil=1\n{script}"))?)
        })
    }),
    ("the recovery entry is chosen", OTHER, |debian| {
        debian.in_boot(|root| {
            let script = fs::read_to_string(root.join(GRUB_CONFIG))?;
            let id = |part: &str| {
                let ids = script.split('\'').filter(|word| word.starts_with("gnulinux-"));
                ids.into_iter()
                    .find(|id| id.contains(part))
                    .with_context(|| format!("grub.cfg has no entry whose id contains {part}"))
            };
            let chosen = format!("{}>{}", id("gnulinux-advanced-")?, id("-recovery-")?);
            // As grub-reboot(8) does.
            let block = format!("# GRUB Environment Block\nnext_entry={chosen}\n");
            Ok(fs::write(root.join("boot/grub/grubenv"), format!("{block:#<GRUB_BLOCK$}"))?)
        })
    }),
    ("the header declares a part that is not encrypted", "TEC-N426", |debian| {
        change_header(debian, |header| half_in_plain(header, disk::INSTALLED_ROOT))
    }),
];
const ON_UNIFIED: [Attack; 1] = [("init=/bin/sh in the image", OTHER, |debian| {
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
})];
const ON_MANAGER: [Attack; 1] = [("an entry of systemd-boot with init=/bin/sh", OTHER, |debian| {
    debian.in_boot(|root| {
        let loader = root.join(SYSTEM).join("loader");
        let line = command_line();
        let entry =
            format!("title Debian\nefi /EFI/Linux/debian.efi\noptions {line} init=/bin/sh\n");
        fs::create_dir_all(loader.join("entries"))?;
        fs::write(loader.join("entries/other.conf"), entry)?;
        Ok(fs::write(loader.join("loader.conf"), "default other.conf\n")?)
    })
})];
const ON_HEADER: [Attack; 2] = [
    ("the header declares a cipher that does nothing", "TEC-N426", |debian| {
        change_header(debian, |header| {
            header["segments"]["0"]["encryption"] = "cipher_null-ecb".into();
        })
    }),
    ("a re-encryption has begun", "TEC-N426", Debian::begin_reencryption),
];

impl Stage {
    /// Installs it, binds its disk, boots it, and attacks it; each attack is undone before the next one.
    pub(in crate::vm) fn debian(&mut self, system: &str, chain: Chain) -> anyhow::Result<()> {
        let attacks: &[Attack] = match chain {
            Chain::Grub => &ON_GRUB,
            Chain::Unified => &ON_UNIFIED,
            Chain::Manager => &ON_MANAGER,
        };
        self.story.scene('m', &format!("Debian {system}: {}", chain.title()));
        let mut story = std::mem::take(&mut self.story);
        let mut debian = story.works("installed, with an initramfs that has the pin", || {
            Debian::install(&self.settings, (system, chain), &self.merge)
        })?;
        let covered = story.works("its image is approved from its files", || {
            self.approve_boot(&debian, chain, "debian")
        })?;
        story.shows("what is checked of it", &covered);
        let mut rows: Vec<Row> = Vec::new();
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
        for attack in attacks.iter().chain(&ON_HEADER) {
            rows.push(story.works(attack.0, || self.attack(&mut debian, attack))?);
        }
        rows.extend(self.planted(&mut story, &mut debian, chain, (&kbs, &path))?);
        rows.extend(self.upgraded(&mut story, &mut debian, chain)?);
        if debian.has_newer_kernel() {
            rows.extend(self.newer_kernel(&mut story, &mut debian)?);
        } else if chain == Chain::Grub {
            story.shows("a newer kernel: not run", "this suite has one kernel");
        }
        let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
        let heading = ["what was done", "code", "what is said"];
        story.shows("released or refused", &table::render(&heading, &rows));
        story.shows("as markdown", &table::markdown(system, &heading, &rows));
        self.story = story;
        Ok(())
    }

    /// Plants a root that is not encrypted, and then the header that was bound beside it.
    fn planted(
        &self,
        story: &mut Story,
        debian: &mut Debian,
        chain: Chain,
        (kbs, path): (&Endpoint, &str),
    ) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        let before = keep(&debian.disk())?;
        let header = bound_header(&debian.disk())?;
        debian.plant_plain()?;
        // With systemd, its initramfs waits long for the encrypted disk, and then it is the same.
        if chain == Chain::Grub {
            let what = "a root that is not encrypted is planted";
            rows.push(story.works(what, || {
                let guest = opened(debian.boot(None)?)?;
                let [_, code, said] = self.ask_late(&guest, kbs, path)?;
                guest.off()?;
                Ok([what.to_owned(), code, said])
            })?);
        }
        let what = "such a root, and the bound header on another partition";
        rows.push(story.works(what, || {
            disk::add_to_installed(&debian.disk(), 2 * HEADER, &header)?;
            self.refused(debian, what, BESIDE)
        })?);
        restore(&debian.disk(), &before)?;
        Ok(rows)
    }

    /// Replaces the initramfs by what an upgrade makes, and approves that after a boot.
    fn upgraded(
        &self,
        story: &mut Story,
        debian: &mut Debian,
        chain: Chain,
    ) -> anyhow::Result<[Row; 2]> {
        let what = "an upgrade of the initramfs, not approved";
        let refused = story.works(what, || {
            debian.in_boot(|root| replace(&upgradable(root, chain)?, &debian.update()))?;
            self.refused(debian, what, OTHER)
        })?;
        let what = "the same, approved before the next boot";
        story.works(what, || {
            self.approve_boot(debian, chain, UPGRADED)?;
            opened(debian.boot(None)?)?.off()
        })?;
        Ok([refused, [what, "released", "the root opens by itself"].map(str::to_owned)])
    }

    /// Installs a newer kernel beside the one that runs, and approves that after a boot.
    fn newer_kernel(&self, story: &mut Story, debian: &mut Debian) -> anyhow::Result<[Row; 2]> {
        let what = "a newer kernel, not approved";
        let refused = story.works(what, || {
            let guest = opened(debian.boot(None)?)?;
            guest.must(INSTALL_KERNEL)?;
            guest.off()?;
            self.refused(debian, what, OTHER)
        })?;
        let what = "the same, approved before the next boot";
        story.works(what, || {
            self.approve_boot(debian, Chain::Grub, NEWER_KERNEL)?;
            let guest = opened(debian.boot(None)?)?;
            guest.must(IS_NEWEST)?;
            guest.off()
        })?;
        Ok([refused, [what, "released", "the root opens by itself"].map(str::to_owned)])
    }

    /// Approves what its firmware starts; returns the table of what is checked.
    pub(super) fn approve_boot(
        &self,
        debian: &Debian,
        chain: Chain,
        name: &str,
    ) -> anyhow::Result<String> {
        // Nobody signed unified kernel images.
        let (part, options) = match chain {
            Chain::Grub => ("", &[][..]),
            Chain::Unified => (UNIFIED, &["--secure-boot", "off"][..]),
            Chain::Manager => (SYSTEM, &["--secure-boot", "off"][..]),
        };
        let approve = |path: &Path| {
            let path = path.to_str().context("the path is not UTF-8")?;
            self.anchor.tec_text(&[&["image", "approve", name, path], options].concat())
        };
        // The whole disk has the same files, in a file system that the installer's tools made.
        let said = match (chain, name) {
            (Chain::Grub, UPGRADED | NEWER_KERNEL) => approve(&debian.disk())?,
            _ => debian.in_boot(|root| approve(&root.join(part)))?,
        };
        // The table; its rows begin with a part of the boot, and the values after it with their register.
        let told = said.lines().map(str::trim);
        let told = told.filter(|line| line.contains("PCR ") || line.contains("NOT"));
        let told = told.filter(|line| !line.starts_with("PCR"));
        Ok(told.collect::<Vec<_>>().join("\n"))
    }

    /// What is said if the running system asks for its disk key.
    fn ask_late(&self, guest: &Guest, kbs: &Endpoint, path: &str) -> anyhow::Result<Row> {
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

    fn attack(&self, debian: &mut Debian, &(what, code, attack): &Attack) -> anyhow::Result<Row> {
        let before = keep(&debian.disk())?;
        attack(debian)?;
        let row = self.refused(debian, what, code)?;
        restore(&debian.disk(), &before)?;
        Ok(row)
    }

    /// Boots it, which must be refused with this code.
    fn refused(&self, debian: &mut Debian, what: &str, code: &str) -> anyhow::Result<Row> {
        let Started::Closed(line) = debian.boot(None)? else {
            anyhow::bail!("{what}: the disk was opened")
        };
        let sentence = line.strip_prefix(code);
        let sentence = sentence.with_context(|| format!("{what}: {line} instead of {code}"))?;
        let explained = if code.starts_with("TEC-A") {
            let text = self.anchor.tec_text(&["explain"])?;
            let line = |part: &str| text.lines().find(|line| line.contains(part));
            line("differ").or_else(|| line("!!")).or_else(|| line("NO")).unwrap_or(&text).to_owned()
        } else {
            format!("(on the console) {}", sentence.trim())
        };
        Ok([what, code, explained.trim()].map(str::to_owned))
    }
}

pub(super) fn opened(started: Started) -> anyhow::Result<Guest> {
    match started {
        Started::Open(guest) => Ok(guest),
        Started::Closed(line) => anyhow::bail!("the disk stayed closed: {line}"),
    }
}

/// Binds the disk as the documentation says.
pub(super) fn bind(guest: &Guest, added: &Value) -> anyhow::Result<()> {
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

/// The header of its encrypted root, with the token of the pin.
fn bound_header(disk: &Path) -> anyhow::Result<Vec<u8>> {
    let mut header = vec![0; usize::try_from(HEADER)?];
    File::open(disk)?.read_exact_at(&mut header, disk::offset_of_installed_root())?;
    Ok(header)
}

/// The file that an upgrade of the initramfs replaces.
fn upgradable(root: &Path, chain: Chain) -> anyhow::Result<PathBuf> {
    match chain {
        Chain::Grub => find(&root.join("boot"), "initrd.img-"),
        Chain::Unified => Ok(root.join(UNIFIED)),
        Chain::Manager => Ok(root.join(MANAGED)),
    }
}

fn replace(file: &Path, with: &Path) -> anyhow::Result<()> {
    ensure!(fs::read(file)? != fs::read(with)?, "{} is what it was", with.display());
    fs::copy(with, file).with_context(|| format!("cannot replace {}", file.display()))?;
    Ok(())
}

fn change_header(debian: &Debian, change: Change) -> anyhow::Result<()> {
    luks::change(&debian.disk(), disk::offset_of_installed_root(), change)
}

fn find(directory: &Path, begin: &str) -> anyhow::Result<PathBuf> {
    let entries = fs::read_dir(directory)?.filter_map(Result::ok);
    let mut paths = entries.map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
    };
    paths.find(is_it).with_context(|| format!("no {begin} in {}", directory.display()))
}

/// Keeps a disk while it is changed; holes stay holes.
fn keep(disk: &Path) -> anyhow::Result<PathBuf> {
    let copy = disk.with_extension("before.img");
    copy_sparse(disk, &copy)?;
    Ok(copy)
}

fn restore(disk: &Path, before: &Path) -> anyhow::Result<()> {
    copy_sparse(before, disk)
}

fn copy_sparse(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut copy = Command::new("cp");
    must(copy.arg("--sparse=always").arg(from).arg(to))
}
