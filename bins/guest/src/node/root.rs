//! In the opened root, as process 1.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

use super::marks::Mark;
use super::marks::Marks;

/// How often this root has run.
const COUNTER: &str = "/var/boots";
/// What the engine leaves in a root that it made.
const RESULT: &str = "/etc/.ignition-result.json";

/// Counts the boot, tells of it, and switches off.
pub fn run() {
    if let Err(error) = tell() {
        // The kernel stops when process 1 ends, and the console shows it.
        let _ = writeln!(std::io::stderr(), "root: {error:#}");
    }
}

fn tell() -> anyhow::Result<()> {
    let before = fs::read_to_string(COUNTER).unwrap_or_default();
    let boots = before.trim().parse().unwrap_or(0_u32) + 1;
    fs::write(COUNTER, format!("{boots}\n")).context("count the boot")?;
    rustix::fs::sync();
    let mut marks = Marks::open()?;
    let made = Path::new(RESULT).exists();
    marks.tell(Mark::Root, &format!("boots={boots} ignition={made}"))?;
    writeln!(std::io::stdout(), "TEC node: root is open, boot {boots}").context("greet people")?;
    marks.switch_off()
}
