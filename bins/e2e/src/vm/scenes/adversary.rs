//! Boots by an adversary, each refused with the expected code.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use tec_core::id::MachineId;
use tec_tpm::ak::AkHandle;
use tec_tpm::compute::Guid;
use tec_tpm::testing::Swtpm;
use tec_tpm::tss::{Tpm, TpmAttester};

use super::dbx::append;
use crate::qemu::disk::ROOT;
use crate::qemu::key::{SHA256, signature_list};
use crate::qemu::variables::{BOOT_ONLY, SIGNED};
use crate::qemu::{VariableStore, disk, luks};
use crate::vm::boot::Ended;
use crate::vm::image::Image;
use crate::vm::node::Node;
use crate::vm::stage::Stage;
use crate::vm::table;
use crate::wire::{Session, some_pubkey};

/// A refused boot, as shown in the table.
type Row = [String; 3];

/// Changes the metadata of a header.
pub(super) type Change = fn(&mut Value);

/// Changes of the LUKS2 header that would give away the volume key, or the machine's own data.
const HEADERS: [(&str, Change); 2] = [
    ("the header declares a part that is not encrypted", |header| half_in_plain(header, ROOT)),
    ("the header declares a cipher that does nothing", |header| {
        header["segments"]["0"]["encryption"] = "cipher_null-ecb".into();
    }),
];
/// Size of a LUKS2 header with its key slots, as `cryptsetup` makes it.
const HEADER: u64 = 16 << 20;

/// Declares the first half of a disk with this number of bytes as not encrypted.
pub(super) fn half_in_plain(header: &mut Value, size: u64) {
    let mut rest = header["segments"]["0"].clone();
    rest["offset"] = (size / 2).to_string().into();
    header["segments"]["1"] = rest;
    let plain = (size / 2 - HEADER).to_string();
    header["segments"]["0"] =
        json!({"type": "linear", "offset": HEADER.to_string(), "size": plain});
    // Each encrypted segment has a digest, or cryptsetup takes it for no header.
    header["digests"]["0"]["segments"] = json!(["1"]);
}

/// No server is asked: the pin refuses to give a passphrase to such a header.
fn changed_header(one: &mut Node, what: &str, change: Change) -> anyhow::Result<Row> {
    let before = fs::read(one.disk()).context("cannot read the disk")?;
    luks::change(&one.disk(), disk::offset_of_root(), change)?;
    let ended = one.boot()?.ended()?;
    fs::write(one.disk(), before).context("cannot restore the disk")?;
    ensure!(ended == Ended::Refused("TEC-N426".to_owned()), "{what}: {ended:?}");
    Ok([what.to_owned(), "TEC-N426".to_owned(), "(the node asked no server)".to_owned()])
}

impl Stage {
    /// Every boot is refused, and `tec explain` names what differs.
    pub(in crate::vm) fn adversary(&mut self) -> anyhow::Result<()> {
        self.story.scene('b', "What an adversary may boot");
        let mut story = std::mem::take(&mut self.story);
        let good = self.current()?;
        let mut one = story.works("machine one has had its first boot", || self.one())?;
        let mut rows = Vec::new();
        let id = self.machine_of(&one)?;
        for (what, image, named) in self.changed_images()? {
            let row = story.works(what, || {
                one.install(&image)?;
                self.refused_boot(&mut one, id, what, named)
            })?;
            rows.push(row);
        }
        one.install(&good)?;
        rows.push(story.works("Secure Boot is switched off", || self.without_keys(&mut one, id))?);
        rows.push(story.works("the variables are swapped", || self.other_variables(&mut one, id))?);
        for (what, change) in HEADERS {
            rows.push(story.works(what, || changed_header(&mut one, what, change))?);
        }
        rows.push(
            story.works("the disk is put into another machine", || self.moved_disk(&one, &good))?,
        );
        rows.push(story.works("the TPM's state is put into another machine", || {
            self.copied_tpm(&mut one, &good)
        })?);
        rows.push(story.works("evidence is replayed", || self.replayed(&one))?);
        let update = self.image("update", |parts| parts.kernel = "update")?;
        rows.push(story.works("an older kernel is booted after its revocation", || {
            self.revoked_kernel(&mut one, id, &good, &update)
        })?);
        rows.push(story.works("the machine is deleted", || self.deleted(&mut one, id))?);
        let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
        let heading = ["what was done", "code", "what tec explain or the node names"];
        story.shows("refused", &table::render(&heading, &rows));
        self.story = story;
        // Its image is no longer approved.
        self.forget_current();
        Ok(())
    }

