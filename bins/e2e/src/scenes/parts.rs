//! A staged update: the boot loader first, then the kernel, with boots between them.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::boot::released;
use super::{Node, Stage};
use crate::firmware::{BootChain, GRUB, SHIM};
use crate::machine::Refusal;
use crate::story::Story;

/// The chains that machine one boots in this scene.
struct Chains {
    /// The next image's boot loader with the previous kernel.
    half: BootChain,
    /// The next image.
    whole: BootChain,
    /// The next image's shim with the previous GRUB.
    torn: BootChain,
}

impl Stage {
    /// Scene j: a machine is updated one component at a time.
    pub(super) fn update_in_parts(&mut self) -> anyhow::Result<()> {
        self.story.scene('j', "An update in parts: boot loader first, then kernel");
        let mut story = std::mem::take(&mut self.story);
        let mut one = self.one.take().context("machine one has not booted yet")?;
        let old = one.machine.chain.clone();
        let chains = story.works(
            "the next image is approved: another shim, another GRUB, another kernel",
            || self.chains(&old, &self.approve_next(&old)?),
        )?;
        self.loader_then_kernel(&mut story, &mut one, &chains)?;
        self.torn_update(&mut story, &mut one, &chains)?;
        self.window_ends(&mut story, &mut one, &chains)?;
        self.story = story;
        self.one = Some(one);
        Ok(())
    }

    fn chains(&self, old: &BootChain, next: &BootChain) -> anyhow::Result<Chains> {
        let own = |name: &str| next.copied_to(&self.directory.join("one").join(name));
        Ok(Chains {
            half: own("boot-half")?.with_kernel_of(old)?,
            whole: own("boot-next")?,
            torn: own("boot-torn")?.with_file_of(GRUB, old)?,
        })
    }

    fn loader_then_kernel(
        &self,
        story: &mut Story,
        one: &mut Node,
        chains: &Chains,
    ) -> anyhow::Result<()> {
        story.works("shim and GRUB are updated, reboot: the volume opens", || {
            opens(one, &chains.half)
        })?;
        story.shows("what an admin reads", &self.explained(one)?);
        story.works("the old image is still needed: --dry-run says so", || {
            let revocation = ["image", "revoke", "debian-update", "--dry-run"];
            let needed = self.anchor.tec(&revocation)?;
            let machines = needed["last_booted_by"].as_array();
            let id = one.id.to_string();
            let is_named = machines.is_some_and(|all| all.iter().any(|m| *m == *id));
            ensure!(is_named, "{needed}");
            Ok(())
        })?;
        story.works("the kernel is updated, reboot: the volume opens", || opens(one, &chains.whole))
    }

    fn torn_update(
        &self,
        story: &mut Story,
        one: &mut Node,
        chains: &Chains,
    ) -> anyhow::Result<()> {
        story.refused(
            "the new shim with the old GRUB, which no update leaves behind",
            "TEC-A412",
            || refusal(one, &chains.torn),
        )?;
        let why = self.explained(one)?;
        ensure!(why.contains("grubx64"), "GRUB is not named: {why}");
        story.shows("what an admin reads", &why);
        Ok(())
    }

    fn window_ends(
        &self,
        story: &mut Story,
        one: &mut Node,
        chains: &Chains,
    ) -> anyhow::Result<()> {
        story.works("the update is done: the old approval is revoked", || {
            self.anchor.tec(&["image", "revoke", "debian-update", "--yes"])
        })?;
        story.refused("a boot between the two images is refused now", "TEC-A412", || {
            refusal(one, &chains.half)
        })?;
        let why = self.explained(one)?;
        ensure!(
            why.contains("whose approval expired or was revoked"),
            "no expiry is reported: \
                                                                        {why}"
        );
        story.works("the next image goes on opening the volume", || opens(one, &chains.whole))
    }

    /// Approves an image that shares no boot file with `old`. Its values are supplied with it, as for images
    /// that are built elsewhere.
    fn approve_next(&self, old: &BootChain) -> anyhow::Result<BootChain> {
        let kernel = self.approved()?.chain;
        let chain = old.copied_to(&self.directory.join("next"))?;
        let chain = chain.with_kernel_of(&kernel)?;
        // Not a different version, just different bytes.
        let shim = chain.file(SHIM)?;
        let mut bytes = fs::read(&shim)?;
        let middle = bytes.len() / 2;
        *bytes.get_mut(middle).context("shim is empty")? ^= 1;
        fs::write(&shim, bytes)?;
        let grub = chain.file(GRUB)?;
        let other =
            self.settings.image("update").join("usr/lib/grub/x86_64-efi-signed/gcdx64.efi.signed");
        fs::copy(&other, &grub).with_context(|| format!("cannot copy {}", other.display()))?;

        let pcrs = self.directory.join("next.json");
        fs::write(&pcrs, serde_json::to_vec(&chain.expected()?)?)?;
        let pcrs = pcrs.to_str().context("the directory's path is not UTF-8")?;
        let approval = ["image", "approve", "debian-next", "--pcrs", pcrs, "--accept-unpinned"];
        self.anchor.tec(&approval)?;
        Ok(chain)
    }

    fn explained(&self, node: &Node) -> anyhow::Result<String> {
        self.anchor.tec_text(&["explain", &node.id.to_string()])
    }
}

/// Boots a chain and requests the key.
fn boot(node: &mut Node, chain: &BootChain) -> anyhow::Result<Result<Duration, Refusal>> {
    node.machine.chain = chain.clone();
    node.machine.reboot()?;
    node.machine.unlock()
}

/// A boot that must get its key.
fn opens(node: &mut Node, chain: &BootChain) -> anyhow::Result<()> {
    released(boot(node, chain)?).map(drop)
}

/// A boot that must be refused; returns the code, and the content of the node's console.
fn refusal(node: &mut Node, chain: &BootChain) -> anyhow::Result<Result<(), (String, String)>> {
    let unlocked = boot(node, chain)?;
    Ok(unlocked.map(drop).map_err(|r| (r.code, r.console)))
}
