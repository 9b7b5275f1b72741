//! The machine whose disk key is rotated, and the server, seen from the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::luks::content_key;
use tec_core::port::{DiskKeys as _, SecretStore as _};
use tec_core::rotation::{KeyMark, Keys};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::store::Store;
use tec_core::testing::SeededEntropy;
use tec_guest::node::marks::{Answer, Mark};
use tec_trustee::clevis::SealedPassphrase;
use tokio::runtime::{Builder, Runtime};

use crate::load;
use crate::qemu::{PowerCut, Running};
use crate::vm::boot;
use crate::vm::image::Image;
use crate::vm::node::Node;
use crate::vm::stage::Stage;
use crate::volume;

/// Path of the file that makes a root attended (`tec_guest::node::content`).
const ATTENDED: &str = "/etc/tec-node/attended";
/// The kernel panicked. On an emulated processor, some do before any program runs.
const PANIC: &str = "Kernel panic - not syncing";
const BOOTS: u32 = 3;
/// The power fails by then, however little was written: another rotation may write less.
const LONGEST: Duration = Duration::from_mins(1);

/// The machine and the server.
pub(super) struct World<'s> {
    stage: &'s Stage,
    pub(super) node: Node,
    id: MachineId,
    store: Store,
    runtime: Runtime,
    pub(super) entropy: SeededEntropy,
    /// The keys of the last finished rotation, oldest first.
    pub(super) keys: Vec<SecretArray<32>>,
}

/// A rotation that was begun at the server.
pub(super) struct Begun {
    mark: KeyMark,
    /// What the old key opened.
    passphrase: SecretBytes,
}

/// A rotation that the node completed.
pub(super) struct Finished {
    /// The outcome that the command printed.
    pub(super) outcome: String,
    /// Duration of the command.
    pub(super) took: Duration,
    /// Growth of the log of writes, in bytes.
    pub(super) written: u64,
}

impl<'s> World<'s> {
    /// A machine that had its first boot.
    pub(super) fn new(stage: &'s Stage, image: &Image) -> anyhow::Result<Self> {
        let config = attended(stage)?;
        let mut node = Node::new(&stage.settings, "rotated", image, &config)?;
        let (running, steps) = on(&mut node)?;
        ensure!(steps.contains(&Mark::FirstBoot), "the disk is not new");
        boot::answer(&running, Answer::GoOff)?;
        running.wait_for_power_off(boot::TYPING_LIMIT)?;
        Ok(Self {
            id: stage.machine_of(&node)?,
            node,
            store: stage.anchor.store()?,
            runtime: Builder::new_current_thread().build()?,
            entropy: SeededEntropy::new(stage.settings.seed),
            keys: Vec::new(),
            stage,
        })
    }

    /// Switches the machine on. Returns how long it takes until the root is open.
    pub(super) fn on(&mut self) -> anyhow::Result<(Running, Duration)> {
        let begin = Instant::now();
        let (running, steps) = on(&mut self.node)?;
        ensure!(steps.contains(&Mark::Unlocked), "Clevis did not open the disk: {steps:?}");
        ensure!(!steps.contains(&Mark::FirstBoot), "the disk was created again");
        Ok((running, begin.elapsed()))
    }

    /// Generates a new key on the server.
    pub(super) fn begin(&mut self) -> anyhow::Result<Begun> {
        let (mark, key) = (*self.kept()?.current(), self.released()?);
        let root = self.node.root()?;
        let passphrase =
            opening(&root, &key)?.context("the released key does not open the disk")?;
        self.stage.anchor.tec(&["key", "rotate", &self.id.to_string()])?;
        self.keys = vec![key];
        Ok(Begun { mark, passphrase })
    }

    /// Starts the rotation on the node, and cuts the power when the log of writes has grown by so many bytes.
    /// Returns the state that is left, in which the released key opens the disk.
    pub(super) fn cut(
        &self,
        running: Running,
        begun: &Begun,
        written: u64,
    ) -> anyhow::Result<(PowerCut, &'static str)> {
        let before = self.written()?;
        boot::answer(&running, Answer::Rotate)?;
        boot::steps_until(&running, Mark::Rotating)?;
        let limit = Instant::now() + LONGEST;
        while self.written()? < before + written && Instant::now() < limit {
            load::pause(1);
        }
        let cut = self.node.cut(running, &self.entropy)?;
        let root = self.node.root()?;
        let kept = self.kept()?;
        let state = state(&kept, &root, volume::opens(&root, &begun.passphrase)?)?;
        let opening = opening(&root, &self.released()?)?;
        ensure!(opening.is_some(), "the disk is lost: {state}, {cut:?}");
        Ok((cut, state))
    }

