//! Terminal output: headings, notes, tables. Colored only if standard error is a terminal.

use std::io;
use std::io::{IsTerminal as _, Write as _};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const BOLD: &str = "1";
const GREEN: &str = "32";
const RED: &str = "31";
const YELLOW: &str = "33";

fn paint(style: &str, text: &str) -> String {
    if io::stderr().is_terminal() {
        format!("\u{1b}[{style}m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// A closed pipe must not stop a run halfway.
fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Starts a step, and tells how long ago the first one started.
pub(crate) fn step(title: &str) {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = FIRST.elapsed().as_secs();
    line(&paint(BOLD, &format!("== {:02}:{:02} {title}", seconds / 60, seconds % 60)));
}

/// One line of progress within a step.
pub(crate) fn note(text: &str) {
    line(&format!("   {text}"));
}

/// A problem that does not stop the run.
pub(crate) fn warn(text: &str) {
    line(&paint(YELLOW, &format!("   warning: {text}")));
}

/// A step succeeded.
pub(crate) fn success(text: &str) {
    line(&paint(GREEN, &format!("   {text}")));
}

/// A step or the whole run failed.
pub(crate) fn failure(text: &str) {
    line(&paint(RED, &format!("error: {text}")));
}

/// Data, on standard output.
pub(crate) fn out(text: &str) {
    // This program's own tests run in it: what they print here would be counted as results of tests.
    if cfg!(test) {
        return;
    }
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}");
    let _ = stdout.flush();
}

/// Rows under a header, each column as wide as its longest cell; on standard output.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) {
    let head: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            std::iter::once(&head)
                .chain(rows)
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        })
        .collect();
    for row in std::iter::once(&head).chain(rows) {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out(cells.join("  ").trim_end());
    }
}

/// `75.2 s` or `3 min 05 s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 100 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(Duration::from_millis(75_210)), "75.2 s");
        assert_eq!(duration(Duration::from_secs(185)), "3 min 05 s");
    }
}
