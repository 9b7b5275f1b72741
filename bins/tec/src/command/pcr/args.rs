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
        /// Image: directory, raw disk, FAT or ext4 file system, tar stream, OCI layout or unified kernel image; - for
        /// standard input.
        image: PathBuf,
        /// Additional bank to compute besides SHA-256, for the report; repeatable.
        #[arg(long = "bank", value_enum)]
        banks: Vec<BankName>,
        #[command(flatten)]
        form: FormArgs,
        // Last, because their headings apply to all flags after them.
        #[command(flatten)]
        chain: Box<ChainArgs>,
        #[command(flatten)]
        machine: Box<MachineArgs>,
    },
    /// Sign and verify bundles of reference values.
    #[command(subcommand)]
    Bundle(BundleCommand),
    /// List the values that occur while machines move between images, one component at a time.
    Combine {
        #[command(flatten)]
        images: Images,
        /// Register whose values are also listed in combination; repeatable.
        #[arg(long = "together", value_name = "INDEX", value_parser = parse_pcr)]
        together: Vec<PcrIndex>,
        /// Assume that shim and GRUB are updated separately.
        #[arg(long)]
        separate_loaders: bool,
        /// Assume that lists of machine owner keys do not depend on shim.
        #[arg(long)]
        independent_mok: bool,
        /// File with an SbatLevel already stored on machines; repeatable.
        #[arg(long, value_name = "FILE")]
        stored_sbat_level: Vec<PathBuf>,
        #[command(flatten)]
        form: FormArgs,
    },
    /// Identify what produced a value, or each event of a log.
    Identify {
        #[command(flatten)]
        images: Images,
        /// Register of the value.
        #[arg(long, value_name = "INDEX", value_parser = parse_pcr, default_value = "4")]
        pcr: PcrIndex,
        /// PCR value to identify.
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

/// Format of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// Format selected by `--output`: readable text, or JSON with the source of each value.
    Report,
    /// The label `org.coreos.pcrs`; one image only.
    Label,
    /// A component of systemd-pcrlock; one image only.
    Pcrlock,
    /// As printed by tpm2_pcrread; one image only.
    Tpm2Tools,
    /// measurements.json of nodes and join services, without PCR 15; one image only.
    Measurements,
    /// The list of reference values in Trustee's ConfigMap.
    TrusteeConfigMap,
    /// The message with reference values that Trustee accepts.
    TrusteeMessage,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FormArgs {
    /// Output format of the values.
    #[arg(long, value_enum, default_value_t = Form::Report)]
    pub(crate) form: Form,
    /// Expiry of reference values in a ConfigMap, such as 2027-01-01T00:00:00Z (default: in one year).
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<Timestamp>,
}
