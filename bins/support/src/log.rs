//! Logging: to stderr, filtered by `--log` or `TEC_LOG`, JSON on request.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum LogForm {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging; a second call changes nothing.
///
/// # Errors
/// The filter does not parse.
pub fn start(filter: &str, form: LogForm) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
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
