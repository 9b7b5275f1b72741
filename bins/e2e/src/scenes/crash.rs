//! The server dies in the middle of its work.

use anyhow::ensure;

use super::Stage;
use crate::load;

impl Stage {
    /// Scene h: SIGKILL in the middle of registrations.
    pub(super) fn killed_server(&mut self) -> anyhow::Result<()> {
        self.story.scene('h', "The server is killed in the middle of registrations");
        let before = load::key_digests(&self.runtime, &self.anchor.store()?)?;
        let boot = load::boot_digests(&self.approved()?.printed)?;
        let mut story = std::mem::take(&mut self.story);
        let acknowledged = story.works(
            "eight nodes at once register, attest and fetch keys; SIGKILL after 300 ms",
            || {
                let load = load::Nodes::start(&self.anchor, 8, &boot)?;
                load::pause(300);
                self.anchor.kill()?;
                load.finish()
            },
        )?;
        story.works("the server starts again on the same store", || self.anchor.restart())?;
        let count = acknowledged.len();
        story.works(&format!("all {count} acknowledged machines have their one key"), || {
            let after = load::key_digests(&self.runtime, &self.anchor.store()?)?;
            for (machine, key) in &before {
                ensure!(after.get(machine) == Some(key), "the key of {machine} changed");
            }
            for machine in &acknowledged {
                ensure!(after.contains_key(machine), "machine {machine} lost its key");
            }
            Ok(())
        })?;
        story.works("the audit log's chain is intact", || {
            self.anchor.tec(&["audit", "verify"]).map(drop)
        })?;
        self.story = story;
        Ok(())
    }
}
