//! `tec node`: nodes of a cluster, and what the next boot of a machine will measure.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tec_core::code::Code;
use tec_core::port::ImageRegistry;
use tec_support::exit::{NOT_READY, OK};
use tec_support::nextboot;
use tec_support::nextboot::{Judge, NextbootArgs, Running};
use tec_tpm::output::NextBoot;

use super::member::{InitArgs, JoinArgs, RecoverArgs, VerifyArgs};
use super::{coded, input, member};
use crate::output::Output;
use crate::state::open_existing;

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Initialize the first node of a cluster, after verifying it.
    Init(Box<InitArgs>),
    /// Join this node to a cluster, through the join services that its platform names.
    Join(JoinArgs),
    /// Open the disks of nodes that rebooted and cannot reach their cluster.
    Recover(Box<RecoverArgs>),
    /// Verify the evidence of a node, and print every check.
    Verify(Box<VerifyArgs>),
    /// Predict the next boot of this machine; exit code 3 if it would be refused.
    Nextboot(Box<NodeArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    boot: NextbootArgs,
    /// Accept the images approved in the store of --state-dir, and states between them.
    #[arg(long, help_heading = "What is accepted")]
    approved: bool,
    /// Event log of the running boot for comparison, as in
    /// /sys/kernel/security/tpm0/binary_bios_measurements.
    #[arg(long, value_name = "FILE", help_heading = "The running boot")]
    log_file: Option<PathBuf>,
    /// PCR values of the running boot for comparison, as printed by tpm2_pcrread. With both, the firmware's
    /// own registers are taken from the log if it replays to these values.
    #[arg(long, value_name = "FILE", help_heading = "The running boot")]
    pcr_values: Option<PathBuf>,
}

pub(crate) async fn node(
    state_dir: &Path,
    command: NodeCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        NodeCommand::Init(args) => member::init(*args, output).await,
        NodeCommand::Join(args) => member::join(args, output).await,
        NodeCommand::Recover(args) => member::recover(*args, output).await,
        NodeCommand::Verify(args) => member::verify(*args, output).await,
        NodeCommand::Nextboot(args) => next_boot(state_dir, &args, output).await,
    }
}

async fn next_boot(state_dir: &Path, args: &NodeArgs, output: &Output) -> anyhow::Result<u8> {
    let values = args.pcr_values.as_deref().map(nextboot::pcr_values);
    let log = args.log_file.as_deref().map(input::log_bytes);
    let running = Running { values: values.transpose()?, log: log.transpose()? };
    let judge = if args.approved {
        let store = open_existing(state_dir)?;
        let images = ImageRegistry::list(&*store).await;
        let images = images.map_err(coded(Code::StoreUnavailable, "list the images"))?;
        Judge::Approved(images)
    } else {
        Judge::Nobody
    };
    let next = nextboot::foretell(&args.boot, &running, judge)?;
    output.print(&next, NextBoot::text)?;
    let is_refused = next.verdict.as_ref().is_some_and(|v| !v.is_accepted());
    Ok(if is_refused { NOT_READY } else { OK })
}
