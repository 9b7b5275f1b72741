//! The command line, and the names under which Clevis calls this program.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use tec_core::id::MachineId;

use crate::args::{DisksArgs, KeyCommand, RebindArgs, RecoveryCommand};
use crate::attest::AttestArgs;
use crate::next_boot::NextBootArgs;
use crate::output::Output;
use crate::settings::Flags;

/// Names of the links that Clevis calls, and the command of each.
pub const LINKS: [(&str, &str); 2] =
    [("clevis-encrypt-trustee", "encrypt"), ("clevis-decrypt-trustee", "decrypt")];

/// What `clevis` prints about the pin in its overview.
pub const SUMMARY: &str = "Encrypts using a key that is released after attestation (Trustee)";

/// Attests this node with its TPM, and seals and opens its disk passphrase (Clevis pin `trustee`)
#[derive(Debug, Parser)]
#[command(name = "node-agent", version)]
#[non_exhaustive]
pub struct Cli {
    /// Settings of all commands.
    #[command(flatten)]
    pub flags: Flags,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Seal stdin: register the attestation key, fetch the disk key, write a compact JWE to stdout
    Encrypt(EncryptArgs),
    /// Open the compact JWE on stdin: fetch the disk key, write the plaintext to stdout
    Decrypt(DecryptArgs),
    /// Create the links clevis-encrypt-trustee and clevis-decrypt-trustee in a directory
    InstallLinks {
        /// Directory, usually /usr/bin
        directory: PathBuf,
    },
    /// Measure the phase of the initramfs into PCR 11; for the pin in an initramfs
    EnterInitramfs,
    /// Measure the end of the initramfs into PCR 11, after which servers release no disk key in this boot; for the
    /// scripts of an initramfs
    LeaveInitramfs {
        /// Root file system, which gets the kept disk key only if it has its mark
        root: PathBuf,
        /// systemd measures the end
        #[arg(long)]
        by_systemd: bool,
    },
    /// Attest now, to the key brokers of the disks or those given, without fetching a key; exit code 3 if
    /// refused
    Attest(AttestArgs),
    /// Bind a disk to other servers, without touching its passphrase, key slots or data
    Rebind(RebindArgs),
    /// Update the CAs in the pins of all disks to those of their servers, and report them
    RefreshCa(DisksArgs),
    /// Manage the recovery key: 48 digits that open the disk without a server, escrowed at the
    /// servers for an admin
    #[command(subcommand)]
    Recovery(RecoveryCommand),
    /// Manage the disk key
    #[command(subcommand)]
    Key(KeyCommand),
    /// Predict what the next boot measures, and whether the disk will open by itself; exit code 3 if not
    NextBoot(Box<NextBootArgs>),
    /// Print the machine's ID, from the pins of its disks
    Machine {
        /// Additional LUKS2 devices, such as files, besides all block devices that are bound to key brokers
        devices: Vec<PathBuf>,
    },
    /// Print the PCR values of this boot like `tpm2_pcrread`, for `tec node nextboot --pcr-values`
    Pcrs,
    /// Manage the attestation key
    Ak {
        /// What to do with it.
        #[command(subcommand)]
        command: AkCommand,
        /// Output format
        #[arg(long, value_enum, default_value_t = Output::Text, global = true)]
        output: Output,
    },
}

/// Arguments of `encrypt`, as Clevis passes them.
#[derive(Args, Debug)]
#[non_exhaustive]
pub struct EncryptArgs {
    /// Configuration of the pin, JSON
    #[arg(required_unless_present = "summary")]
    pub config: Option<String>,
    /// Clevis passes `-y` or an empty word after the configuration; there is nothing to confirm.
    #[arg(hide = true)]
    ignored: Vec<String>,
    #[arg(short = 'y', hide = true)]
    yes: bool,
    /// Print one line about the pin
    #[arg(long)]
    pub summary: bool,
}

/// Arguments of `decrypt`.
#[derive(Args, Debug)]
#[non_exhaustive]
pub struct DecryptArgs {
    /// Print one line about the pin
    #[arg(long)]
    pub summary: bool,
}

/// Subcommands of `ak`.
#[derive(Debug, Subcommand)]
pub enum AkCommand {
    /// Create the key unless it exists, and print it
    Create,
    /// Print the key
    Show,
    /// Register the key for a machine, creating it first if necessary
    Register {
        /// URL of the registration endpoint, …/register-ak
        #[arg(long)]
        url: String,
        /// ID of the machine
        #[arg(long)]
        uuid: MachineId,
        /// PEM file with the server's CA
        #[arg(long)]
        ca: Option<PathBuf>,
    },
}

/// Parses a command line; if called by one of the [`LINKS`] names, as that command's.
/// Errors: also returned for `--help` and `--version`: distinguish by [`clap::Error::exit_code`].
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default();
    let command = LINKS.iter().find(|(link, _)| OsStr::new(link) == name);
    let command = command.map(|(_, command)| OsString::from(command));
    Cli::try_parse_from([program].into_iter().chain(command).chain(arguments))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Cli, ErrorKind> {
        parse(arguments.iter().map(OsString::from)).map_err(|error| error.kind())
    }

    fn config(cli: Cli) -> String {
        match cli.command {
            Command::Encrypt(arguments) => arguments.config.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_name_of_the_link_is_the_command() {
        for program in ["clevis-encrypt-trustee", "/usr/bin/clevis-encrypt-trustee"] {
            assert_eq!(config(parsed(&[program, "{}"]).unwrap()), "{}");
        }
        assert_eq!(config(parsed(&["node-agent", "encrypt", "{}"]).unwrap()), "{}");
        let decrypt = parsed(&["/usr/bin/clevis-decrypt-trustee"]).unwrap();
        assert!(matches!(decrypt.command, Command::Decrypt(_)));
    }

    #[test]
    fn what_clevis_adds_is_tolerated() {
        for more in [&["-y"][..], &[""], &["", "-y"]] {
            let arguments = [&["clevis-encrypt-trustee", "{}"], more].concat();
            assert_eq!(config(parsed(&arguments).unwrap()), "{}", "{more:?}");
        }
        let summary = parsed(&["clevis-encrypt-trustee", "--summary"]).unwrap();
        assert!(matches!(summary.command, Command::Encrypt(EncryptArgs { summary: true, .. })));
    }

    #[test]
    fn a_pin_without_configuration_is_a_usage_error() {
        assert_eq!(
            parsed(&["clevis-encrypt-trustee"]).unwrap_err(),
            ErrorKind::MissingRequiredArgument
        );
        assert_eq!(
            parsed(&["clevis-decrypt-trustee", "x"]).unwrap_err(),
            ErrorKind::UnknownArgument
        );
    }

    #[test]
    fn the_attestation_key_is_registered_for_a_machine_only() {
        let base = ["node-agent", "ak", "register", "--url", "http://a/register-ak"];
        let good = [&base[..], &["--uuid", "7c9e6679-7425-40de-944b-e07fc1f90ae7"]].concat();
        assert!(parsed(&good).is_ok());
        assert!(parsed(&base).is_err());
        assert!(parsed(&[&base[..], &["--uuid", "x"]].concat()).is_err());
    }
}
