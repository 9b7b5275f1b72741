//! The state disk of a bootstrapped node, with a real systemd and the kernel's dm-crypt and dm-integrity.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use tec_support::testing::free_port;

use super::console::{LIMIT, MADE, MEMBER, SERVED, UP, boot_until};
use super::power::Phase;
use crate::admin::Admin;
use crate::qemu::must;
use crate::vm::cloud::Cloud;
use crate::vm::image::Image;
use crate::vm::member::UNITS;
use crate::vm::node::Node;
use crate::vm::stage::Stage;
use crate::volume;

/// Ports of Init and Recover on a node.
pub(super) const PORTS: [u16; 2] = [9000, 9999];
/// A master key that differs from the cluster's.
const OTHER_KEY: &str = "YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8";

/// Kills cryptsetup, and nothing else, once it wipes the disk.
const KILLER: &str = include_str!("../units/member/killer");

/// A node, and the addresses of its services on this host.
struct Member {
    node: Node,
    init: String,
    recover: String,
}

impl Stage {
    /// First boot, Init, a recovered boot, power failures during the first boot, and a foreign disk.
    pub(in crate::vm) fn bootstrap(&mut self) -> anyhow::Result<()> {
        self.story.scene('j', "The state disk of a node that is bootstrapped");
        let mut story = std::mem::take(&mut self.story);
        let image = story.works("an image with systemd as process 1", || self.member_image())?;
        let admin = Admin::new(self.settings.bin_dir.join("tec"), &self.settings.artefacts)?;
        let mut one = self.plane("member", &image)?;
        let (running, console, whole) = story.works(
            "first boot: the blank disk is made with integrity, and mounted; Init is served",
            || boot_until(&mut one.node, &[UP, SERVED]),
        )?;
        ensure!(console.contains(MADE), "the disk was not created: {console}");
        let key = key_of(&console)?;
        let id = story.works("tec node init: the disk gets the key of the cluster", || {
            admin.init(&one.init, &key)
        })?;
        running.cut();
        let dump = self.state_disk(&one.node)?;
        for part in ["tec-state", "hmac(sha256)", "4096 [bytes]", "argon2id"] {
            ensure!(dump.contains(part), "{part} is missing: {dump}");
        }
        story.shows("what cryptsetup says of it", &dump);
        let (mut running, ..) = story
            .works("the power fails; the next boot waits for keys", || {
                boot_until(&mut one.node, &["Recover is served"])
            })?;
        story.works("keys of another cluster are refused, and it waits on", || {
            let place = self.settings.artefacts.join("other");
            fs::create_dir_all(&place)?;
            let other = Admin::new(self.settings.bin_dir.join("tec"), &place)?;
            let refused = other.with_master_key(OTHER_KEY)?.recover(&one.recover, &key);
            let refused = refused.err().context("another key opened the disk")?;
            ensure!(refused.to_string().contains("TEC-B412"), "{refused:#}");
            Ok(())
        })?;
        story.works("tec node recover: the disk is open, and the node a member again", || {
            admin.recover(&one.recover, &key)?;
            running.wait_for_console(MEMBER, LIMIT)
        })?;
        running.cut();
        story.shows("the cluster", &id);
        let machine = |number| Ok(self.plane(&format!("member-cut-{number}"), &image)?.node);
        let phase = Phase { name: "first boot", end: SERVED, whole, machine: &machine };
        self.cut_power(&mut story, &phase)?;
        if self.settings.cuts > 0 {
            story.works(
                "cryptsetup alone is killed while it wipes: the disk is made again",
                || self.killed(&image),
            )?;
        }
        story.shows("systemd-analyze security", &self.exposures()?);
        story.works("a disk of somebody else is named, and stays as it is", || {
            self.foreign(&image)
        })?;
        self.story = story;
        Ok(())
    }

    pub(super) fn member_image(&self) -> anyhow::Result<Image> {
        let system = self.initial.of_member(&self.settings, &self.settings.artefacts)?;
        let file = self.settings.artefacts.join("member.img");
        system.write(&file)?;
        self.image("member", |parts| parts.initial = file)
    }

    /// A machine with a blank disk and this metadata, with ports of this host forwarded to some of its own.
    pub(super) fn member(
        &self,
        name: &str,
        image: &Image,
        cloud: &Cloud,
        forwards: &[(u16, u16)],
    ) -> anyhow::Result<Node> {
        let script = self.settings.artefacts.join(format!("{name}.cloud"));
        cloud.write(&script)?;
        let mut node = Node::new(&self.settings, name, image, &script)?;
        node.forward(forwards);
        Ok(node)
    }

    /// A control plane that waits for Init.
    fn plane(&self, name: &str, image: &Image) -> anyhow::Result<Member> {
        self.plane_of(name, image, &Cloud::of_plane())
    }

    fn plane_of(&self, name: &str, image: &Image, cloud: &Cloud) -> anyhow::Result<Member> {
        let [init, recover] = [free_port()?, free_port()?];
        let forwards = [(init, PORTS[0]), (recover, PORTS[1])];
        let node = self.member(name, image, cloud, &forwards)?;
        let at = |port| format!("127.0.0.1:{port}");
        Ok(Member { node, init: at(init), recover: at(recover) })
    }

    pub(super) fn state_disk(&self, node: &Node) -> anyhow::Result<String> {
        let mut dump = volume::command("cryptsetup");
        self.logs.must(dump.arg("luksDump").arg(node.root()?))
    }

    /// systemd's rating of how well each of the deployed units is confined.
    fn exposures(&self) -> anyhow::Result<String> {
        let mut lines = Vec::new();
        for (name, text) in UNITS {
            let unit = self.settings.artefacts.join(name);
            fs::write(&unit, text)?;
            let mut analyze = volume::command("systemd-analyze");
            analyze.args(["security", "--no-pager", "--offline=true"]).arg(unit);
            let said = self.logs.must(&mut analyze)?;
            lines.extend(said.lines().last().map(str::to_owned));
        }
        Ok(lines.join("\n"))
    }

    fn killed(&self, image: &Image) -> anyhow::Result<()> {
        let mut member = self.plane_of("killed", image, &Cloud::of_plane().beside(KILLER))?;
        let (running, console, _) =
            boot_until(&mut member.node, &["cryptsetup was killed", MADE, SERVED])?;
        running.cut();
        ensure!(console.contains("closing a mapping"), "no mapping was left to close: {console}");
        member.node.discard()
    }

    fn foreign(&self, image: &Image) -> anyhow::Result<()> {
        let mut member = self.plane("foreign", image)?;
        let root = self.settings.artefacts.join("foreign.ext4");
        format(&root)?;
        let content = fs::read(&root)?;
        member.node.write_root(&content)?;
        let (running, console, _) = boot_until(&mut member.node, &["holds ext4"])?;
        ensure!(console.contains("TEC-B415"), "the console does not show TEC-B415: {console}");
        running.cut();
        ensure!(fs::read(member.node.root()?)? == content, "the disk was written to");
        Ok(())
    }
}

/// The attestation key's fingerprint, which the machine prints before anything else.
pub(super) fn key_of(console: &str) -> anyhow::Result<String> {
    let is_key = |line: &&str| line.len() == 64 && line.chars().all(|c| c.is_ascii_hexdigit());
    let key = console.lines().map(str::trim).find(is_key);
    Ok(key.context("the console shows no key")?.to_owned())
}

fn format(file: &Path) -> anyhow::Result<()> {
    fs::File::create(file)?.set_len(crate::qemu::disk::ROOT)?;
    must(Command::new("mke2fs").args(["-q", "-t", "ext4", "-F"]).arg(file))
}