    /// Changed images, each with what was changed and the file that must be named.
    fn changed_images(&self) -> anyhow::Result<Vec<(&'static str, Image, &'static str)>> {
        let initial = self.settings.artefacts.join("initrd-changed.img");
        let changed = self.initial.clone().with("etc/evil", "a program would do more\n");
        changed.write(&initial)?;
        Ok(vec![
            (
                "the kernel is swapped",
                self.image("swapped", |parts| parts.kernel = "update")?,
                "vmlinuz",
            ),
            (
                "the initial file system is changed",
                self.image("initrd", |parts| parts.initial = initial)?,
                "initrd.img",
            ),
            (
                "the command line is changed",
                self.image("command-line", |parts| parts.command_line = " init=/bin/sh")?,
                "kernel command line in GRUB",
            ),
            (
                "grub.cfg is edited",
                self.image("commands", |parts| parts.command = "set evil=1\n")?,
                "grub.cfg",
            ),
        ])
    }

    /// Boots and expects TEC-A412, explained with `named`.
    fn refused_boot(
        &self,
        node: &mut Node,
        id: MachineId,
        what: &str,
        named: &str,
    ) -> anyhow::Result<Row> {
        self.refused_with(node, id, what, ["TEC-A412", named])
    }

    /// Boots and expects this code, explained with these words.
    fn refused_with(
        &self,
        node: &mut Node,
        id: MachineId,
        what: &str,
        [code, named]: [&str; 2],
    ) -> anyhow::Result<Row> {
        let ended = node.boot()?.ended()?;
        ensure!(ended == Ended::Refused(code.to_owned()), "{what}: {ended:?}");
        let reason = self.reason(Some(id))?;
        ensure!(reason.contains(named), "the reason does not name {named}: {reason}");
        Ok([what.to_owned(), code.to_owned(), reason])
    }

    fn without_keys(&self, one: &mut Node, id: MachineId) -> anyhow::Result<Row> {
        let variables = one.variables();
        let before = fs::read(&variables)?;
        let off = VariableStore::new(before.clone())?.with(
            "SecureBootEnable",
            Guid::SECURE_BOOT_ENABLE,
            BOOT_ONLY,
            &[0],
        )?;
        fs::write(&variables, off.build())?;
        // shim asks the firmware to verify and measure the kernel only while Secure Boot is on.
        let named = "kernel (vmlinuz) was not measured";
        let row = self.refused_boot(one, id, "Secure Boot is switched off", named);
        fs::write(&variables, before)?;
        row
    }

    /// Those of a machine whose owner enrolled other keys for updates. One more of them, as vendors roll out,
    /// changes nothing.
    fn other_variables(&self, one: &mut Node, id: MachineId) -> anyhow::Result<Row> {
        let (variables, own) = (one.variables(), signature_list(SHA256, &[0x5a; 32])?);
        append(one, "KEK", Guid::GLOBAL, &own)?;
        one.boot()?.opened()?;
        let before = fs::read(&variables)?;
        let other = VariableStore::new(before.clone())?.with("KEK", Guid::GLOBAL, SIGNED, &own)?;
        fs::write(&variables, other.build())?;
        let row = self.refused_with(one, id, "the variables are swapped", ["TEC-A409", "KEK"]);
        fs::write(&variables, before)?;
        row
    }

