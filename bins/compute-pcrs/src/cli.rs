//! The command line.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use tec_support::boot::{ChainArgs, MachineArgs};
use tec_support::image::ImageChoice;
use tec_support::log::LogForm;
use tec_support::registry::RegistryArgs;

/// Computes the PCR values of an image before it boots.
#[derive(Debug, Parser)]
#[command(name = "compute-pcrs", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// More log output: -v for info, -vv for debug, -vvv for trace
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    /// Log filter when -v is absent, such as info or tec_registry=debug
    #[arg(long, env = "TEC_LOG", default_value = "warn", global = true)]
    log: String,
    /// Format of log lines
    #[arg(long, env = "TEC_LOG_FORM", value_enum, default_value_t = LogForm::Text, global = true)]
    pub(crate) log_form: LogForm,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Which log lines go to stderr.
    pub(crate) fn log_filter(&self) -> &str {
        match self.verbose {
            0 => &self.log,
            1 => "info",
            2 => "debug",
            _ => "trace",
        }
    }
}

/// The image.
#[derive(Debug, Args)]
pub(crate) struct Image {
    /// Image: the root of its file tree, or a raw disk, FAT or ext4 file system, tar stream, OCI layout or unified
    /// kernel image; - for standard input
    #[arg(short, long, default_value = "/")]
    pub(crate) rootfs: PathBuf,
    /// Kernel within the image, if it has several
    #[arg(long)]
    pub(crate) kernel: Option<String>,
    /// Compute as if Secure Boot were off
    #[arg(long)]
    pub(crate) secureboot_disabled: bool,
    #[command(flatten)]
    pub(crate) choice: ImageChoice,
}

/// What starts the kernel.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Kind {
    /// The image boots a unified kernel image instead of GRUB and a kernel
    #[arg(long)]
    pub(crate) uki: bool,
}

/// The machine's EFI variables.
#[derive(Debug, Args)]
pub(crate) struct Variables {
    /// Directory with files `NAME-GUID` as in efivarfs: four bytes of attributes, then the data
    #[arg(long)]
    pub(crate) efivars: PathBuf,
}

/// The variables that shim derived from the machine owner keys.
#[derive(Debug, Args)]
pub(crate) struct MokVariables {
    /// Directory with MokListRT, MokListXRT and MokListTrustedRT, without attributes
    #[arg(long)]
    pub(crate) mok_variables: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Compute(Compute),
    /// Measure an image into a file. First step of the operator's Job: it reads untrusted input and needs no
    /// rights in the cluster
    Job(Box<JobArgs>),
    /// Copy measurements from that file into an ApprovedImage. Second step of the operator's Job
    Publish(PublishArgs),
}

/// The commands of the existing program.
#[derive(Debug, Subcommand)]
pub(crate) enum Compute {
    /// PCR 4, 7 and 14
    All {
        #[command(flatten)]
        image: Image,
        #[command(flatten)]
        kind: Kind,
        #[command(flatten)]
        variables: Variables,
        #[command(flatten)]
        mok: MokVariables,
    },
    /// PCR 4: boot loaders and kernel
    Pcr4 {
        #[command(flatten)]
        image: Image,
        #[command(flatten)]
        kind: Kind,
    },
    /// PCR 7: Secure Boot variables and authorities
    Pcr7 {
        #[command(flatten)]
        image: Image,
        #[command(flatten)]
        variables: Variables,
    },
    /// PCR 11: the sections of a unified kernel image
    Pcr11 {
        /// Unified kernel image, or an image that boots one
        uki: PathBuf,
    },
    /// PCR 14: machine owner keys
    Pcr14 {
        #[command(flatten)]
        mok: MokVariables,
    },
}

/// The image, and where it is.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Reference of the image, with its digest
    #[arg(long)]
    pub(crate) image: String,
    /// Output file for the measurements
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Directory where the image is mounted (default: read its files from its registry)
    #[arg(long)]
    pub(crate) image_dir: Option<PathBuf>,
    /// Directory with public keys, PEM: refuse the image unless one of them signed it (cosign, with a key)
    #[arg(long, value_name = "DIR")]
    pub(crate) signed_by: Option<PathBuf>,
    /// Use the boot files even if the image has a label
    #[arg(long)]
    pub(crate) ignore_label: bool,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    // Last, because their headings apply to all flags after them.
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

/// The object, and the measurements to publish.
#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// Name of the ApprovedImage
    #[arg(long, visible_alias = "resource-name")]
    pub(crate) approved_image: String,
    /// Reference that was measured; an object that names a different one is left unchanged
    #[arg(long)]
    pub(crate) image: String,
    /// Flag of the first step that describes the boot; an object that describes another one is left
    /// unchanged; repeatable
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub(crate) boot: Vec<String>,
    /// File with the measurements
    #[arg(long, value_name = "FILE")]
    pub(crate) from: PathBuf,
    /// Namespace of the object (default: the pod's own)
    #[arg(long, env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,
}
