//! The command line of `tec eventlog`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::Bank;

use tec_support::pins::parse_pcr;

#[derive(Debug, Subcommand)]
pub(crate) enum EventlogCommand {
    /// Show the events of a log and the PCR values that it replays to.
    Show {
        /// Event log.
        log_file: PathBuf,
        /// Bank of the values (default: all banks of the log).
        #[arg(long, value_enum)]
        bank: Option<BankName>,
        /// Only the PCR values.
        #[arg(long)]
        values_only: bool,
    },
    /// Verify a log against PCR values, and show the events of the PCRs that it explains.
    Verify {
        /// Event log.
        log_file: PathBuf,
        /// PCR values of the SHA-256 bank, as printed by tpm2_pcrread. They must come from the TPM of this
        /// machine or from a verified quote.
        #[arg(long, value_name = "FILE")]
        values: PathBuf,
        /// systemd's own log of what it measured, `/run/log/systemd/tpm2-measure.log`.
        #[arg(long, value_name = "FILE")]
        systemd_log: Option<PathBuf>,
        /// PCR that the log must explain; repeatable (default: all that the log extends).
        #[arg(long = "pcr", value_name = "INDEX", value_parser = parse_pcr)]
        pcrs: Vec<PcrIndex>,
    },
    /// Compare two logs, PCR by PCR.
    Diff {
        /// First event log.
        before: PathBuf,
        /// Second event log.
        after: PathBuf,
        /// Bank of the digests.
        #[arg(long, value_enum, default_value_t = BankName::Sha256)]
        bank: BankName,
    },
}

/// A bank of PCRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BankName {
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl From<BankName> for Bank {
    fn from(name: BankName) -> Self {
        match name {
            BankName::Sha1 => Self::Sha1,
            BankName::Sha256 => Self::Sha256,
            BankName::Sha384 => Self::Sha384,
            BankName::Sha512 => Self::Sha512,
        }
    }
}
