//! The command line of `tec pcr`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::time::Timestamp;

use super::bundle::BundleCommand;
use crate::command::eventlog::BankName;
use crate::command::input::Images;
use tec_support::boot::{ChainArgs, MachineArgs};
use tec_support::pins::parse_pcr;

#[derive(Debug, Subcommand)]
pub(crate) enum PcrCommand {
    /// Compute what an image's boot measures.
    Compute {
        /// The image: directory, raw disk, FAT file system, tar stream, OCI layout or unified kernel
        /// image; - for the standard input.
        image: PathBuf,
        /// Bank to compute beside SHA-256, for the report; may be given several times.
        #[arg(long = "bank", value_enum)]
        banks: Vec<BankName>,
        #[command(flatten)]
        form: FormArgs,
        // Last, since their headings go on below them.
        #[command(flatten)]
        chain: Box<ChainArgs>,
        #[command(flatten)]
        machine: Box<MachineArgs>,
    },
    /// Signed bundles of reference values.
    #[command(subcommand)]
    Bundle(BundleCommand),
    /// List the values that occur while machines move between images, part by part.
    Combine {
        #[command(flatten)]
        images: Images,
        /// Registers whose values are also told together; may be given several times.
        #[arg(long = "together", value_name = "INDEX", value_parser = parse_pcr)]
        together: Vec<PcrIndex>,
        /// shim and GRUB are updated one by one.
        #[arg(long)]
        separate_loaders: bool,
        /// Lists of machine owner keys do not follow from shim.
        #[arg(long)]
        independent_mok: bool,
        /// File with a SbatLevel that machines have stored already; may be given several times.
        #[arg(long, value_name = "FILE")]
        stored_sbat_level: Vec<PathBuf>,
        #[command(flatten)]
        form: FormArgs,
    },
    /// Say what made a value, or each event of a log.
    Identify {
        #[command(flatten)]
        images: Images,
        /// Register of the value.
        #[arg(long, value_name = "INDEX", value_parser = parse_pcr, default_value = "4")]
        pcr: PcrIndex,
        /// The value.
        #[arg(long, required_unless_present = "log_file", conflicts_with = "log_file")]
        value: Option<Sha256Digest>,
        /// Event log, as in /sys/kernel/security/tpm0/binary_bios_measurements.
        #[arg(long)]
        log_file: Option<PathBuf>,
    },
    /// Compare what two images measure.
    Diff {
        /// Computed values of the first image.
        before: PathBuf,
        /// Computed values of the second image.
        after: PathBuf,
    },
}

/// In which form values are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// What `--output` says: text for people, or JSON with what makes each value.
    Report,
    /// The label `org.coreos.pcrs`; of one image only.
    Label,
    /// A component of systemd-pcrlock; of one image only.
    Pcrlock,
    /// As tpm2_pcrread prints values; of one image only.
    Tpm2Tools,
    /// measurements.json of nodes and join services, without PCR 15; of one image only.
    Measurements,
    /// The list of reference values in Trustee's ConfigMap.
    TrusteeConfigMap,
    /// The message with reference values that Trustee takes.
    TrusteeMessage,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FormArgs {
    /// Form of what is printed.
    #[arg(long, value_enum, default_value_t = Form::Report)]
    pub(crate) form: Form,
    /// End of reference values in a ConfigMap, such as 2027-01-01T00:00:00Z; one year from now if
    /// not given.
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<Timestamp>,
}