    /// Runs the rotation on the node to its end. The new key alone opens the disk then.
    pub(super) fn finish(&mut self, running: &Running, begun: &Begun) -> anyhow::Result<Finished> {
        let before = self.written()?;
        boot::answer(running, Answer::Rotate)?;
        boot::steps_until(running, Mark::Rotating)?;
        let begin = Instant::now();
        let steps = boot::steps_until(running, Mark::Rotated)?;
        let took = begin.elapsed();
        let written = self.written()?.saturating_sub(before);
        let printed: Value = serde_json::from_str(steps.last().map_or("", |step| &step.text))?;
        let outcome = printed["rotation"].as_str().context("the command printed no outcome")?;
        let kept = self.kept()?;
        ensure!(kept.is_settled() && *kept.current() != begun.mark, "the server keeps {kept:?}");
        let root = self.node.root()?;
        let (slots, tokens) = volume::parts(&root)?;
        ensure!(
            (slots.len(), tokens.len()) == (1, 1),
            "the disk has {} key slots and {} tokens",
            slots.len(),
            tokens.len()
        );
        ensure!(!volume::opens(&root, &begun.passphrase)?, "the old key opens the disk");
        let key = self.released()?;
        ensure!(opening(&root, &key)?.is_some(), "the new key does not open the disk");
        self.keys.push(key);
        Ok(Finished { outcome: outcome.to_owned(), took, written })
    }

    /// Size of the log of writes.
    fn written(&self) -> anyhow::Result<u64> {
        Ok(fs::metadata(self.node.write_log())?.len())
    }

    fn kept(&self) -> anyhow::Result<Keys<KeyMark>> {
        let kept = self.runtime.block_on(self.store.rotation(&self.id))?;
        kept.context("the server has no key of the machine")
    }

    /// The key that the server releases.
    fn released(&self) -> anyhow::Result<SecretArray<32>> {
        let path = ResourcePath::luks_root(&self.id);
        let resource = self.runtime.block_on(self.store.find(&path))?;
        Ok(content_key(&resource.context("the server has no key of the machine")?)?)
    }
}

/// The config of all nodes, and the file.
fn attended(stage: &Stage) -> anyhow::Result<PathBuf> {
    let mut config: Value = serde_json::from_slice(&fs::read(&stage.merge)?)?;
    config["storage"] = json!({"files": [{"path": ATTENDED, "contents": {"source": "data:,"}}]});
    let path = stage.settings.artefacts.join("attended.ign");
    fs::write(&path, config.to_string()).context("cannot write the config")?;
    Ok(path)
}

/// Switches a node on, and waits for its root. Returns the steps.
fn on(node: &mut Node) -> anyhow::Result<(Running, Vec<Mark>)> {
    let mut boots = 0;
    let running = loop {
        boots += 1;
        let (running, console) = node.power_on_logged()?;
        match boot::greet(&running) {
            Ok(()) => break running,
            Err(_) if boots < BOOTS && has_panicked(&console)? => {}
            Err(error) => return Err(running.explain(&error)),
        }
    };
    let steps = boot::steps_until(&running, Mark::Root)?;
    Ok((running, steps.iter().map(|step| step.mark).collect()))
}

fn has_panicked(console: &Path) -> anyhow::Result<bool> {
    let console = fs::read(console).context("cannot read the console")?;
    Ok(String::from_utf8_lossy(&console).contains(PANIC))
}

/// The passphrase that this key opens in a token, and that opens the volume: what a boot does.
pub(super) fn opening(volume: &Path, key: &SecretArray<32>) -> anyhow::Result<Option<SecretBytes>> {
    for token in volume::parts(volume)?.1 {
        let passphrase = sealed(&token).and_then(|sealed| sealed.open(key).ok());
        if let Some(passphrase) = passphrase
            && volume::opens(volume, &passphrase)?
        {
            return Ok(Some(passphrase));
        }
    }
    Ok(None)
}

/// The sealed passphrase of a token of Clevis.
fn sealed(token: &Value) -> Option<SealedPassphrase> {
    let part = |name: &str| token["jwe"][name].as_str();
    let parts = [part("protected")?, "", part("iv")?, part("ciphertext")?, part("tag")?];
    SealedPassphrase::parse(&parts.join(".")).ok()
}

/// How far a rotation is.
fn state(kept: &Keys<KeyMark>, volume: &Path, old_opens: bool) -> anyhow::Result<&'static str> {
    let (slots, tokens) = volume::parts(volume)?;
    let pins = tokens.iter().filter(|token| token["type"] == "clevis").count();
    Ok(match (kept, slots.len(), pins) {
        (Keys::Settled { .. }, 1, 1) => "rotation ended",
        (Keys::Pending { .. }, 1, 1) if tokens.len() > pins => "new slot announced",
        (Keys::Pending { .. }, 1, 1) => "disk unchanged",
        (Keys::Pending { .. }, 2, 1) => "new slot without token",
        (Keys::Pending { .. }, 2, 2) => "new slot with token",
        (Keys::Promoted { .. }, 2, 2) if old_opens => "new key confirmed",
        (Keys::Promoted { .. }, 2, 2) => "old slot wiped",
        (Keys::Promoted { .. }, 1, 2) => "old slot removed",
        (Keys::Promoted { .. }, 1, 1) => "old token removed",
        (kept, slots, pins) => bail!("unexpected state: {kept:?}, {slots} slots, {pins} tokens"),
    })
}
