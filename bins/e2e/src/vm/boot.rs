//! What a node reported during one boot.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, bail};
use tec_guest::frame;
use tec_guest::node::marks::{Answer, Mark};

use crate::qemu::Running;

/// Deadline from power-on to the first of our programs. It takes half a minute on an idle host, and several
/// minutes if compilers share the processors.
const START_LIMIT: Duration = Duration::from_mins(10);
/// Deadline from then on, between two steps: the first boot creates a volume with a slow hash on an emulated
/// processor.
const RUN_LIMIT: Duration = Duration::from_mins(10);

/// Deadline from a refusal to the prompt for a typed key.
pub(super) const TYPING_LIMIT: Duration = Duration::from_mins(5);

/// Number of lines in a report of the pin (docs/reference/clevis-pin.md).
const REPORT: usize = 3;

/// A step of a boot.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The step.
    pub mark: Mark,
    /// When, since the kernel started.
    pub at: Duration,
    /// Text reported with it.
    pub text: String,
}

/// A boot from power-on to power-off.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Boot {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The content of the console.
    pub console: String,
}

/// The outcome of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The root is open; this is how often it has run.
    Root(u32),
    /// The disk stayed closed, with this code.
    Refused(String),
    /// The first boot failed, with the last code on the console, if any.
    Failed(String),
}

impl Boot {
    /// Reads steps after [`greet`] until the machine is off; `hands` may act after each step.
    pub(super) fn watch(
        mut running: Running,
        console: &Path,
        hands: Hands<'_>,
    ) -> anyhow::Result<Self> {
        let steps = listen(&mut running, hands).map_err(|error| running.explain(&error))?;
        running.wait_for_power_off(RUN_LIMIT)?;
        let console = fs::read(console).context("cannot read the console")?;
        Ok(Self { steps, console: String::from_utf8_lossy(&console).into_owned() })
    }

    /// When a step was reached, since the kernel started.
    pub fn at(&self, mark: Mark) -> Option<Duration> {
        self.step(mark).map(|step| step.at)
    }

    /// A step, if it was reached.
    pub(super) fn step(&self, mark: Mark) -> Option<&Step> {
        self.steps.iter().find(|step| step.mark == mark)
    }

    /// The outcome.
    pub fn ended(&self) -> anyhow::Result<Ended> {
        let last = self.steps.last().context("the machine reported nothing")?;
        Ok(match last.mark {
            Mark::Root => Ended::Root(boots(&last.text)?),
            Mark::Recovery => {
                let root = self.step(Mark::Root).context("the root did not start")?;
                Ended::Root(boots(&root.text)?)
            }
            Mark::Refused => Ended::Refused(last_code(&last.text)),
            Mark::Failed => Ended::Failed(last_code(&self.console)),
            other => bail!("the machine switched off after {other}"),
        })
    }

    /// Expects that the root was opened; returns how often it has run.
    ///
    /// # Errors
    /// The root was not opened; the error contains the node's messages.
    pub fn opened(&self) -> anyhow::Result<u32> {
        match self.ended()? {
            Ended::Root(boots) => Ok(boots),
            other => {
                let text = self.steps.last().map_or("", |step| &step.text);
                bail!("the disk was not opened: {other:?}: {}", text.trim())
            }
        }
    }

    /// The lines of the pin's report: what a person in front of the machine reads.
    pub fn report(&self) -> String {
        let text = self.steps.last().map_or("", |step| &step.text);
        let begin = begin_of_report(text).unwrap_or_default();
        let report = text.get(begin..).unwrap_or_default();
        report.lines().take(REPORT).collect::<Vec<_>>().join("\n")
    }

    /// Whether the engine created the disk from scratch.
    pub fn was_first(&self) -> bool {
        self.at(Mark::FirstBoot).is_some()
    }
}

/// Actions from outside after a step.
pub(super) type Hands<'h> = &'h mut dyn FnMut(Mark, &mut Running) -> anyhow::Result<()>;

/// No one is at the console: a machine whose disk stays closed switches off.
pub(super) fn nobody(mark: Mark, running: &mut Running) -> anyhow::Result<()> {
    match mark {
        Mark::Refused => answer(running, Answer::GoOff),
        _ => Ok(()),
    }
}

