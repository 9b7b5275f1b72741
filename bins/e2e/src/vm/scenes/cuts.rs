//! Power failures during the first boot.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tec_core::port::Entropy as _;
use tec_core::testing::SeededEntropy;
use tec_guest::node::marks::Mark;

use crate::vm::image::Image;
use crate::vm::stage::Stage;
use crate::vm::{boot, table};

/// Maximum number of boots that a machine may take until its root runs. One should suffice; further
/// ones need no manual action.
const BOOTS: usize = 3;

impl Stage {
    /// Each machine loses power once, at a random time between the first program of the first boot and the
    /// opened root, and is switched on again until its root runs.
    pub(in crate::vm) fn cuts(&mut self) -> anyhow::Result<()> {
        let count = self.settings.cuts;
        self.story.scene('e', "The power fails during the first boot");
        let mut story = std::mem::take(&mut self.story);
        let image = self.current()?;
        let whole = story
            .works("how long a first boot takes that is left alone", || self.length(&image))?;
        let entropy = SeededEntropy::new(self.settings.seed);
        let mut rows = Vec::new();
        for number in 1..=count {
            let mut random = [0; 2];
            entropy.fill(&mut random);
            let moment = whole * u32::from(u16::from_le_bytes(random)) / u32::from(u16::MAX);
            let what = format!("cut after {:.1} s, and it recovers", moment.as_secs_f64());
            let row = story.works(&what, || self.cut(&image, number, moment))?;
            rows.push(row);
        }
        let heading = ["machine", "cut after", "boots until its root ran", "made anew"];
        story.shows("without hands", &table::render(&heading, &rows));
        self.story = story;
        Ok(())
    }

    fn length(&self, image: &Image) -> anyhow::Result<Duration> {
        let mut node = self.node("uncut", image)?;
        let (running, console) = node.power_on()?;
        boot::greet(&running)?;
        let begin = Instant::now();
        boot::Boot::watch(running, &console, &mut boot::nobody)?.opened()?;
        let whole = begin.elapsed();
        node.discard()?;
        Ok(whole)
    }

    fn cut(&self, image: &Image, number: u32, moment: Duration) -> anyhow::Result<Vec<String>> {
        let name = format!("cut-{number}");
        let mut node = self.node(&name, image)?;
        let (running, _) = node.power_on()?;
        boot::greet(&running)?;
        #[expect(clippy::disallowed_methods, reason = "the moment is what is tested")]
        std::thread::sleep(moment);
        running.cut();
        let mut anew = false;
        for boots in 1..=BOOTS {
            let boot = node.boot()?;
            anew |= boot.at(Mark::FirstBoot).is_some();
            if boot.at(Mark::Root).is_some() {
                self.recovered(&node)?;
                node.discard()?;
                let after = format!("{:.1} s", moment.as_secs_f64());
                let anew = if anew { "yes" } else { "no" };
                return Ok(vec![name, after, boots.to_string(), anew.to_owned()]);
            }
        }
        anyhow::bail!("{name} did not recover in {BOOTS} boots")
    }

    /// The disk is bound once, to a machine that the server knows.
    fn recovered(&self, node: &crate::vm::node::Node) -> anyhow::Result<()> {
        let id = self.machine_of(node)?.to_string();
        let shown = self.anchor.tec(&["machine", "show", &id])?;
        ensure!(shown.to_string().contains(&id), "the server does not know {id}: {shown}");
        Ok(())
    }
}
