//! Startup of programs with a settings file: log, settings, runtime, signals.

use std::path::Path;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};

use crate::log::LogForm;
use crate::{input, log};

/// Largest settings file.
const MAX_SETTINGS: u64 = 1 << 20;

/// Log flags.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Log filter for stderr, for example `info` or `tec=debug`
    #[arg(long, env = "TEC_LOG", default_value = "info", global = true)]
    pub log: String,
    /// Format of log lines
    #[arg(
        long,
        env = "TEC_LOG_FORM",
        value_enum,
        default_value_t = LogForm::Text,
        global = true
    )]
    pub log_form: LogForm,
}

/// Settings that can contradict each other.
pub trait Settings: DeserializeOwned {
    /// Checks for contradictions.
    fn check(&self) -> anyhow::Result<()>;

    /// Reads a TOML file.
    /// Errors: the file cannot be read, has an unknown key or an invalid value, or contradicts itself.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = input::text(path, MAX_SETTINGS)?;
        Self::parse(&text).with_context(|| format!("cannot use the settings in {}", path.display()))
    }

    /// Parses the text of a file.
    /// Errors: the text has an unknown key or an invalid value, or contradicts itself.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let settings: Self = toml::from_str(text)?;
        settings.check()?;
        Ok(settings)
    }
}

/// Starts the log and a runtime, and runs the work to its end.
pub fn run(flags: &LogArgs, work: impl Future<Output = anyhow::Result<u8>>) -> anyhow::Result<u8> {
    log::start(&flags.log, flags.log_form)?;
    // Fails only if a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Resolves on SIGTERM or SIGINT, from this call on.
pub fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate()).context("cannot install the SIGTERM handler")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot install the SIGINT handler")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
