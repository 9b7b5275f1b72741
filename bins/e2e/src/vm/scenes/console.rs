//! The console of a bootstrapped node.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::qemu::Running;
use crate::vm::node::Node;

/// First words of the node's own programs.
pub(super) const UP: &str = "devices and network";
pub(super) const SERVED: &str = "Init is served";
pub(super) const MADE: &str = "the state disk is made and mounted";
pub(super) const MEMBER: &str = "the node is a member";
/// The kernel panicked. On an emulated processor, some do before any program runs.
const PANIC: &str = "Kernel panic - not syncing";
const BOOTS: u32 = 3;
/// Key derivation and firmware are slow without hardware acceleration.
pub(super) const LIMIT: Duration = Duration::from_mins(10);

/// Switches a node on, and waits for its first program. If the kernel panics before that, it boots again,
/// like a machine with `panic=`.
pub(super) fn switch_on(node: &mut Node) -> anyhow::Result<(Running, PathBuf)> {
    let mut boots = 0;
    loop {
        boots += 1;
        let (mut running, console) = node.power_on()?;
        match running.wait_for_console(UP, LIMIT) {
            Ok(()) => return Ok((running, console)),
            Err(_) if boots < BOOTS && text_of(&console)?.contains(PANIC) => {}
            Err(error) => return Err(error),
        }
    }
}

fn text_of(console: &Path) -> anyhow::Result<String> {
    let text = fs::read(console).context("cannot read the console")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Switches a node on, and waits for these console lines, in order. Returns the console, and the time from
/// the first line to the last.
pub(super) fn boot_until(
    node: &mut Node,
    texts: &[&str],
) -> anyhow::Result<(Running, String, Duration)> {
    let (mut running, console) = switch_on(node)?;
    let mut begin = None;
    for text in texts {
        running.wait_for_console(text, LIMIT)?;
        begin = begin.or_else(|| Some(Instant::now()));
    }
    let took = begin.map(|begin| begin.elapsed()).unwrap_or_default();
    Ok((running, text_of(&console)?, took))
}
