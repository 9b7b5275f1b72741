//! Settings: flags that can also be set through the environment, since Clevis calls the pin without flags.

use std::fs::{File, OpenOptions};
use std::io;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use tec_core::ignition::NumRetries;
use tec_tpm::ak::AkHandle;
use tec_tpm::evidence::MAX_EVENT_LOG;

/// The kernel's TPM device with its resource manager.
pub const DEFAULT_TCTI: &str = "device:/dev/tpmrm0";
/// Where the kernel exposes the firmware's event log.
pub const DEFAULT_EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";
/// Timeout of one request in seconds, the same as in the existing client.
pub const DEFAULT_TIMEOUT: &str = "60";
/// Logs warnings and errors. Servers that released no key are not included: the console of a refused node
/// should show the three lines of the report and nothing else.
pub const DEFAULT_LOG: &str = "warn,tec_trustee=error";

/// Flags of all commands.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct Flags {
    /// TPM, as named by libtss2: `device:<path>` or `swtpm:host=<host>,port=<port>` (default:
    /// `TPM2TOOLS_TCTI`, then device:/dev/tpmrm0)
    #[arg(long, env = "TEC_TCTI", global = true)]
    pub tcti: Option<String>,
    #[arg(long, env = "TPM2TOOLS_TCTI", global = true, hide = true)]
    tpm2tools_tcti: Option<String>,
    /// Persistent handle of the attestation key, hexadecimal
    #[arg(long, env = "TEC_AK_HANDLE", global = true, default_value_t = AkHandle::DEFAULT)]
    pub ak_handle: AkHandle,
    /// Firmware event log to send with the evidence (default: the kernel's, if readable)
    #[arg(long, env = "TEC_EVENT_LOG", global = true, value_parser = any_path())]
    pub event_log: Option<PathBuf>,
    /// Timeout of one request to a server, in seconds
    #[arg(
        long,
        env = "TEC_TIMEOUT",
        global = true,
        default_value = DEFAULT_TIMEOUT,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub timeout: u64,
    /// Maximum number of rounds over the servers; 1 shows a refusal without waiting (default: from
    /// the pin's configuration)
    #[arg(long, env = "TEC_ROUNDS", global = true)]
    pub rounds: Option<NonZeroU32>,
    /// Additional destination for the report of a failure, such as a console, for callers that
    /// discard stderr
    #[arg(long, env = "TEC_CONSOLE", global = true, value_parser = any_path())]
    pub console: Option<PathBuf>,
    /// Log filter for stderr: levels by module, such as `warn,tec_trustee=debug`
    #[arg(long, env = "TEC_LOG", global = true, default_value = DEFAULT_LOG)]
    pub log: String,
}

impl Flags {
    /// The TCTI to open. Empty variables count as unset, as in the tools of libtss2.
    pub fn tcti(&self) -> &str {
        [&self.tcti, &self.tpm2tools_tcti]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .find(|tcti| !tcti.is_empty())
            .unwrap_or(DEFAULT_TCTI)
    }

    /// How often to ask servers: the flag takes precedence over the configuration.
    pub fn retries(&self, configured: Option<NumRetries>) -> Option<NumRetries> {
        self.rounds.map(|rounds| NumRetries::Rounds(rounds.get())).or(configured)
    }

    /// Deadline of one request.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Shows a report on the console, if one is named. A failure to do so cannot be reported anywhere.
    pub fn show_on_console(&self, report: &str) {
        let console = self.console.as_deref();
        if let Some(path) = console.filter(|path| !path.as_os_str().is_empty()) {
            let opened = OpenOptions::new().append(true).open(path);
            let _ = opened.and_then(|mut console| console.write_all(report.as_bytes()));
        }
    }

    /// The event log, if there is one. A boot does not fail without it: the PCR values decide.
    pub fn read_event_log(&self) -> Option<Vec<u8>> {
        let (path, asked_for) = match &self.event_log {
            Some(path) if !path.as_os_str().is_empty() => (path.as_path(), true),
            _ => (Path::new(DEFAULT_EVENT_LOG), false),
        };
        match read_bounded(path) {
            Ok(log) => Some(log).filter(|log| !log.is_empty()),
            Err(error) if asked_for => {
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

/// Accepts an empty path, too: a variable that a unit file leaves empty must not stop a boot.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut log = Vec::new();
    File::open(path)?.take(MAX_EVENT_LOG as u64 + 1).read_to_end(&mut log)?;
    if log.len() > MAX_EVENT_LOG {
        return Err(io::Error::other("the event log is larger than any that is taken"));
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(tcti: Option<&str>, tpm2tools: Option<&str>) -> Flags {
        Flags {
            tcti: tcti.map(str::to_owned),
            tpm2tools_tcti: tpm2tools.map(str::to_owned),
            ak_handle: AkHandle::DEFAULT,
            event_log: None,
            timeout: 30,
            rounds: None,
            console: None,
            log: String::new(),
        }
    }

    #[test]
    fn our_tcti_wins_over_that_of_the_tools_and_empty_ones_do_not_count() {
        assert_eq!(flags(Some("a"), Some("b")).tcti(), "a");
        assert_eq!(flags(None, Some("b")).tcti(), "b");
        assert_eq!(flags(Some(""), Some("b")).tcti(), "b");
        assert_eq!(flags(Some(""), Some("")).tcti(), DEFAULT_TCTI);
    }

    #[test]
    fn paths_that_a_unit_file_leaves_empty_count_as_unset() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        let line = ["node-agent", "--event-log=", "--console="];
        let flags = <Line as clap::Parser>::parse_from(line).flags;
        flags.show_on_console("a report that goes nowhere");
        let unset = Path::new("");
        assert_eq!(
            (flags.event_log.as_deref(), flags.console.as_deref()),
            (Some(unset), Some(unset))
        );
    }

    #[test]
    fn the_flag_for_rounds_wins_over_the_configuration() {
        let mut flags = flags(None, None);
        assert_eq!(flags.retries(Some(NumRetries::Infinity)), Some(NumRetries::Infinity));
        flags.rounds = NonZeroU32::new(1);
        assert_eq!(flags.retries(Some(NumRetries::Infinity)), Some(NumRetries::Rounds(1)));
    }

    #[test]
    fn a_missing_or_oversized_event_log_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut flags = flags(None, None);
        flags.event_log = Some(dir.path().join("absent"));
        assert_eq!(flags.read_event_log(), None);
        let big = dir.path().join("big");
        std::fs::write(&big, vec![0; MAX_EVENT_LOG + 1]).unwrap();
        flags.event_log = Some(big);
        assert_eq!(flags.read_event_log(), None);
        let good = dir.path().join("good");
        std::fs::write(&good, b"log").unwrap();
        flags.event_log = Some(good);
        assert_eq!(flags.read_event_log().as_deref(), Some(&b"log"[..]));
    }
}
