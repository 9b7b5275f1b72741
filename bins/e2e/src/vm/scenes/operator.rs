//! The life of a node with the operator and its servers.

use std::fs;

use anyhow::{Context as _, bail, ensure};

use crate::vm::boot::Ended;
use crate::vm::cluster::Cluster;
use crate::vm::node::Node;
use crate::vm::stage::Stage;

impl Stage {
    /// First boot, reboot, a different kernel, and the removal of the machine.
    pub(in crate::vm) fn operator(&mut self) -> anyhow::Result<()> {
        self.story.scene('g', "The operator on a Kubernetes API server");
        let mut story = std::mem::take(&mut self.story);
        let image = self.current()?;
        let cluster = story.works(
            "an API server, the operator, the servers of nodes, a key broker",
            Cluster::start,
        )?;
        story.works("the image of the nodes is approved", || {
            cluster.approve("current", &self.label("current"))
        })?;
        let config = self.settings.artefacts.join("cluster.ign");
        fs::write(&config, cluster.merge().to_string()).context("cannot write the config")?;
        let mut node = Node::new(&self.settings, "operated", &image, &config)?;
        for (what, number) in [("first boot: the root runs", 1), ("reboot: so it does", 2)] {
            let boot = story.works(what, || {
                let boot = node.boot()?;
                ensure!(boot.opened()? == number, "the root is a different one");
                Ok(boot)
            })?;
            let short = what.split(':').next().unwrap_or(what);
            self.timed(&format!("operator, {short}"), &boot);
        }
        let swapped = self.image("operator-swapped", |parts| parts.kernel = "update")?;
        node.install(&swapped)?;
        let report = story.works("another kernel: the disk stays closed", || refused(&mut node))?;
        story.shows("what a person sees", &report);
        node.install(&image)?;
        let id = self.machine_of(&node)?;
        story.works("the Machine is deleted", || cluster.delete(&id))?;
        let report = story.works("the disk stays closed", || refused(&mut node))?;
        story.shows("what a person sees", &report);
        node.discard()?;
        self.story = story;
        Ok(())
    }
}

/// The three lines of a boot without a key.
pub(super) fn refused(node: &mut Node) -> anyhow::Result<String> {
    let boot = node.boot()?;
    match boot.ended()? {
        Ended::Refused(code) => {
            ensure!(code.starts_with("TEC-A4"), "refused with {code:?}");
            Ok(boot.report())
        }
        other => bail!("the boot ended with {other:?}"),
    }
}
