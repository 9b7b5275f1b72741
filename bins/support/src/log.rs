//! Logging: to stderr, filtered by `--log` or `TEC_LOG`, JSON on request.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

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
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let _ = match form {
        LogForm::Text => builder.try_init(),
        LogForm::Json => builder.json().try_init(),
    };
    Ok(())
}
