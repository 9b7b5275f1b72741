//! What programs with a file of settings begin with: log, settings, runtime, signals.

use std::path::Path;

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};

use crate::log::LogForm;
use crate::{input, log};

/// Largest file of settings.
const MAX_SETTINGS: u64 = 1 << 20;

/// Flags of the log.
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::exhaustive_structs, reason = "parsed, never built")]
pub struct LogArgs {
    /// Which log lines go to stderr, for example `info` or `tec=debug`.
    #[arg(long, env = "TEC_LOG", default_value = "info", global = true)]
    pub log: String,
    /// Form of the log lines.
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
    /// Looks for contradictions.
    ///
    /// # Errors
    /// There is one.
    fn check(&self) -> anyhow::Result<()>;

    /// Reads a file, TOML.
    ///
    /// # Errors
    /// It cannot be read, has a member that is unknown or wrong, or contradicts itself.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = input::text(path, MAX_SETTINGS)?;
        Self::parse(&text).with_context(|| format!("take the settings of {}", path.display()))
    }

    /// Takes the text of a file.
    ///
    /// # Errors
    /// It has a member that is unknown or wrong, or contradicts itself.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let settings: Self = toml::from_str(text)?;
        settings.check()?;
        Ok(settings)
    }
}

/// Starts the log and a runtime, and works until the end.
///
/// # Errors
/// The filter of the log does not parse, or the work fails.
pub fn run(flags: &LogArgs, work: impl Future<Output = anyhow::Result<u8>>) -> anyhow::Result<u8> {
    log::start(&flags.log, flags.log_form)?;
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Resolves with SIGTERM or SIGINT, from this call on.
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate()).context("install the SIGTERM handler")?;
    let mut int = signal(SignalKind::interrupt()).context("install the SIGINT handler")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
