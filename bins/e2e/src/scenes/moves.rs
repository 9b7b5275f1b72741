//! Trust moves to another anchor while nodes boot.

use anyhow::Context as _;
use serde_json::Value;
use tec_core::endpoint::Endpoint;

use super::Stage;
use crate::anchor::Anchor;
use crate::fleet::{Fleet, SoftNode};
use crate::load;

/// Nodes with software instead of TPMs.
const NODES: u64 = 6;
/// Names of the anchors in the picture.
const ANCHORS: [&str; 2] = ["the anchor outside", "the anchor inside"];
/// The commands that move the trust into the cluster, in order.
const VERBS: [(&str, &str); 5] = [
    ("plan", "what would come is listed"),
    ("apply", "the anchor inside has a copy, and serves nobody"),
    ("verify", "both hold the same, by keyed digests"),
    ("cutover", "the authority moved"),
    ("retire", "the keys of the anchor outside are shredded"),
];

impl Stage {
    /// Scene l: from an external anchor to an in-cluster one, without a failed boot.
    pub(super) fn moved_trust(&mut self) -> anyhow::Result<()> {
        self.story.scene('l', "Trust moves to another anchor while nodes boot");
        let directory = self.directory.join("move");
        std::fs::create_dir_all(&directory)?;
        let rates = ["--register-rate", "100000", "--kbs-rate", "100000"];
        let (settings, logs) = (&self.settings, &self.logs);
        let inside = Anchor::start(settings, &directory.join("inside"), logs, &rates)?;
        let kbs = inside.kbs()?;
        let ca = directory.join("inside.pem");
        std::fs::write(&ca, &kbs.cert)?;
        let also = format!("{}={}", kbs.url, ca.display());
        let flags = [&rates[..], &["--also-kbs", &also]].concat();
        let mut outside = Anchor::start(settings, &directory.join("outside"), logs, &flags)?;
        let image = settings.image("current");
        let image = image.to_str().context("the cache's path is not UTF-8")?;
        let approved = outside.tec(&["image", "approve", "debian", image, "--accept-unpinned"])?;
        let servers = vec![outside.kbs()?, kbs];
        let nodes = self.soft_nodes(&outside, &approved, &servers)?;
        let fleet = Fleet::start(nodes);
        let mut story = std::mem::take(&mut self.story);
        story.works("all nodes boot again and again", || fleet.go_on("before"))?;
        let to = directory.join("inside");
        let to = to.to_str().context("the directory's path is not UTF-8")?;
        for (verb, what) in VERBS {
            story.works(&format!("migrate {verb}: {what}"), || {
                let mut words = vec!["migrate", verb, "--to", to];
                words.extend((verb == "retire").then_some("--yes"));
                outside.tec(&words)?;
                fleet.go_on(verb)
            })?;
        }
        story.works("the anchor outside is switched off", || {
            outside.kill()?;
            fleet.go_on("switched off")
        })?;
        let ended = fleet.finish(&ANCHORS)?;
        let answered = ended.answered()?;
        let by: Vec<_> =
            ANCHORS.iter().zip(&answered).map(|(who, count)| format!("{count} by {who}")).collect();
        story.shows("no boot failed", &by.join(", "));
        story.pictures(ended.picture);
        self.story = story;
        Ok(())
    }

    fn soft_nodes(
        &self,
        anchor: &Anchor,
        approved: &Value,
        servers: &[Endpoint],
    ) -> anyhow::Result<Vec<SoftNode>> {
        let boot = load::boot_digests(approved)?;
        let register = |seed| {
            let node = self.runtime.block_on(load::register(anchor, seed))?;
            Ok(SoftNode { boot: boot.clone(), servers: servers.to_vec(), ..node })
        };
        (1..=NODES).map(register).collect()
    }
}
