//! No server is left, and a disk is opened with a key that an admin types.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tec_core::id::MachineId;
use tec_core::secret::SecretBytes;
use tec_guest::node::marks::{Answer, Mark};

use crate::anchor::Anchor;
use crate::process::Transcript;
use crate::qemu::Running;
use crate::vm::boot;
use crate::vm::boot::{Boot, TYPING_LIMIT};
use crate::vm::node::Node;
use crate::vm::stage::Stage;
use crate::volume;

/// cryptsetup's prompt (cryptsetup(8), "open").
const PROMPT: &str = "Enter passphrase for";
/// Shorter than the unit's five minutes, which no boot of a scene waits for.
const SOON: &str =
    "[Service]\nRestartSec=5s\nStandardOutput=file:/dev/console\nStandardError=file:/dev/console\n";

impl Stage {
    /// First boot with a recovery key; the server stops; the key is typed; the server returns.
    pub(in crate::vm) fn recovery(&mut self) -> anyhow::Result<()> {
        self.story.scene('f', "No server is left");
        let mut story = std::mem::take(&mut self.story);
        let image = self.current()?;
        let admin = Admin::generate(&self.settings.artefacts)?;
        let config = self.config_with(&admin)?;
        let mut node = Node::new(&self.settings, "recovered", &image, &config)?;
        let boot = story.works("first boot: the root's unit leaves a recovery key", || {
            let boot = node.boot()?;
            ensure!(boot.opened()? == 1, "the root is not new");
            ensure!(boot.at(Mark::Recovery).is_some(), "the unit did not finish");
            Ok(boot)
        })?;
        self.timed("first boot with recovery", &boot);
        let id = self.machine_of(&node)?;
        let before = Slots::of(&self.logs, &node)?;
        let first = story.works("the admin saves what the node left, sealed", || {
            let left = latest(&self.anchor, id)?;
            ensure!(left.number == 1, "expected recovery key 1, found key {}", left.number);
            admin.open(&left.sealed)
        })?;
        story.shows("the volume", &before.dump);
        let boot = story.works(
            "the server is gone; the key is typed, the disk opens, the server comes back, and releases no disk key \
             to a system that runs",
            || recovered(&mut node, &mut self.anchor, &first),
        )?;
        self.timed("recovery", &boot);
        ensure!(Slots::of(&self.logs, &node)? == before, "the slots changed");
        story.works("reboot: the disk opens by itself, and the node leaves another key", || {
            let boot = node.boot()?;
            ensure!(boot.opened()? == 3, "the root is a different one");
            ensure!(boot.at(Mark::Recovery).is_some(), "the unit did not finish");
            Ok(())
        })?;
        let after = Slots::of(&self.logs, &node)?;
        story.works("the slot of the typed key is gone, and the new key opens the disk", || {
            ensure!(before.recovery != after.recovery, "the recovery key slot did not change");
            ensure!(before.all.len() == 2 && after.all.len() == 2, "{after:?}");
            let left = latest(&self.anchor, id)?;
            ensure!(left.number == 2, "expected recovery key 2, found key {}", left.number);
            let root = node.root()?;
            let opens = |key: &str| volume::opens(&root, &SecretBytes::new(key.into()));
            ensure!(!opens(&first)?, "the typed key still opens the disk");
            ensure!(opens(&admin.open(&left.sealed)?)?, "the new key does not open the disk");
            Ok(())
        })?;
        story.shows("the volume", &after.dump);
        story.works("reboot: the disk opens by itself, and nothing changes", || {
            ensure!(node.boot()?.opened()? == 4, "the root is a different one");
            ensure!(Slots::of(&self.logs, &node)? == after, "the slots changed");
            Ok(())
        })?;
        node.discard()?;
        self.story = story;
        Ok(())
    }

    /// The config of all nodes, with the admin's key and the unit enabled.
    fn config_with(&self, admin: &Admin) -> anyhow::Result<PathBuf> {
        let mut config: Value = serde_json::from_slice(&fs::read(&self.merge)?)?;
        let key = base64::Engine::encode(
            &base64::engine::general_purpose::STANDARD,
            fs::read(&admin.public).context("cannot read the admin's key")?,
        );
        config["storage"] = json!({"files": [{
            "path": "/etc/node-agent/admin.jwk",
            "mode": 0o644,
            "contents": {"source": format!("data:;base64,{key}")},
        }]});
        config["systemd"] = json!({"units": [{
            "name": "tec-recovery.service",
            "enabled": true,
            "dropins": [{"name": "soon.conf", "contents": SOON}],
        }]});
        let path = self.settings.artefacts.join("recovery.ign");
        fs::write(&path, config.to_string()).context("cannot write the config")?;
        Ok(path)
    }
}

