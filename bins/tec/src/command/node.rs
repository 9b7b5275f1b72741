//! `tec node`: what the next boot of this machine will measure.

use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap::Subcommand;
use tec_core::boot::LiveImages;
use tec_core::digest::Sha256Digest;
use tec_core::id::ImageName;
use tec_core::image::ApprovedImage;
use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrSet;
use tec_core::pcr::PcrValues;
use tec_core::port::Clock as _;
use tec_support::SystemClock;
use tec_support::exit::NOT_READY;
use tec_support::exit::OK;
use tec_tpm::combine::MixedStates;
use tec_tpm::compute::Banks;
use tec_tpm::compute::Prediction;
use tec_tpm::event_log::EventLog;
use tec_tpm::output as form;
use tec_tpm::output::Accepted;
use tec_tpm::output::CurrentBoot;
use tec_tpm::output::NextBoot;
use tec_tpm::output::PredictionReport;
use tec_tpm::output::ReferenceValues;

use super::boot;
use super::boot::ChainArgs;
use super::boot::MachineArgs;
use super::input;
use crate::cli::parse_pcr;
use crate::output::Output;

/// Where Linux shows the variables of the machine.
const EFIVARS: &str = "/sys/firmware/efi/efivars";
/// Registers that the firmware alone makes: they stay as they are while it does.
const FIRMWARE: [u8; 6] = [0, 1, 2, 3, 5, 6];

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Predict the next boot from staged files and the machine's variables. Exit code 3 says that
    /// it would be refused.
    Nextboot(Box<NextbootArgs>),
}

#[derive(Debug, Args)]
pub(crate) struct NextbootArgs {
    /// What boots next: directory, raw disk, FAT file system, tar stream, OCI layout or unified
    /// kernel image; - for the standard input.
    image: PathBuf,
    #[command(flatten)]
    chain: ChainArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Event log of the running boot, as in /sys/kernel/security/tpm0/binary_bios_measurements, to
    /// compare with.
    #[arg(long, value_name = "FILE", help_heading = "The running boot")]
    log_file: Option<PathBuf>,
    /// Values of the running boot, as tpm2_pcrread prints them, to compare with. With both, the
    /// firmware's own registers are taken from the log where it folds to these values.
    #[arg(long, value_name = "FILE", help_heading = "The running boot")]
    pcr_values: Option<PathBuf>,
    /// File with values that are accepted: of an image, a bundle, or a list of Trustee. May be
    /// given several times; states between images are accepted, too.
    #[arg(long, value_name = "[NAME=]FILE", help_heading = "What is accepted")]
    accepted: Vec<String>,
    /// Register that must have an accepted value; may be given several times.
    #[arg(
        long = "pin-pcr",
        value_name = "INDEX",
        value_parser = parse_pcr,
        default_value = "4",
        help_heading = "What is accepted"
    )]
    pin_pcrs: Vec<PcrIndex>,
}

pub(crate) fn node(command: NodeCommand, output: Output) -> anyhow::Result<u8> {
    let NodeCommand::Nextboot(mut args) = command;
    if args.machine.efivars.is_none() && args.machine.variable_store.is_none() {
        args.machine.efivars = Some(EFIVARS.into());
    }
    let machine = boot::machine(&args.machine)?;
    let prediction = boot::predict(&args.image, &args.chain, &machine, Banks::SHA256)?;
    let next = compared(&args, prediction)?;
    let next = judged(&args, next)?;
    output.print(&next, NextBoot::text)?;
    let is_refused = next.verdict.as_ref().is_some_and(|v| !v.is_accepted());
    Ok(if is_refused { NOT_READY } else { OK })
}

/// Beside the running boot.
fn compared(args: &NextbootArgs, prediction: Prediction) -> anyhow::Result<NextBoot> {
    let values = args.pcr_values.as_deref().map(pcr_values).transpose()?;
    let bytes = args.log_file.as_deref().map(input::log_bytes).transpose()?;
    let parse = |bytes| {
        let log = EventLog::parse(bytes);
        log.context("the log of the running boot cannot be read")
    };
    let log = bytes.as_deref().map(parse).transpose()?;
    let prediction = match (&log, &values) {
        (Some(log), Some(values)) => with_firmware(prediction, log, values)?,
        _ => prediction,
    };
    let mut current = CurrentBoot::default();
    current.values = values.as_ref();
    current.log = log.as_ref();
    let report = PredictionReport::new(&prediction, boot::remedy);
    Ok(NextBoot::new(report, current)?)
}

/// The firmware's registers, where the log proves their values.
fn with_firmware(
    prediction: Prediction,
    log: &EventLog<'_>,
    values: &BTreeMap<PcrIndex, Sha256Digest>,
) -> anyhow::Result<Prediction> {
    let replayed = log.replay_sha256()?;
    let proven = |pcr: &PcrIndex| {
        FIRMWARE.contains(&u8::from(*pcr)) && values.get(pcr) == Some(replayed.value(*pcr))
    };
    let proven: PcrSet = PcrIndex::all().filter(proven).collect();
    if proven.is_empty() {
        return Ok(prediction);
    }
    let quoted = PcrValues::new(std::array::from_fn(|index| {
        let pcr = u8::try_from(index).ok().and_then(|i| PcrIndex::new(i).ok());
        let value = pcr.and_then(|pcr| values.get(&pcr));
        value.copied().unwrap_or(Sha256Digest::ZERO)
    }));
    let verified = log.clone().verify(&quoted, proven)?;
    Ok(prediction.with_recorded(&verified, proven))
}

fn pcr_values(path: &Path) -> anyhow::Result<BTreeMap<PcrIndex, Sha256Digest>> {
    let text = input::text(path, form::MAX_INPUT as u64)?;
    form::read_pcrread(&text).with_context(|| path.display().to_string())
}

/// Beside what is accepted, if that was said.
fn judged(args: &NextbootArgs, next: NextBoot) -> anyhow::Result<NextBoot> {
    if args.accepted.is_empty() {
        return Ok(next);
    }
    let now = SystemClock.now();
    let (mut images, mut lists) = (Vec::new(), Vec::new());
    for given in &args.accepted {
        let (name, path) = input::named_file(given);
        let text = input::text(path, form::MAX_INPUT as u64)?;
        // A list is an array, a message has a payload; what is neither must be a label.
        if let Ok(list) = ReferenceValues::read_config_map(&text) {
            lists.push((name, list));
        } else if let Ok(list) = ReferenceValues::read_message(&text) {
            lists.push((name, list));
        } else {
            let label = form::read_label(&text);
            let label = label.with_context(|| path.display().to_string())?;
            let name: ImageName = name.parse().with_context(|| {
                format!("{name:?} cannot be the name of an image; give NAME={given}")
            })?;
            images.push(ApprovedImage::new(name, given, label, now));
        }
    }
    let accepted = Accepted {
        states: &MixedStates::default(),
        live: &LiveImages::at(&images, now),
        lists: &lists,
    };
    Ok(next.judged(accepted, args.pin_pcrs.iter().copied().collect()))
}
