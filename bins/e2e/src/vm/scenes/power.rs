//! One power failure at a random time; the machine must reach the same end without manual action.

use std::time::{Duration, Instant};

use anyhow::ensure;
use tec_core::port::Entropy as _;
use tec_core::testing::SeededEntropy;

use super::console::{MADE, boot_until, switch_on};
use crate::story::Story;
use crate::vm::node::Node;
use crate::vm::stage::Stage;
use crate::vm::table;

const HEADING: [&str; 7] =
    ["cut", "phase", "after", "last on the console", "disk", "next boot", "recovered in"];
/// Characters of a console line shown in the table.
const SHOWN: usize = 48;

/// The phase to interrupt.
pub(super) struct Phase<'p> {
    pub(super) name: &'p str,
    /// String on the console at the end of the phase.
    pub(super) end: &'p str,
    /// Duration from the first program of the node to that end.
    pub(super) whole: Duration,
    /// Creates a machine that was never switched on.
    pub(super) machine: &'p dyn Fn(u32) -> anyhow::Result<Node>,
}

impl Stage {
    /// As many machines as configured lose power once, and are switched on again. Shows the outcome of each.
    pub(super) fn cut_power(&self, story: &mut Story, phase: &Phase<'_>) -> anyhow::Result<()> {
        let count = self.settings.cuts;
        let rows = (1..=count)
            .map(|number| {
                let moment = moment(self.settings.seed, number, count, phase.whole);
                let what = format!("power cut {number} of the {}: recovered", phase.name);
                story.works(&what, || self.cut_once(phase, number, moment))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        if !rows.is_empty() {
            let what = format!("power cuts of the {}, seed {}", phase.name, self.settings.seed);
            story.shows(&what, &table::render(&HEADING, &rows));
        }
        Ok(())
    }

    fn cut_once(
        &self,
        phase: &Phase<'_>,
        number: u32,
        moment: Duration,
    ) -> anyhow::Result<Vec<String>> {
        let mut machine = (phase.machine)(number)?;
        let (running, console) = switch_on(&mut machine)?;
        #[expect(clippy::disallowed_methods, reason = "the moment is what is tested")]
        std::thread::sleep(moment);
        running.cut();
        let last = last_line(&String::from_utf8_lossy(&std::fs::read(console)?));
        let disk = self.owner(&machine)?;
        let begin = Instant::now();
        let (running, console, _) = boot_until(&mut machine, &[phase.end])?;
        let took = begin.elapsed();
        running.cut();
        machine.discard()?;
        // What a cluster has a key for must be kept, and everything else created.
        let is_made = console.contains(MADE);
        ensure!(is_made == (disk != CLAIMED), "the disk was {disk}: {console}");
        let next = if is_made { "makes the disk" } else { "opens the disk" };
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let [number, name] = [number.to_string(), phase.name.to_owned()];
        let [moment, took] = [moment, took].map(seconds);
        Ok(vec![number, name, moment, last, disk.to_owned(), next.to_owned(), took])
    }

    /// Who owns the state disk of a machine that is off.
    fn owner(&self, machine: &Node) -> anyhow::Result<&'static str> {
        Ok(match self.state_disk(machine) {
            Ok(dump) if dump.contains("tec-unclaimed") => "nobody's",
            Ok(dump) if dump.contains("tec-state") => CLAIMED,
            Ok(dump) => {
                anyhow::bail!("the disk of {} has an unexpected header: {dump}", machine.name)
            }
            Err(_) => "blank",
        })
    }
}

const CLAIMED: &str = "the cluster's";

/// A random time within a phase.
fn moment(seed: u64, number: u32, count: u32, whole: Duration) -> Duration {
    whole.mul_f64(share(seed, number, count))
}

/// How much of a phase passes before the cut, the same for the same seed. Each cut has its own part of the
/// phase, so that no part is left out.
pub(super) fn share(seed: u64, number: u32, count: u32) -> f64 {
    let mut random = [0; 2];
    SeededEntropy::new(seed + u64::from(number)).fill(&mut random);
    let within = f64::from(u16::from_le_bytes(random)) / f64::from(u16::MAX);
    (f64::from(number - 1) + within) / f64::from(count)
}

/// Crates of the programs of a node, in log lines.
const CRATES: [&str; 2] = ["bootstrapper::", "tec_node::"];

/// The last line of the console, without colors, time and crate, since a table column is narrow.
fn last_line(console: &str) -> String {
    let mut lines = console.split(['\n', '\r']).map(without_colors);
    let last = lines.rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let bare = CRATES.iter().find_map(|name| Some(last.split_once(name)?.1));
    bare.unwrap_or(&last).trim().chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

/// Removes the sequences that select a color (ECMA-48, SGR).
fn without_colors(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text));
    [first].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_phase_has_one_cut_and_a_seed_repeats_them() {
        let whole = Duration::from_secs(40);
        let moments = |seed| (1..=10).map(move |number| moment(seed, number, 10, whole));
        for (part, moment) in moments(7).enumerate() {
            assert_eq!(moment.as_millis() / 4000, part as u128);
        }
        assert!(moments(7).eq(moments(7)));
        assert!(moments(7).ne(moments(8)));
    }

    #[test]
    fn the_last_line_of_a_console_is_what_a_person_would_read() {
        let console =
            "BdsDxe\r\n\u{1b}[2m16:41\u{1b}[0m bootstrapper::instance::run\u{1b}[0m: Init\r\n\r\n";
        assert_eq!(last_line(console), "instance::run: Init");
        assert_eq!(last_line("Progress: 1%\rProgress: 20%\r"), "Progress: 20%");
    }
}
