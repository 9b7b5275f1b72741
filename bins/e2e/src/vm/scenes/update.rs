//! An update in two steps, a rollback, a revocation, each one predicted.

use anyhow::ensure;

use crate::qemu::disk::GRUB_DEVICE;
use crate::vm::boot::Ended;
use crate::vm::image::Image;
use crate::vm::node::Node;
use crate::vm::stage::Stage;

/// Debian suite of the boot loader before the update.
const OLD_LOADER: &str = "bookworm";

struct Images {
    old: Image,
    half: Image,
    new: Image,
}

impl Stage {
    /// The boot loader is updated first, then the kernel, with boots between them; then a rollback, a second
    /// update, and the revocation of the old approval.
    pub(in crate::vm) fn update(&mut self) -> anyhow::Result<()> {
        self.story.scene('c', "An update in two steps");
        let mut story = std::mem::take(&mut self.story);
        let images = Images {
            old: self.image("update-old", |parts| parts.loader = OLD_LOADER)?,
            half: self.image("update-half", |_| {})?,
            new: self.image("update-new", |parts| parts.kernel = "update")?,
        };
        self.approve("before", &images.old)?;
        let mut node = self.node("updated", &images.old)?;
        story.works("first boot with the boot loader and the kernel of before", || {
            node.boot()?.opened().map(drop)
        })?;
        story.works("the new image is approved beside the old one", || {
            // PCRs 8 and 9 depend on GRUB and on the kernel's files together, and two versions of GRUB write
            // them differently: the state between is a separate image.
            self.approve("between", &images.half)?;
            self.approve("after", &images.new)
        })?;
        for (what, image) in [
            ("the boot loader is updated", &images.half),
            ("the kernel is updated", &images.new),
            ("back to the old image", &images.old),
            ("forth again", &images.new),
        ] {
            story.works(&format!("{what}: foretold, and the disk opens"), || {
                self.boot_of(&mut node, image, &Ended::Root(0))
            })?;
        }
        story.works("the old image is revoked, and what lay between", || {
            self.anchor.tec(&["image", "revoke", "before", "--yes"])?;
            self.anchor.tec(&["image", "revoke", "between", "--yes"]).map(drop)
        })?;
        let refused = || Ended::Refused("TEC-A412".to_owned());
        for (what, image) in [
            ("back once more", &images.old),
            ("the new boot loader with the old kernel", &images.half),
        ] {
            story.works(&format!("{what}: foretold, and the disk stays closed"), || {
                self.boot_of(&mut node, image, &refused())
            })?;
        }
        story.works("the new image goes on opening the disk", || {
            self.boot_of(&mut node, &images.new, &Ended::Root(0))
        })?;
        self.updates_of_dbx(&mut story, &mut node, &images.new)?;
        node.discard()?;
        self.story = story;
        Ok(())
    }

    /// Predicts, boots, and compares; the number of boots does not matter.
    pub(super) fn boot_of(
        &self,
        node: &mut Node,
        image: &Image,
        expected: &Ended,
    ) -> anyhow::Result<()> {
        node.install(image)?;
        let foretold = self.foretold(node, image, &[])?;
        let ended = node.boot()?.ended()?;
        let same = match (&ended, expected) {
            (Ended::Root(_), Ended::Root(_)) => true,
            (ended, expected) => ended == expected,
        };
        ensure!(same, "the boot ended with {ended:?}, expected {expected:?}");
        let opens = matches!(ended, Ended::Root(_));
        ensure!(foretold == opens, "tec node nextboot said {foretold}");
        Ok(())
    }

    /// Whether `tec node nextboot` predicts, from the server's store, that the disk of a node will open.
    pub(super) fn foretold(
        &self,
        node: &Node,
        image: &Image,
        more: &[&str],
    ) -> anyhow::Result<bool> {
        let store = node.variables();
        let [store, image] =
            [store.as_path(), image.directory()].map(|path| path.to_string_lossy());
        let words = ["node", "nextboot", &image, "--variable-store", &store];
        let judged = ["--grub-device", GRUB_DEVICE, "--approved"];
        let words = [&words[..], &judged[..], more].concat();
        self.anchor.foretells(&words)
    }
}
