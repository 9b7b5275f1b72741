//! The firmware of one machine changes.

use anyhow::{Context as _, ensure};

use super::Stage;
use super::boot::released;

impl Stage {
    /// Scene k: other firmware is refused until an admin approves it; the old one is refused from then on.
    pub(super) fn other_firmware(&mut self) -> anyhow::Result<()> {
        self.story.scene('k', "A firmware update that nobody approved");
        let mut node = self.one.take().context("machine one has not booted yet")?;
        let (mut story, anchor) = (std::mem::take(&mut self.story), &self.anchor);
        let id = node.id.to_string();
        "2.0".clone_into(&mut node.machine.firmware);
        story.refused("machine one boots other firmware", "TEC-A409", || {
            node.machine.reboot()?;
            Ok(node.machine.unlock()?.map(drop).map_err(|r| (r.code, r.console)))
        })?;
        let changes = anchor.tec_text(&["platform", "diff", &id])?;
        ensure!(changes.contains("PCR 0"), "the diff does not name PCR 0: {changes}");
        story.shows("what an admin reads", &changes);
        story.works("tec platform approve: the volume opens", || {
            anchor.tec_text(&["platform", "approve", &id, "--yes"])?;
            node.machine.reboot()?;
            released(node.machine.unlock()?)
        })?;
        let old = std::mem::replace(&mut node.machine.firmware, "1.0".to_owned());
        story.refused("the firmware from before", "TEC-A409", || {
            node.machine.reboot()?;
            Ok(node.machine.unlock()?.map(drop).map_err(|r| (r.code, r.console)))
        })?;
        story.works("back to the approved firmware: the volume opens", || {
            node.machine.firmware = old;
            node.machine.reboot()?;
            released(node.machine.unlock()?)
        })?;
        (self.story, self.one) = (story, Some(node));
        Ok(())
    }
}
