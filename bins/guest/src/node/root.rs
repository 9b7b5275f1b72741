//! The part that runs in the opened root: as process 1, or as a unit of the full system.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::content;
use super::marks::{Answer, Mark, Marks};

/// Number of times this root has run.
const COUNTER: &str = "/var/boots";
/// A file that the engine leaves in a root it created.
const RESULT: &str = "/etc/.ignition-result.json";
/// The unit that maintains the recovery key.
const UNIT: &str = "tec-recovery.service";
/// The unit waits for servers; the host decides when they come back.
const RECOVERY_LIMIT: Duration = Duration::from_mins(10);
const STEP: Duration = Duration::from_millis(500);
/// Where programs are.
const PATH: &str = "/usr/sbin:/usr/bin";

/// Counts the boot, reports it, and switches off.
pub fn run() {
    if let Err(error) = tell() {
        // The kernel panics when process 1 exits, and the console shows it.
        let _ = writeln!(std::io::stderr(), "root: {error:#}");
    }
}

fn tell() -> anyhow::Result<()> {
    let before = fs::read_to_string(COUNTER).unwrap_or_default();
    let boots = before.trim().parse().unwrap_or(0_u32) + 1;
    fs::write(COUNTER, format!("{boots}\n")).context("cannot count the boot")?;
    rustix::fs::sync();
    let mut marks = Marks::open()?;
    let made = Path::new(RESULT).exists();
    marks.tell(Mark::Root, &format!("boots={boots} ignition={made}"))?;
    let line = format!("TEC node: root is open, boot {boots}");
    writeln!(std::io::stdout(), "{line}").context("cannot print the greeting")?;
    if content::has_recovery(Path::new("/")) {
        match wait_for_recovery() {
            Ok(()) => marks.tell(Mark::Recovery, "")?,
            Err(error) => marks.tell(Mark::Failed, &format!("{error:#}"))?,
        }
    }
    if content::is_attended(Path::new("/")) {
        while marks.answer()? == Answer::Rotate {
            rotate(&mut marks)?;
        }
    }
    marks.switch_off()
}

/// Replaces the disk key, and reports the result.
fn rotate(marks: &mut Marks) -> anyhow::Result<()> {
    marks.tell(Mark::Rotating, "")?;
    let mut agent = Command::new("node-agent");
    agent.args(["key", "rotate", "--output", "json"]).env("PATH", PATH);
    let output = agent.output().context("cannot run node-agent")?;
    let (mark, text) = match output.status.code() {
        Some(0) => (Mark::Rotated, &output.stdout),
        _ => (Mark::Failed, &output.stderr),
    };
    marks.tell(mark, &String::from_utf8_lossy(text))
}

/// Waits until the unit is done.
fn wait_for_recovery() -> anyhow::Result<()> {
    let end = Instant::now() + RECOVERY_LIMIT;
    loop {
        let mut systemctl = Command::new("systemctl");
        systemctl.args(["is-active", "--quiet", UNIT]);
        let status = systemctl.stderr(Stdio::null()).status();
        if status.context("cannot run systemctl")?.success() {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{UNIT} did not finish");
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "one question each half second, with a deadline"
        )]
        std::thread::sleep(STEP);
    }
}
