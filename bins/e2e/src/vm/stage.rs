//! The stage: the server, the images, the nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::Value;
use tec_core::id::MachineId;

use super::boot::Boot;
use super::distribution::{Chain, Lan, NAME};
use super::image::{Image, Parts};
use super::initial::InitialSystem;
use super::node::Node;
use super::settings::{Scene, Settings};
use super::{node, times};
use crate::anchor::{Anchor, LOOPBACK};
use crate::process::Transcript;
use crate::qemu::disk::GRUB_DEVICE;
use crate::settings::Settings as Programs;
use crate::story::Story;
use crate::volume;

/// Address of the host in QEMU's user network.
pub(super) const HOST: &str = "10.0.2.2";

/// The server, and the parts of nodes.
#[derive(Debug)]
pub struct Stage {
    pub(super) settings: Settings,
    pub(super) logs: Arc<Transcript>,
    pub(super) anchor: Anchor,
    pub(super) initial: InitialSystem,
    /// The story.
    pub story: Story,
    initial_file: PathBuf,
    pub(super) merge: PathBuf,
    /// Where the scene has a network of its own.
    pub(super) lan: Option<Lan>,
    current: Option<Image>,
    one: Option<Node>,
    times: Vec<(String, Boot)>,
}

impl Stage {
    /// Sets up the stage in the artifacts directory, which is emptied first: a server with an empty store,
    /// and the initial file system of the nodes.
    pub fn new(settings: Settings) -> anyhow::Result<Self> {
        let work = settings.artefacts.clone();
        if work.exists() {
            fs::remove_dir_all(&work)
                .with_context(|| format!("cannot empty {}", work.display()))?;
        }
        fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        let mut story = Story::new();
        story.scene('0', "The stage");
        let initial = story.works("the initial file system: programs, modules, units", || {
            InitialSystem::new(&settings, &work)
        })?;
        let initial_file = work.join("initrd.img");
        initial.write(&initial_file)?;
        let logs = Arc::new(Transcript::new(work.join("logs"))?);
        let in_lan = settings.scenes.iter().any(|scene| scene.has_network());
        let lan = if in_lan { Some(Lan::new(&work)?) } else { None };
        let (host, address) = if in_lan { (NAME, "[::]") } else { (HOST, LOOPBACK) };
        let anchor = story
            .works("tec serve on this host", || start_anchor(&settings, &logs, (host, address)))?;
        let merge = work.join("merge.ign");
        let directive = anchor.tec(&["ignition", "merge"])?;
        fs::write(&merge, directive.to_string()).context("cannot write the merge directive")?;
        Ok(Self {
            settings,
            logs,
            anchor,
            initial,
            story,
            initial_file,
            merge,
            lan,
            current: None,
            one: None,
            times: Vec::new(),
        })
    }

    /// Plays scenes.
    ///
    /// # Errors
    /// The first step with an unexpected outcome.
    pub fn play(&mut self, scenes: &[Scene]) -> anyhow::Result<()> {
        for scene in scenes {
            match scene {
                Scene::Short => self.short()?,
                Scene::Adversary => self.adversary()?,
                Scene::Update => self.update()?,
                Scene::Cuts => self.cuts()?,
                Scene::Rotation => self.rotation()?,
                Scene::Cluster => self.cluster()?,
                Scene::Recovery => self.recovery()?,
                Scene::Bootstrap => self.bootstrap()?,
                Scene::Join => self.join()?,
                Scene::Debian => self.debian("bookworm", Chain::Grub)?,
                Scene::DebianUki => self.debian("bookworm-dracut", Chain::Unified)?,
                Scene::Debian13 => self.debian("trixie", Chain::Grub)?,
                Scene::Debian13Uki => self.debian("trixie-dracut", Chain::Manager)?,
                Scene::DebianSid => self.debian("sid", Chain::Grub)?,
                Scene::Network => self.networks("bookworm", Chain::Grub)?,
                Scene::NetworkDracut => self.networks("trixie-dracut", Chain::Manager)?,
                Scene::DebianSidUki => self.debian("sid-dracut", Chain::Manager)?,
            }
        }
        self.story.scene('z', "Afterwards");
        let reached = times::reached(&self.times);
        self.story.shows("seconds since the kernel started", &reached);
        let shares = times::shares(&self.times);
        self.story.shows("seconds from there to the unlocked root, by share", &shares);
        let anchor = &self.anchor;
        self.story.works("the audit log's chain is intact", || {
            let verified = anchor.tec(&["audit", "verify"])?;
            anyhow::ensure!(verified["intact"] == true, "{verified}");
            Ok(())
        })
    }

