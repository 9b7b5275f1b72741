//! An update: old and new image boot side by side, until the old approval is revoked.

use anyhow::Context as _;

use super::Stage;
use super::boot::released;

impl Stage {
    /// Scene i: the image is approved again after an update.
    pub(super) fn update(&mut self) -> anyhow::Result<()> {
        self.story.scene('i', "An update: old and new during the window");
        let mut story = std::mem::take(&mut self.story);
        let update = story.works("the updated image is approved beside the old one", || {
            self.approve("debian-update", "update")
        })?;
        let mut one = self.one.take().context("machine one has not booted yet")?;
        let mut two = self.two.take().context("machine two has not booted yet")?;
        story.works("machine one boots the new kernel: the volume opens", || {
            one.machine.chain = update.copied_to(&self.directory.join("one/boot-new"))?;
            one.machine.reboot()?;
            released(one.machine.unlock()?)
        })?;
        story.works("machine two boots the old kernel: the volume opens", || {
            two.machine.reboot()?;
            released(two.machine.unlock()?)
        })?;
        story.works("the window ends: the old approval is revoked", || {
            self.anchor.tec(&["image", "revoke", "debian-current", "--yes"])
        })?;
        story.refused("machine two boots the old kernel once more", "TEC-A412", || {
            two.machine.reboot()?;
            Ok(two.machine.unlock()?.map(drop).map_err(|r| (r.code, r.console)))
        })?;
        story.works("machine one goes on with the new one", || {
            one.machine.reboot()?;
            released(one.machine.unlock()?)
        })?;
        self.story = story;
        (self.one, self.two) = (Some(one), Some(two));
        Ok(())
    }
}
