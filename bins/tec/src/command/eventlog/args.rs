//! The command line of `tec eventlog`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::Bank;

use tec_support::pins::parse_pcr;

#[derive(Debug, Subcommand)]
pub(crate) enum EventlogCommand {
    /// Show the events of a log and the values that it folds to.
    Show {
        /// The log.
        log_file: PathBuf,
    },
    /// Show the values that a log folds to.
    Replay {
        /// The log.
        log_file: PathBuf,
        /// Bank; all that the log has if not given.
        #[arg(long, value_enum)]
        bank: Option<BankName>,
    },
    /// Say which registers of a TPM the log explains, and show their events.
    Verify {
        /// The log.
        log_file: PathBuf,
        /// Values of the registers in the SHA-256 bank, as tpm2_pcrread prints them. They are
        /// believed, so they must come from this machine's TPM or from a verified quote.
        #[arg(long, value_name = "FILE")]
        values: PathBuf,
        /// Register that the log must explain; may be given several times. Those that the log
        /// extends if not given.
        #[arg(long = "pcr", value_name = "INDEX", value_parser = parse_pcr)]
        pcrs: Vec<PcrIndex>,
    },
    /// Compare two logs, register by register.
    Diff {
        /// The first log.
        before: PathBuf,
        /// The second log.
        after: PathBuf,
        /// Bank whose digests are compared.
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
