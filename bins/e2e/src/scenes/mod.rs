//! The scenes of the main use case.

mod attack;
mod boot;
mod update;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tec_core::id::{MachineId, ResourcePath};

use crate::anchor::Anchor;
use crate::firmware::BootChain;
use crate::machine::Machine;
use crate::process::Transcript;
use crate::report;
use crate::settings::Settings;
use crate::story::Story;

/// The stage.
#[derive(Debug)]
pub struct Stage {
    settings: Settings,
    directory: PathBuf,
    logs: Arc<Transcript>,
    anchor: Anchor,
    runtime: tokio::runtime::Runtime,
    /// The story.
    pub story: Story,
    /// The boot chain of the image that was approved first.
    current: Option<BootChain>,
    one: Option<Node>,
    two: Option<Node>,
}

/// A machine that has a key.
#[derive(Debug)]
struct Node {
    machine: Machine,
    id: MachineId,
}

impl Stage {
    /// Sets up the stage below `directory`: a server with an empty store.
    pub fn new(settings: Settings, directory: &Path) -> anyhow::Result<Self> {
        settings.check()?;
        let logs = Arc::new(Transcript::new(directory.join("logs"))?);
        let anchor = Anchor::start(&settings, &directory.join("state"), &logs, &[])?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self {
            settings,
            directory: directory.to_owned(),
            logs,
            anchor,
            runtime,
            story: Story::new(),
            current: None,
            one: None,
            two: None,
        })
    }

    /// Plays all scenes and writes the report.
    ///
    /// # Errors
    /// The first step with an unexpected outcome.
    pub fn play(&mut self) -> anyhow::Result<()> {
        self.approve_an_image()?;
        self.first_boot()?;
        self.reboot()?;
        self.changed_kernel()?;
        self.replayed_evidence()?;
        self.second_key()?;
        self.foreign_path()?;
        self.update()?;
        self.epilogue()?;
        report::write(&self.settings.report, &self.story, &self.anchor)?;
        self.is_reported()
    }

    fn is_reported(&self) -> anyhow::Result<()> {
        let letters: String = self.story.scenes.iter().map(|scene| scene.letter).collect();
        ensure!(letters == "abcdefgiz", "these scenes were played: {letters}");
        let html = std::fs::read_to_string(&self.settings.report)?;
        for code in ["TEC-A412", "TEC-A405", "TEC-R410", "TEC-A413"] {
            ensure!(html.contains(code), "the report does not contain {code}");
        }
        Ok(())
    }

    fn approved(&self) -> anyhow::Result<BootChain> {
        self.current.clone().context("no image was approved yet")
    }

    fn one(&self) -> anyhow::Result<&Node> {
        self.one.as_ref().context("machine one has not booted yet")
    }

    fn approve(&self, name: &str, tree: &str) -> anyhow::Result<BootChain> {
        let root = self.settings.image(tree);
        let path = root.to_str().context("the cache's path is not UTF-8")?;
        // The boot files have no configuration of GRUB, so only PCR 4 is predicted.
        let printed = self.anchor.tec(&["image", "approve", name, path, "--accept-unpinned"])?;
        BootChain::of_approval(&root, &printed)
    }

    /// A new machine with its own copy of the boot files.
    fn new_machine(&self, name: &str, chain: &BootChain) -> anyhow::Result<Machine> {
        let own = chain.copied_to(&self.directory.join(name).join("boot"))?;
        Machine::new(&self.settings, &self.logs, &self.directory, name, own)
    }

    /// Fetches an Ignition config with the merge directive that the installer would contain.
    fn ignition(&self) -> anyhow::Result<Value> {
        let merge = self.anchor.tec(&["ignition", "merge"])?;
        self.validate("merge.ign", &merge)?;
        let url = merge["ignition"]["config"]["merge"][0]["source"]
            .as_str()
            .context("no merge directive")?;
        let reply = self.runtime.block_on(crate::wire::get(&self.anchor.ca()?, url))?;
        if reply.status != 200 {
            bail!("registration answered {}: {}", reply.status, reply.body);
        }
        self.validate("machine.ign", &reply.body)?;
        Ok(reply.body)
    }

    /// Runs the real validator on a config.
    fn validate(&self, name: &str, config: &Value) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        tec_support::files::write_private(&path, config.to_string().as_bytes())?;
        let mut validator = std::process::Command::new(self.settings.ignition_validate());
        self.logs.must(validator.arg(&path)).map(drop)
    }

    /// Takes a machine through its first boot.
    fn install(&self, name: &str, chain: &BootChain) -> anyhow::Result<Node> {
        let machine = self.new_machine(name, chain)?;
        let id = machine.first_boot(&self.ignition()?)?;
        Ok(Node { machine, id })
    }

    /// Key material by name, to search for in all output.
    fn needles(&self) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        use base64::Engine as _;
        let store = self.anchor.store()?;
        let mut needles = Vec::new();
        for node in [&self.one, &self.two].into_iter().flatten() {
            let path = ResourcePath::luks_root(&node.id);
            let found = self.runtime.block_on(tec_core::port::SecretStore::find(&store, &path))?;
            let key = found.with_context(|| format!("no key at {path}"))?;
            let json: Value = serde_json::from_slice(key.expose("search the logs for it"))?;
            let text = json["key"].as_str().context("the key is not as documented")?;
            let name = &node.machine.name;
            let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
            needles.push((format!("key of {name}"), text.as_bytes().to_vec()));
            needles.push((format!("key of {name} in hex"), hex::encode(text).into_bytes()));
            needles.push((format!("key of {name} in base64"), engine.encode(text).into_bytes()));
        }
        Ok(needles)
    }

    fn epilogue(&mut self) -> anyhow::Result<()> {
        self.story.scene('z', "Nothing was said that must not be said");
        let needles = self.needles()?;
        let found = self.logs.search(&needles)?;
        let logs = self.logs.count();
        self.story.works(&format!("no key material in {logs} logs"), || {
            if found.is_empty() { Ok(()) } else { bail!("key material found: {found:?}") }
        })?;
        let anchor = &self.anchor;
        let verified = self
            .story
            .works("the audit log's chain is intact", || anchor.tec(&["audit", "verify"]))?;
        ensure!(verified["intact"] == true, "the audit log is not intact");
        Ok(())
    }
}
