//! How a node reaches its TPM and its servers.

use std::fs::File;
use std::io;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use tec_core::ignition::NumRetries;
use tec_tpm::ak::AkHandle;
use tec_tpm::evidence::{MAX_EVENT_LOG, MAX_SYSTEMD_LOG};

use crate::report::Report;

/// The kernel's TPM device with its resource manager.
const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";
/// Where the kernel exposes the firmware's event log.
const DEFAULT_EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";
/// Where systemd keeps its log of what it measured (257 and later).
const DEFAULT_SYSTEMD_LOG: &str = "/run/log/systemd/tpm2-measure.log";
/// Where an initramfs keeps the key; `/run` goes over to the running system.
pub const DEFAULT_KEPT_KEY: &str = "/run/node-agent/key";
/// Where a running system marks its root file system.
pub const DEFAULT_ROOT_MARK: &str = "/etc/node-agent/root-mark";
/// Timeout of one request in seconds, the same as in the existing client.
pub const DEFAULT_TIMEOUT: u64 = 60;

/// How a node reaches its TPM and its servers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// TPM, as named by libtss2: `device:<path>` or `swtpm:host=<host>,port=<port>`.
    pub tcti: String,
    /// Persistent handle of the attestation key.
    pub ak_handle: AkHandle,
    /// Firmware event log to send with the evidence; if absent, the kernel's, if readable.
    pub event_log: Option<PathBuf>,
    /// systemd's log of what it measured, sent beside the event log if it is there.
    pub systemd_log: PathBuf,
    /// Deadline of one request.
    pub timeout: Duration,
    /// Maximum number of rounds over the servers, instead of that in the pin's configuration.
    pub rounds: Option<NonZeroU32>,
    /// File in memory with the key that the initramfs kept for the running system.
    pub kept_key: PathBuf,
    /// Whether keys that servers release are kept there: in an initramfs.
    pub keeps_key: bool,
    /// File by which the initramfs knows a root file system that may have the kept key. Its directory must exist.
    pub root_mark: PathBuf,
    /// A console that shows why a node still asks, because whoever calls it may discard what it prints.
    pub console: Option<PathBuf>,
    /// TLS.
    pub provider: Arc<CryptoProvider>,
}

impl Settings {
    /// The kernel's TPM and event log, and the usual handle and deadline.
    pub fn new(provider: Arc<CryptoProvider>) -> Self {
        Self {
            tcti: DEFAULT_TCTI.to_owned(),
            ak_handle: AkHandle::DEFAULT,
            event_log: None,
            systemd_log: DEFAULT_SYSTEMD_LOG.into(),
            timeout: Duration::from_secs(DEFAULT_TIMEOUT),
            rounds: None,
            kept_key: DEFAULT_KEPT_KEY.into(),
            keeps_key: false,
            root_mark: DEFAULT_ROOT_MARK.into(),
            console: None,
            provider,
        }
    }

    /// Writes a report to the console, if there is one. A failure to do so cannot be reported anywhere.
    pub fn tell(&self, report: &Report) {
        if let Some(path) = &self.console {
            let opened = File::options().append(true).open(path);
            // The cursor may be behind the question for a passphrase. In one piece: the kernel writes there, too.
            let text = format!("\n{report}\n");
            let _ = opened.and_then(|mut console| console.write_all(text.as_bytes()));
        }
    }

    /// How often to ask servers: the settings take precedence over the configuration.
    pub fn retries(&self, configured: Option<NumRetries>) -> Option<NumRetries> {
        self.rounds.map(|rounds| NumRetries::Rounds(rounds.get())).or(configured)
    }

    /// The event log, if there is one. A boot does not fail without it: the PCR values decide.
    pub fn read_event_log(&self) -> Option<Vec<u8>> {
        let path = self.event_log.as_deref().unwrap_or_else(|| Path::new(DEFAULT_EVENT_LOG));
        match read_bounded(path, MAX_EVENT_LOG) {
            Ok(log) => Some(log).filter(|log| !log.is_empty()),
            Err(error) if self.event_log.is_some() => {
                tracing::warn!(path = %path.display(), %error, "event log not sent");
                None
            }
            Err(error) => {
                tracing::info!(path = %path.display(), %error, "event log not sent");
                None
            }
        }
    }
}

/// systemd's log, if there is one: older versions write none.
pub(crate) fn read_systemd_log(path: &Path) -> Option<Vec<u8>> {
    let log = read_bounded(path, MAX_SYSTEMD_LOG);
    log.inspect_err(|error| tracing::debug!(path = %path.display(), %error, "log not sent")).ok()
}

fn read_bounded(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut log = Vec::new();
    File::open(path)?.take(max as u64 + 1).read_to_end(&mut log)?;
    if log.len() > max {
        return Err(io::Error::other("the event log is larger than any that is taken"));
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new(Arc::new(rustls::crypto::ring::default_provider()))
    }

    #[test]
    fn the_setting_for_rounds_wins_over_the_configuration() {
        let mut settings = settings();
        assert_eq!(settings.retries(Some(NumRetries::Infinity)), Some(NumRetries::Infinity));
        settings.rounds = NonZeroU32::new(1);
        assert_eq!(settings.retries(Some(NumRetries::Infinity)), Some(NumRetries::Rounds(1)));
    }

    #[test]
    fn a_missing_or_oversized_event_log_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = settings();
        settings.event_log = Some(dir.path().join("absent"));
        assert_eq!(settings.read_event_log(), None);
        let big = dir.path().join("big");
        std::fs::write(&big, vec![0; MAX_EVENT_LOG + 1]).unwrap();
        settings.event_log = Some(big);
        assert_eq!(settings.read_event_log(), None);
        let good = dir.path().join("good");
        std::fs::write(&good, b"log").unwrap();
        settings.event_log = Some(good);
        assert_eq!(settings.read_event_log().as_deref(), Some(&b"log"[..]));
    }

    #[test]
    fn a_missing_or_oversized_log_of_systemd_is_left_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (size, is_sent) in [(0, true), (MAX_SYSTEMD_LOG, true), (MAX_SYSTEMD_LOG + 1, false)] {
            std::fs::write(file.path(), vec![0; size]).unwrap();
            assert_eq!(read_systemd_log(file.path()).is_some(), is_sent, "{size}");
        }
        assert_eq!(read_systemd_log(Path::new("/nowhere")), None);
    }
}
