//! Power failures while the key of a disk is rotated.
//!
//! One machine, and one power failure for each rotation, at a moment between the start of `node-agent key
//! rotate` and its end. The next boot must open the disk by attestation, and the repeated command must complete
//! the rotation. It continues with the next rotation in the same boot.

mod replay;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use tec_guest::node::marks::Answer;

use self::world::{Finished, World};
use super::power::moment;
use crate::qemu::PowerCut;
use crate::vm::stage::Stage;
use crate::vm::{boot, table};

const HEADING: [&str; 7] =
    ["cut", "after", "state found", "unflushed writes", "opened in", "finished", "in"];

/// Outcome of a power failure.
struct Row {
    after: Duration,
    state: &'static str,
    cut: PowerCut,
    /// From power-on to the root.
    opened: Duration,
    finished: Finished,
}

impl Stage {
    /// As many power failures as configured, after one rotation whose disk is opened at each of its writes.
    pub(in crate::vm) fn rotation(&mut self) -> anyhow::Result<()> {
        self.story.scene('n', "The power fails while the disk key is rotated");
        let mut story = std::mem::take(&mut self.story);
        let image = self.current()?;
        let mut world = story.works("first boot", || World::new(self, &image))?;
        let (mut running, _) = story.works("reboot: Clevis opens the disk", || world.on())?;
        let mut whole = Duration::ZERO;
        story.works("a rotation without a power failure", || {
            let begun = world.begin()?;
            let finished = world.finish(&running, &begun)?;
            ensure!(finished.outcome == "replaced", "the key was not replaced");
            whole = finished.took;
            Ok(())
        })?;
        let shown = story.works(
            "a power failure at each of its writes: the old key or the new one opens the disk",
            || world.replay(),
        )?;
        story.shows("the disk after each of its writes", &shown);
        let count = self.settings.cuts;
        let mut rows = Vec::new();
        for number in 1..=count {
            let after = moment(self.settings.seed, number, count, whole);
            let begun = world.begin()?;
            let what = format!("power cut {number} of {count}, after {}", seconds(after));
            let (cut, state) = story.works(&what, || world.cut(running, &begun, after))?;
            let what = format!("{state}, {}: the disk opens, the rotation ends", writes(cut));
            let row;
            (running, row) = story.works(&what, || {
                let (running, opened) = world.on()?;
                let finished = world.finish(&running, &begun)?;
                Ok((running, Row { after, state, cut, opened, finished }))
            })?;
            rows.push(row);
        }
        boot::answer(&running, Answer::GoOff)?;
        running.wait_for_power_off(boot::TYPING_LIMIT)?;
        let what = format!(
            "power cuts of a rotation of {}, seed {}: no disk lost",
            seconds(whole),
            self.settings.seed
        );
        story.shows(&what, &render(&rows));
        self.story = story;
        Ok(())
    }
}

fn render(rows: &[Row]) -> String {
    let cells = rows.iter().zip(1_u32..).map(|(row, number)| {
        vec![
            number.to_string(),
            seconds(row.after),
            row.state.to_owned(),
            writes(row.cut),
            seconds(row.opened),
            row.finished.outcome.clone(),
            seconds(row.finished.took),
        ]
    });
    let mut states: BTreeMap<&str, u32> = BTreeMap::new();
    for row in rows {
        *states.entry(row.state).or_default() += 1;
    }
    let counts: Vec<String> =
        states.iter().map(|(state, count)| format!("{state}: {count}")).collect();
    format!(
        "{}\n\nstates: {}",
        table::render(&HEADING, &cells.collect::<Vec<_>>()),
        counts.join("; ")
    )
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// What became of the unflushed writes.
fn writes(PowerCut { kept, torn, lost, .. }: PowerCut) -> String {
    format!("{kept} kept, {torn} torn, {lost} lost")
}
