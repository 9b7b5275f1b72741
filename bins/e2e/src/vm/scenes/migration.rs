//! A machine starts with an external anchor, trust moves into the cluster, and the machine boots with the
//! cluster.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::anchor::Anchor;
use crate::story::Story;
use crate::vm::boot::Boot;
use crate::vm::cluster::Cluster;
use crate::vm::node::Node;
use crate::vm::stage::Stage;

impl Stage {
    /// First boot and reboot with a laptop, the move, a boot with each in turn, and one with the laptop
    /// switched off.
    pub(in crate::vm) fn migration(&mut self) -> anyhow::Result<()> {
        let mut story = std::mem::take(&mut self.story);
        story.scene('m', "Trust moves from a laptop into the cluster");
        let cluster = story.works(
            "a cluster that trusts nobody yet, with its operator and its key broker",
            Cluster::start,
        )?;
        let laptop = story.works("tec serve, whose nodes know the cluster, too", || {
            self.start_anchor("laptop", &["--also-kbs", &cluster.kbs()])
        })?;
        let merge = self.settings.artefacts.join("laptop.ign");
        laptop.write_merge(&merge)?;
        let stays = std::mem::replace(&mut self.anchor, laptop);
        self.forget_current();
        self.moved(&mut story, &cluster, &merge)?;
        self.anchor = stays;
        self.forget_current();
        self.story = story;
        Ok(())
    }

    fn moved(&mut self, story: &mut Story, cluster: &Cluster, merge: &Path) -> anyhow::Result<()> {
        let image = story.works("the image is approved at the laptop", || self.current())?;
        let mut node = Node::new(&self.settings, "moved", &image, merge)?;
        story.works("first boot: the root runs", || opens(&mut node, 1))?;
        let id = self.machine_of(&node)?;
        let migrate = |anchor: &Anchor, verb: &str| {
            let mut words = vec!["migrate", verb];
            let way = cluster.as_target()?;
            words.extend(way.iter().map(String::as_str));
            words.extend((verb == "retire").then_some("--yes"));
            anchor.tec(&words)
        };
        story.works("everything is copied, and proven to be there", || {
            migrate(&self.anchor, "apply")?;
            let verified = migrate(&self.anchor, "verify")?;
            ensure!(verified["outcome"] == "reached", "{verified}");
            Ok(())
        })?;
        story.works("reboot in between: the laptop gives the key", || opens(&mut node, 2))?;
        story.works("the cluster takes over, and its broker has the key", || {
            migrate(&self.anchor, "cutover")?;
            cluster.has_key(&id)
        })?;
        story.works("reboot: the laptop still serves", || opens(&mut node, 3))?;
        let boot = story.works("reboot with the laptop switched off", || {
            self.anchor.kill()?;
            opens(&mut node, 4)
        })?;
        self.timed("migrated, the laptop is off", &boot);
        story
            .works("the laptop retires and shreds its keys", || migrate(&self.anchor, "retire"))?;
        let boot = story.works("reboot: the cluster alone", || opens(&mut node, 5))?;
        self.timed("migrated, the laptop is retired", &boot);
        node.discard()
    }
}

/// Boots into the root, which has been booted this many times, including this one.
fn opens(node: &mut Node, times: u32) -> anyhow::Result<Boot> {
    let boot = node.boot()?;
    ensure!(boot.opened()? == times, "the root is a different one");
    Ok(boot)
}

impl Anchor {
    /// Writes the config with which a node requests its own config.
    pub(in crate::vm) fn write_merge(&self, path: &Path) -> anyhow::Result<()> {
        let directive = self.tec(&["ignition", "merge"])?;
        fs::write(path, directive.to_string()).context("cannot write the merge directive")
    }
}