/// Tells the machine what to do while a disk is closed.
pub(super) fn answer(running: &Running, answer: Answer) -> anyhow::Result<()> {
    let mut line = running.line(RUN_LIMIT);
    line.write_all(&[answer.byte()]).context("cannot answer the node")
}

fn listen(running: &mut Running, hands: Hands<'_>) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    while let Some(step) = next(running)? {
        let mark = step.mark;
        steps.push(step);
        hands(mark, running)?;
    }
    Ok(steps)
}

/// The next step; `None` when the machine switches off.
fn next(running: &Running) -> anyhow::Result<Option<Step>> {
    let frame = frame::read(&mut running.line(RUN_LIMIT)).context("cannot listen to the node")?;
    let Some(frame) = frame else {
        return Ok(None);
    };
    let mark = Mark::of_name(&frame.name);
    let mark = mark.with_context(|| format!("the node reports {:?}", frame.name))?;
    let text = String::from_utf8_lossy(&frame.content).into_owned();
    let (seconds, text) = text.split_once('\n').context("a step has no time")?;
    let at = Duration::from_secs_f64(seconds.parse()?);
    Ok(Some(Step { mark, at, text: text.to_owned() }))
}

/// Waits for a step, and returns all steps up to it.
///
/// # Errors
/// The disk stays closed, something else failed, or the machine switched off before.
pub(super) fn steps_until(running: &Running, mark: Mark) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    let waited = loop {
        match next(running) {
            Ok(None) => break Err(anyhow::anyhow!("the machine switched off before {mark}")),
            Ok(Some(step)) if matches!(step.mark, Mark::Refused | Mark::Failed) => {
                break Err(anyhow::anyhow!("{}: {}", step.mark, step.text.trim()));
            }
            Ok(Some(step)) => steps.push(step),
            Err(error) => break Err(error),
        }
        if steps.last().is_some_and(|step| step.mark == mark) {
            break Ok(steps);
        }
    };
    waited.map_err(|error| running.explain(&error))
}

/// Waits for the first of our programs.
pub(super) fn greet(running: &Running) -> anyhow::Result<()> {
    match frame::find_greeting(&mut running.line(START_LIMIT)) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            bail!("the machine switched off before its system came up")
        }
        other => other.context("the system did not come up"),
    }
}

fn boots(text: &str) -> anyhow::Result<u32> {
    let mut words = text.split_whitespace();
    let number = words.find_map(|word| word.strip_prefix("boots="));
    Ok(number.context("the root does not report how often it ran")?.parse()?)
}

/// The code at the start of the last report.
fn last_code(text: &str) -> String {
    let Some(begin) = begin_of_report(text) else {
        return String::new();
    };
    let code = text.get(begin..).unwrap_or_default().chars();
    code.take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

/// Start of the last report.
fn begin_of_report(text: &str) -> Option<usize> {
    let codes = text.match_indices("TEC-").map(|(at, _)| at);
    // Not the code in the page's URL, which is part of the report.
    let begins = codes.filter(|at| {
        let before = text.get(..*at).unwrap_or_default();
        before.is_empty() || before.ends_with('\n')
    });
    begins.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(mark: Mark, text: &str) -> Boot {
        Boot {
            steps: vec![Step { mark, at: Duration::from_secs(9), text: text.to_owned() }],
            console: "TEC-N500 x\nTEC-R410 y\n".to_owned(),
        }
    }

    #[test]
    fn how_a_boot_ended_is_read_from_its_last_step() {
        let root = boot(Mark::Root, "boots=2 ignition=true");
        assert_eq!(root.ended().unwrap(), Ended::Root(2));
        assert_eq!(root.opened().unwrap(), 2);
        let refused =
            boot(Mark::Refused, "TEC-A412 the boot\nattempt 1\nsee: docs/errors/TEC-A412.md\n");
        assert_eq!(refused.ended().unwrap(), Ended::Refused("TEC-A412".to_owned()));
        assert!(refused.opened().is_err());
        let failed = boot(Mark::Failed, "stage disks of Ignition failed");
        assert_eq!(failed.ended().unwrap(), Ended::Failed("TEC-R410".to_owned()));
        assert!(boot(Mark::Unlocked, "").ended().is_err());
    }
}