    /// An image in its own directory; without changes it is the one that [`current`](Self::current) approves.
    pub(super) fn image(
        &self,
        name: &str,
        change: impl FnOnce(&mut Parts),
    ) -> anyhow::Result<Image> {
        let mut parts = Parts {
            loader: node::SUITE,
            kernel: "current",
            initial: self.initial_file.clone(),
            command_line: "",
            command: "",
        };
        change(&mut parts);
        let directory = self.settings.artefacts.join("images").join(name);
        Image::write(&self.settings, &directory, &parts)
    }

    /// Approves an image under a name, for machines with Microsoft's keys.
    pub(super) fn approve(&self, name: &str, image: &Image) -> anyhow::Result<()> {
        let boot = self.settings.cache.join("boot").join(node::SUITE);
        self.approve_for(name, image, &boot.join("OVMF_VARS.ms.fd"))
    }

    /// Approves an image under a name, for machines with the variables in this store.
    pub(super) fn approve_for(
        &self,
        name: &str,
        image: &Image,
        store: &Path,
    ) -> anyhow::Result<()> {
        let [store, path] = [store, image.directory()].map(Path::to_str);
        let store = store.context("the path of the variables is not UTF-8")?;
        let path = path.context("the path of the artefacts is not UTF-8")?;
        let machine = [path, "--variable-store", store, "--grub-device", GRUB_DEVICE];
        let approve = [&["image", "approve", name], machine.as_slice()].concat();
        self.anchor.tec(&approve)?;
        let compute = [&["pcr", "compute", "--form", "label"], machine.as_slice()].concat();
        let label = self.anchor.tec_text(&compute)?;
        fs::write(self.label(name), label).context("cannot keep what was approved")
    }

    /// File with the values approved under a name, for checks before a boot.
    pub(super) fn label(&self, name: &str) -> PathBuf {
        self.settings.artefacts.join(format!("approved-{name}.json"))
    }

    /// The image that all nodes start with, approved.
    pub(super) fn current(&mut self) -> anyhow::Result<Image> {
        if let Some(image) = &self.current {
            return Ok(image.clone());
        }
        let image = self.image("current", |_| {})?;
        self.approve("current", &image)?;
        self.current = Some(image.clone());
        Ok(image)
    }

    /// A new node.
    pub(super) fn node(&self, name: &str, image: &Image) -> anyhow::Result<Node> {
        Node::new(&self.settings, name, image, &self.merge)
    }

    /// The node of the first scene, which has had its first boot.
    pub(super) fn one(&mut self) -> anyhow::Result<Node> {
        if let Some(node) = self.one.take() {
            return Ok(node);
        }
        let image = self.current()?;
        let mut node = self.node("one", &image)?;
        let boot = node.boot()?;
        boot.opened()?;
        Ok(node)
    }

    /// Records that the initial image is no longer approved; the next scene approves another one.
    pub(super) fn forget_current(&mut self) {
        self.current = None;
        self.one = None;
    }

    /// Keeps the node for the next scene.
    pub(super) fn keep(&mut self, one: Node) {
        self.one = Some(one);
    }

    /// The machine that a node's disk is bound to.
    pub(super) fn machine_of(&self, node: &Node) -> anyhow::Result<MachineId> {
        let header = volume::clevis_header(&self.logs, &node.root()?)?;
        let path = header["path"].as_str().context("the header names no path")?;
        let machine = path.split('/').nth(1).context("the path names no machine")?;
        Ok(machine.parse()?)
    }

    /// The explanation that an admin reads of a machine's last attempt.
    pub(super) fn explained(&self, machine: MachineId) -> anyhow::Result<(Value, String)> {
        let id = machine.to_string();
        Ok((self.anchor.tec(&["explain", &id])?, self.anchor.tec_text(&["explain", &id])?))
    }

    /// The detail in `tec explain` of the check that ended the last attempt, of one machine or of all.
    pub(super) fn reason(&self, machine: Option<MachineId>) -> anyhow::Result<String> {
        let id = machine.map(|id| id.to_string());
        let words: Vec<&str> = ["explain"].into_iter().chain(id.as_deref()).collect();
        let attempt = self.anchor.tec(&words)?;
        let steps = attempt["ladder"]["steps"].as_array();
        let failed = steps.into_iter().flatten().find(|step| step["state"] == "failed");
        let detail = failed.and_then(|step| step["detail"].as_str());
        let detail = detail.with_context(|| format!("no check has failed: {attempt}"))?;
        Ok(detail.to_owned())
    }

    /// Keeps the times of a boot for the summary.
    pub(super) fn timed(&mut self, what: &str, boot: &Boot) {
        self.times.push((what.to_owned(), boot.clone()));
    }
}

fn start_anchor(
    settings: &Settings,
    logs: &Arc<Transcript>,
    place: (&str, &str),
) -> anyhow::Result<Anchor> {
    let programs = Programs {
        cache: settings.cache.clone(),
        bin_dir: settings.bin_dir.clone(),
        report: PathBuf::new(),
        keep: true,
    };
    let state = settings.artefacts.join("state");
    Anchor::start_at(place, &programs, &state, logs, &[])
}
