//! Settings: flags that can also be set through the environment, since Clevis calls the pin without flags.

use std::io;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use tec_agent::Settings;
use tec_agent::report::Report;
use tec_agent::settings::{DEFAULT_KEPT_KEY, DEFAULT_ROOT_MARK, DEFAULT_TIMEOUT};
use tec_tpm::ak::AkHandle;

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
        default_value_t = DEFAULT_TIMEOUT,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub timeout: u64,
    /// Maximum number of rounds over the servers; 1 shows a refusal without waiting (default: from
    /// the pin's configuration)
    #[arg(long, env = "TEC_ROUNDS", global = true)]
    pub rounds: Option<NonZeroU32>,
    /// File in memory with the disk key of this boot, for what the running system does with it
    #[arg(long, env = "TEC_KEPT_KEY", global = true, default_value = DEFAULT_KEPT_KEY)]
    pub kept_key: PathBuf,
    /// Keep the disk key there; for the scripts of an initramfs
    #[arg(long, env = "TEC_KEEP_KEY", global = true)]
    pub keep_key: bool,
    /// File by which the initramfs knows the root file system; its directory must exist
    #[arg(long, env = "TEC_ROOT_MARK", global = true, default_value = DEFAULT_ROOT_MARK)]
    pub root_mark: PathBuf,
    /// Additional destination for the report of a failure, such as a console, for callers that
    /// discard stderr
    #[arg(long, env = "TEC_CONSOLE", global = true, value_parser = any_path())]
    pub console: Option<PathBuf>,
    /// Log filter for stderr: levels by module, such as `warn,tec_trustee=debug`
    #[arg(long, env = "TEC_LOG", global = true, default_value = DEFAULT_LOG)]
    pub log: String,
}

impl Flags {
    /// The settings of the library. Empty variables count as unset, as in the tools of libtss2.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::new(Arc::new(rustls::crypto::ring::default_provider()));
        let mut tcti = [&self.tcti, &self.tpm2tools_tcti].into_iter().flatten();
        if let Some(tcti) = tcti.find(|tcti| !tcti.is_empty()) {
            settings.tcti.clone_from(tcti);
        }
        settings.ak_handle = self.ak_handle;
        settings.event_log = self.event_log.clone().filter(|path| !path.as_os_str().is_empty());
        settings.timeout = Duration::from_secs(self.timeout);
        settings.rounds = self.rounds;
        settings.kept_key.clone_from(&self.kept_key);
        settings.keeps_key = self.keep_key;
        settings.root_mark.clone_from(&self.root_mark);
        settings.console = self.console.clone().filter(|path| !path.as_os_str().is_empty());
        settings
    }

    /// Writes a report to stderr, and to the console if one is named. A failure to do so cannot be reported
    /// anywhere.
    pub fn show(&self, report: &Report) {
        let _ = io::stderr().write_all(format!("{report}\n").as_bytes());
        self.settings().tell(report);
    }
}

/// Accepts an empty path, too: a variable that a unit file leaves empty must not stop a boot.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use tec_core::code::Code;

    use super::*;

    fn flags(tcti: Option<&str>, tpm2tools: Option<&str>) -> Flags {
        Flags {
            tcti: tcti.map(str::to_owned),
            tpm2tools_tcti: tpm2tools.map(str::to_owned),
            ak_handle: AkHandle::DEFAULT,
            event_log: None,
            timeout: 30,
            rounds: None,
            kept_key: DEFAULT_KEPT_KEY.into(),
            keep_key: false,
            root_mark: DEFAULT_ROOT_MARK.into(),
            console: None,
            log: String::new(),
        }
    }

    #[test]
    fn our_tcti_wins_over_that_of_the_tools_and_empty_ones_do_not_count() {
        let tcti = |ours, tools| flags(ours, tools).settings().tcti;
        assert_eq!(tcti(Some("a"), Some("b")), "a");
        assert_eq!(tcti(None, Some("b")), "b");
        assert_eq!(tcti(Some(""), Some("b")), "b");
        assert_eq!(tcti(Some(""), Some("")), tcti(None, None));
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
        flags.show(&Report::new(Code::NodeTpm, "a report that goes nowhere"));
        assert_eq!(flags.settings().event_log, None);
    }
}
