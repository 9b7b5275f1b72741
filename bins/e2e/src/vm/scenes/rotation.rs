//! Power failures while the key of a disk is rotated.
//!
//! One machine, and one power failure for each rotation: when `node-agent key rotate` has written a random share
//! of what a whole rotation writes. The next boot must open the disk by attestation, and the repeated command
//! must complete the rotation. It continues with the next rotation in the same boot.

mod replay;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tec_guest::node::marks::Answer;

use self::world::{Finished, World};
use super::power::share;
use crate::qemu::PowerCut;
use crate::vm::stage::Stage;
use crate::vm::{boot, table};

const HEADING: [&str; 7] =
    ["cut", "written", "state found", "unflushed writes", "opened in", "finished", "in"];

/// Outcome of a power failure.
struct Row {
    written: u64,
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
        let mut whole = None;
        story.works("a rotation without a power failure", || {
            let begun = world.begin()?;
            let finished = world.finish(&running, &begun)?;
            ensure!(finished.outcome == "replaced", "the key was not replaced");
            whole = Some(finished);
            Ok(())
        })?;
        let whole = whole.context("no rotation was finished")?;
        let shown = story.works(
            "a power failure at each of its writes: the old key or the new one opens the disk",
            || world.replay(),
        )?;
        story.shows("the disk after each of its writes", &shown);
        let count = self.settings.cuts;
        let mut rows = Vec::new();
        for number in 1..=count {
            // Nearly all bytes are those that wipe the old slot, at the end: closer together at the beginning.
            let share = share(self.settings.seed, number, count).powi(3);
            let written = part(whole.written, share);
            let begun = world.begin()?;
            let what = format!("power cut {number} of {count}, after {}", kibibytes(written));
            let (cut, state) = story.works(&what, || world.cut(running, &begun, written))?;
            let what = format!("{state}, {}: the disk opens, the rotation ends", writes(cut));
            let row;
            (running, row) = story.works(&what, || {
                let (running, opened) = world.on()?;
                let finished = world.finish(&running, &begun)?;
                Ok((running, Row { written, state, cut, opened, finished }))
            })?;
            rows.push(row);
        }
        boot::answer(&running, Answer::GoOff)?;
        running.wait_for_power_off(boot::TYPING_LIMIT)?;
        let what = format!(
            "power cuts of a rotation of {} that writes {}, seed {}: no disk lost",
            seconds(whole.took),
            kibibytes(whole.written),
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
            kibibytes(row.written),
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

fn kibibytes(bytes: u64) -> String {
    format!("{} KiB", bytes / 1024)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a random moment needs no precision"
)]
fn part(of: u64, share: f64) -> u64 {
    (of as f64 * share) as u64
}

/// What became of the unflushed writes.
fn writes(PowerCut { kept, torn, lost, .. }: PowerCut) -> String {
    format!("{kept} kept, {torn} torn, {lost} lost")
}
