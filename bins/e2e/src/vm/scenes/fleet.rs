//! Several machines in parallel.

use anyhow::{Context as _, ensure};

use crate::vm::boot::Boot;
use crate::vm::node::Node;
use crate::vm::stage::Stage;

const NAMES: [&str; 3] = ["fleet-a", "fleet-b", "fleet-c"];

impl Stage {
    /// Three concurrent first boots, then three reboots.
    pub(in crate::vm) fn fleet(&mut self) -> anyhow::Result<()> {
        self.story.scene('d', "Three machines at once");
        let mut story = std::mem::take(&mut self.story);
        let image = self.current()?;
        let mut nodes =
            NAMES.iter().map(|name| self.node(name, &image)).collect::<anyhow::Result<Vec<_>>>()?;
        for (what, number) in [("first boots", 1), ("reboots", 2)] {
            let boots = story.works(&format!("three {what}: three roots run"), || {
                let boots = at_once(&mut nodes)?;
                for boot in &boots {
                    ensure!(boot.opened()? == number, "the root of a machine is a different one");
                }
                Ok(boots)
            })?;
            for (node, boot) in nodes.iter().zip(&boots) {
                self.timed(&node.name, boot);
            }
        }
        story.works("each has an id and a key of its own", || {
            let mut ids = Vec::new();
            for node in &nodes {
                ids.push(self.machine_of(node)?);
            }
            ids.sort();
            ids.dedup();
            ensure!(ids.len() == NAMES.len(), "several machines have the same ID");
            Ok(())
        })?;
        for node in nodes {
            node.discard()?;
        }
        self.story = story;
        Ok(())
    }
}

fn at_once(nodes: &mut [Node]) -> anyhow::Result<Vec<Boot>> {
    std::thread::scope(|scope| {
        let running: Vec<_> = nodes.iter_mut().map(|node| scope.spawn(|| node.boot())).collect();
        let ended = running.into_iter().map(|one| one.join().ok().context("a boot panicked")?);
        ended.collect()
    })
}
