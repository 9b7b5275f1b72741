//! Approval, first boot, reboot.

use anyhow::{Context as _, ensure};

use super::Stage;

impl Stage {
    /// Scene a: an image directory with Debian's real shim, GRUB and kernel is approved.
    pub(super) fn approve_an_image(&mut self) -> anyhow::Result<()> {
        self.story.scene('a', "An image is approved");
        let mut story = std::mem::take(&mut self.story);
        let approved = story
            .works("tec image approve: the boot files of Debian are measured", || {
                self.approve("debian-current", "current")
            })?;
        story.shows(
            "what booting them leaves in PCR 4",
            &self.anchor.tec_text(&["image", "show", "debian-current"])?,
        );
        self.story = story;
        self.current = Some(approved);
        Ok(())
    }

    /// Scene b: first boot through Ignition, AK, registration, LUKS and Clevis.
    pub(super) fn first_boot(&mut self) -> anyhow::Result<()> {
        self.story.scene('b', "First boot of machine one");
        let chain = self.approved()?;
        let mut story = std::mem::take(&mut self.story);
        let machine = story.works("power on: an empty TPM, the boot files are measured", || {
            self.new_machine("one", &chain)
        })?;
        let ignition = story.works(
            "fetch the Ignition config by the merge URL; ignition-validate accepts it",
            || self.ignition(),
        )?;
        let id = story.works(
            "luksFormat; clevis luks bind: AK created and registered, key released and bound",
            || machine.first_boot(&ignition),
        )?;
        story.works(
            "the volume's token is Clevis' own, its pin is trustee, its path the id",
            || {
                let header = machine.clevis_header()?;
                ensure!(header["pin"] == "trustee", "unexpected header: {header}");
                ensure!(
                    header["path"] == format!("default/{id}/root"),
                    "unexpected header: {header}"
                );
                Ok(())
            },
        )?;
        story.works("the volume opens", || released(machine.unlock()?))?;
        self.story = story;
        self.one = Some(super::Node { machine, id });
        Ok(())
    }

    /// Scene c: a reboot; everything is measured again.
    pub(super) fn reboot(&mut self) -> anyhow::Result<()> {
        self.story.scene('c', "Reboot");
        let mut node = self.one.take().context("machine one has not booted yet")?;
        self.story.works(
            "the TPM starts again with empty registers, the same files are measured",
            || node.machine.reboot(),
        )?;
        self.story.works("the volume opens", || released(node.machine.unlock()?))?;
        self.one = Some(node);
        Ok(())
    }
}

/// An unlock that must work.
pub(super) fn released<T>(result: Result<T, crate::machine::Refusal>) -> anyhow::Result<T> {
    result.map_err(|refusal| anyhow::anyhow!("refused: {}", refusal.console.trim()))
}
