//! Logging to stderr, filtered by `--log` or `TEC_LOG`, as JSON on request. The last lines are kept for those
//! who may see them.

use std::collections::VecDeque;
use std::io;
use std::io::{IsTerminal as _, Write};

use parking_lot::{Mutex, MutexGuard};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How many bytes of the last lines to keep; a few hundred lines.
const KEPT: usize = 64 * 1024;

static RECENT: Mutex<VecDeque<u8>> = Mutex::new(VecDeque::new());

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum LogForm {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging; a second call has no effect.
pub fn start(filter: &str, form: LogForm) -> anyhow::Result<()> {
    let filter: Targets = filter.parse()?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(|| Tee).with_ansi(io::stderr().is_terminal());
    let lines = match form {
        LogForm::Text => lines.boxed(),
        LogForm::Json => lines.json().boxed(),
    };
    let registry = tracing_subscriber::registry().with(filter).with(lines);
    #[cfg(feature = "export")]
    let registry = registry.with(crate::export::Exported);
    let _ = registry.try_init();
    Ok(())
}

/// The last lines, the oldest first.
pub fn recent() -> Vec<u8> {
    whole_lines(&kept())
}

fn kept() -> MutexGuard<'static, VecDeque<u8>> {
    RECENT.lock()
}

/// Keeps the last bytes of the log.
fn keep(kept: &mut VecDeque<u8>, more: &[u8]) {
    kept.extend(more);
    let excess = kept.len().saturating_sub(KEPT);
    kept.drain(..excess);
}

/// The first line may be truncated.
fn whole_lines(kept: &VecDeque<u8>) -> Vec<u8> {
    let all = kept.iter().copied();
    if kept.len() < KEPT {
        return all.collect();
    }
    all.skip_while(|byte| *byte != b'\n').skip(1).collect()
}

/// Writes to stderr and to the kept lines.
struct Tee;

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        keep(&mut kept(), bytes);
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_begins_with_a_whole_line() {
        let mut kept = VecDeque::new();
        keep(&mut kept, b"first\n");
        assert_eq!(whole_lines(&kept), b"first\n");
        let mut last = Vec::new();
        for number in 0..20_000 {
            last = format!("line {number}\n").into_bytes();
            keep(&mut kept, &last);
        }
        let lines = whole_lines(&kept);
        assert!(lines.len() < KEPT && lines.starts_with(b"line "));
        assert!(lines.ends_with(&last));
    }
}