/// The boot without a server, which returns once the root runs.
fn recovered(node: &mut Node, anchor: &mut Anchor, key: &str) -> anyhow::Result<Boot> {
    anchor.kill()?;
    let mut hands = |mark: Mark, running: &mut Running| match mark {
        Mark::Refused => {
            boot::answer(running, Answer::Ask)?;
            running.wait_for_console(PROMPT, TYPING_LIMIT)?;
            running.type_line(key, TYPING_LIMIT)
        }
        Mark::Root => anchor.restart(),
        _ => Ok(()),
    };
    let boot = node.boot_attended(&mut hands)?;
    ensure!(boot.opened()? == 2, "the root is a different one");
    for mark in [Mark::Refused, Mark::Typed, Mark::Recovery] {
        ensure!(boot.at(mark).is_some(), "there was no step {mark}");
    }
    ensure!(boot.console.contains("TEC-A401"), "the console does not say that no server answered");
    ensure!(boot.console.contains("TEC-A424"), "the console does not say why there is no key");
    ensure!(!boot.console.contains(key), "the console shows what was typed");
    Ok(boot)
}

/// A recovery key at the server.
struct Left {
    number: u64,
    sealed: Value,
}

/// The last recovery key that a machine escrowed.
fn latest(anchor: &Anchor, id: MachineId) -> anyhow::Result<Left> {
    let keys = anchor.tec(&["machine", "recovery-key", &id.to_string()])?;
    let last = keys.get(0).context("the machine left no key")?;
    Ok(Left {
        number: last["number"].as_u64().context("the key has no number")?,
        sealed: last["sealed"].clone(),
    })
}

/// An admin with a key pair of their own.
struct Admin {
    private: PathBuf,
    public: PathBuf,
}

impl Admin {
    /// Generates the key pair as documented.
    fn generate(directory: &Path) -> anyhow::Result<Self> {
        let [private, public] = ["admin-private.jwk", "admin.jwk"].map(|name| directory.join(name));
        let kind = r#"{"alg":"ECDH-ES+A256KW"}"#;
        let mut generate = Command::new("jose");
        crate::qemu::must(generate.args(["jwk", "gen", "-i", kind, "-o"]).arg(&private))?;
        let mut publish = Command::new("jose");
        let publish = publish.args(["jwk", "pub", "-i"]).arg(&private);
        crate::qemu::must(publish.arg("-o").arg(&public))?;
        Ok(Self { private, public })
    }

    /// Opens a sealed key without any of our own programs.
    fn open(&self, sealed: &Value) -> anyhow::Result<String> {
        let file = self.private.with_extension("jwe");
        fs::write(&file, sealed.to_string()).context("cannot write the sealed key")?;
        let mut open = Command::new("jose");
        open.args(["jwe", "dec", "-i"]).arg(&file).arg("-k");
        let output = open.arg(&self.private).output().context("cannot run jose")?;
        ensure!(output.status.success(), "jose cannot open a recovery key");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// The key slots of a volume.
#[derive(Debug, PartialEq, Eq)]
struct Slots {
    all: Vec<String>,
    recovery: String,
    dump: String,
}

impl Slots {
    fn of(logs: &Transcript, node: &Node) -> anyhow::Result<Self> {
        let root = node.root()?;
        let dump = |words: &[&str]| {
            let mut cryptsetup = volume::command("cryptsetup");
            logs.must(cryptsetup.arg("luksDump").args(words).arg(&root))
        };
        let metadata: Value = serde_json::from_str(&dump(&["--dump-json-metadata"])?)?;
        let slots = metadata["keyslots"].as_object();
        let tokens = metadata["tokens"].as_object();
        let of_recovery: Vec<_> = tokens
            .into_iter()
            .flat_map(|tokens| tokens.values())
            .filter(|token| token["type"] == "tec-recovery")
            .collect();
        let [token] = of_recovery.as_slice() else {
            anyhow::bail!("expected one recovery key token in the header: {metadata}");
        };
        let slot = token["keyslots"][0].as_str();
        Ok(Self {
            all: slots.into_iter().flat_map(|all| all.keys().cloned()).collect(),
            recovery: slot.context("the token names no slot")?.to_owned(),
            dump: dump(&[])?,
        })
    }
}