    /// Another machine, known to the server, with the first one's disk.
    fn moved_disk(&self, one: &Node, good: &Image) -> anyhow::Result<Row> {
        let mut two = self.node("two", good)?;
        two.boot()?.opened()?;
        fs::copy(one.disk(), two.disk()).context("cannot copy the disk")?;
        let boot = two.boot()?;
        let Ended::Refused(code) = boot.ended()? else {
            bail!("a boot with the disk of another machine was not refused: {:?}", boot.ended()?)
        };
        ensure!(code == "TEC-A413", "refused with {code}");
        let id = self.machine_of(one)?;
        let reason = self.reason(None)?;
        ensure!(reason.contains(&id.to_string()), "the reason does not name {id}: {reason}");
        two.discard()?;
        Ok(["the disk in another machine".to_owned(), code, reason])
    }

    /// A new machine with the first one's keys: judging by quotes it is the first one, so it gets no identity
    /// of its own. This becomes visible when the first one boots again, and an admin decides which of them
    /// may continue.
    fn copied_tpm(&self, one: &mut Node, good: &Image) -> anyhow::Result<Row> {
        let mut three = self.node("three", good)?;
        copy_files(&one.tpm(), &three.tpm())?;
        three.boot()?.opened()?;
        let (id, known) = (self.machine_of(&three)?, self.machine_of(one)?);
        ensure!(id == known, "the node became machine {id} instead of {known}");
        // If both were reset equally often, only their clocks distinguish them, and these run unevenly on a
        // busy host.
        three.boot()?.opened()?;
        three.discard()?;
        let what = "the TPM's state in another machine, when the first one boots again";
        let row = self.refused_with(one, id, what, ["TEC-A408", "1 fewer resets"])?;
        self.anchor.tec(&["machine", "readmit", &id.to_string()])?;
        one.boot()?.opened()?;
        Ok(row)
    }

    /// Evidence with the machine's own key, produced for one session and sent in the next.
    fn replayed(&self, one: &Node) -> anyhow::Result<Row> {
        let swtpm = Swtpm::of_state(&one.tpm())?;
        let tpm = Arc::new(Tpm::open(&swtpm.tcti())?);
        let attester = TpmAttester::new(tpm, AkHandle::default());
        let mut kbs = self.anchor.kbs()?;
        // The host's name is only valid in the virtual machines' network.
        kbs.url = self.anchor.local_kbs()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let reply = runtime.block_on(async {
            let proof = Session::open(&kbs).await?.prove(&attester, some_pubkey()).await?;
            Session::open(&kbs).await?.attest(&proof).await
        })?;
        let code = reply.code();
        ensure!(code == "TEC-A405", "the server says {code}: {}", reply.body);
        let reason = self.reason(None)?;
        ensure!(reason.contains("nonce"), "the reason does not name the nonce: {reason}");
        Ok(["evidence is replayed".to_owned(), code, reason])
    }

    fn revoked_kernel(
        &self,
        one: &mut Node,
        id: MachineId,
        old: &Image,
        update: &Image,
    ) -> anyhow::Result<Row> {
        self.approve("update", update)?;
        one.install(update)?;
        one.boot()?.opened()?;
        self.anchor.tec(&["image", "revoke", "current", "--yes"])?;
        one.install(old)?;
        let what = "an older kernel after its revocation";
        let row = self.refused_boot(one, id, what, "approval expired or was revoked");
        one.install(update)?;
        row
    }

    fn deleted(&self, one: &mut Node, id: MachineId) -> anyhow::Result<Row> {
        let id = id.to_string();
        self.anchor.tec(&["machine", "remove", &id, "--yes"])?;
        let boot = one.boot()?;
        let Ended::Refused(code) = boot.ended()? else {
            bail!("a deleted machine: {:?}", boot.ended()?)
        };
        Ok(["the machine is deleted".to_owned(), code, self.reason(None)?])
    }
}

fn copy_files(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().unwrap_or_default();
        fs::copy(&path, to.join(name))
            .with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(())
}
