//! What the console of a node that is bootstrapped shows.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::qemu::Running;
use crate::vm::node::Node;

/// The first words of the node's own programs.
pub(super) const UP: &str = "devices and network";
pub(super) const SERVED: &str = "Init is served";
pub(super) const MADE: &str = "the state disk is made and mounted";
pub(super) const MEMBER: &str = "the node is a member";
/// Key derivation and firmware are slow where nothing has hardware's help.
pub(super) const LIMIT: Duration = Duration::from_mins(10);

/// Switches a node on, and waits for lines on its console, in their order; what it shows, and how long
/// it took from the first of these to the last.
pub(super) fn boot_until(
    node: &mut Node,
    texts: &[&str],
) -> anyhow::Result<(Running, String, Duration)> {
    let (mut running, console) = node.power_on()?;
    let mut begin = None;
    for text in texts {
        running.wait_for_console(text, LIMIT)?;
        begin = begin.or_else(|| Some(Instant::now()));
    }
    let console = fs::read(console).context("read the console")?;
    let took = begin.map(|begin| begin.elapsed()).unwrap_or_default();
    Ok((running, String::from_utf8_lossy(&console).into_owned(), took))
}
