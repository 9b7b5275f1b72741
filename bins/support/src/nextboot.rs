//! What the next boot of a machine will measure, and whether it will be refused: for the admin's
//! program, and for the node itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tec_core::boot::LiveImages;
use tec_core::digest::Sha256Digest;
use tec_core::id::ImageName;
use tec_core::image::ApprovedImage;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};
use tec_core::port::{Clock as _, chain};
use tec_tpm::combine::MixedStates;
use tec_tpm::compute::{Banks, PredictError, Prediction};
use tec_tpm::event_log::EventLog;
use tec_tpm::output as form;
use tec_tpm::output::{Accepted, CurrentBoot, NextBoot, PredictionReport, ReferenceValues};

use crate::boot::{ChainArgs, MachineArgs};
use crate::pins::parse_pcr;
use crate::{SystemClock, boot, input};

/// Where Linux shows the variables of the machine.
const EFIVARS: &str = "/sys/firmware/efi/efivars";
/// Registers that the firmware alone makes: they stay as they are while it does.
const FIRMWARE: [u8; 6] = [0, 1, 2, 3, 5, 6];
/// Largest update of dbx that is read; real ones have some 25 KiB.
const MAX_UPDATE: u64 = 1 << 20;

/// What boots next, where, and what is accepted.
#[derive(Clone, Debug, Args)]
#[non_exhaustive]
pub struct NextbootArgs {
    /// What boots next: directory, raw disk, FAT file system, tar stream, OCI layout or unified
    /// kernel image; - for the standard input.
    pub image: PathBuf,
    /// What of the image boots.
    #[command(flatten)]
    pub chain: ChainArgs,
    /// The machine that it boots on.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Update of dbx that the firmware will have taken by then: signature lists, with or without the
    /// signature before them (.esl, .auth, DBXUpdate.bin). May be given several times.
    #[arg(long, value_name = "FILE", help_heading = "The machine")]
    pub dbx_update: Vec<PathBuf>,
    /// File with values that are accepted: of an image, a bundle, or a list of Trustee. May be
    /// given several times; states between images are accepted, too.
    #[arg(long, value_name = "[NAME=]FILE", help_heading = "What is accepted")]
    pub accepted: Vec<String>,
    /// Register that must have an accepted value; may be given several times.
    #[arg(
        long = "pin-pcr",
        value_name = "INDEX",
        value_parser = parse_pcr,
        default_value = "4",
        help_heading = "What is accepted"
    )]
    pub pin_pcrs: Vec<PcrIndex>,
}

/// What runs now, as far as it is known.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "two facts, each of which may lack")]
pub struct Running {
    /// Values of the registers.
    pub values: Option<BTreeMap<PcrIndex, Sha256Digest>>,
    /// Bytes of the event log.
    pub log: Option<Vec<u8>>,
}

/// By what the next boot is judged beside the files of [`NextbootArgs::accepted`].
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the three that there are")]
pub enum Judge {
    /// Nothing: without files there is no verdict.
    Nobody,
    /// Images that a server approved.
    Approved(Vec<ApprovedImage>),
    /// Without files, the boot that runs now.
    RunningBoot,
}

/// Predicts the next boot, compares it with the running one, and judges it.
///
/// # Errors
/// A file cannot be read, or the boot cannot be predicted at all. That the machine would not start a
/// file is a verdict, not an error.
pub fn foretell(args: &NextbootArgs, running: &Running, judge: Judge) -> anyhow::Result<NextBoot> {
    let prediction = match predicted(args) {
        Ok(prediction) => prediction,
        Err(error) => return blocked(error),
    };
    let next = compared(running, prediction)?;
    let pinned: PcrSet = args.pin_pcrs.iter().copied().collect();
    match judge {
        Judge::Nobody if args.accepted.is_empty() => Ok(next),
        Judge::RunningBoot if args.accepted.is_empty() => Ok(next.beside_the_running_boot(pinned)),
        Judge::Approved(images) => judged(args, next, images, pinned),
        Judge::Nobody | Judge::RunningBoot => judged(args, next, Vec::new(), pinned),
    }
}

/// Reads the values of registers as `tpm2_pcrread` prints them.
///
/// # Errors
/// The file cannot be read, or is something else.
pub fn pcr_values(path: &Path) -> anyhow::Result<BTreeMap<PcrIndex, Sha256Digest>> {
    let text = input::text(path, form::MAX_INPUT as u64)?;
    form::read_pcrread(&text).with_context(|| path.display().to_string())
}

fn predicted(args: &NextbootArgs) -> anyhow::Result<Prediction> {
    let mut given = args.machine.clone();
    if given.efivars.is_none() && given.variable_store.is_none() {
        given.efivars = Some(EFIVARS.into());
    }
    let mut machine = boot::machine(&given)?;
    for file in &args.dbx_update {
        let update = input::read(file, MAX_UPDATE)?;
        let taken = machine.with_dbx_update(&update);
        machine = taken.with_context(|| file.display().to_string())?;
    }
    boot::predict(&args.image, &args.chain, &machine, Banks::SHA256)
}

/// What ends a boot before the kernel starts is the answer that was asked for.
fn blocked(error: anyhow::Error) -> anyhow::Result<NextBoot> {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<PredictError>());
    match cause {
        Some(cause) if cause.is_refusal() => {
            let file = cause.file().unwrap_or_default();
            let reason = std::error::Error::source(cause).map(chain);
            Ok(NextBoot::blocked(file, reason.unwrap_or_default()))
        }
        _ => Err(error),
    }
}

/// Beside the running boot.
fn compared(running: &Running, prediction: Prediction) -> anyhow::Result<NextBoot> {
    let parse = |bytes| {
        let log = EventLog::parse(bytes);
        log.context("the log of the running boot cannot be read")
    };
    let log = running.log.as_deref().map(parse).transpose()?;
    let prediction = match (&log, &running.values) {
        (Some(log), Some(values)) => with_firmware(prediction, log, values)?,
        _ => prediction,
    };
    let mut current = CurrentBoot::default();
    current.values = running.values.as_ref();
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

/// Beside what is accepted.
fn judged(
    args: &NextbootArgs,
    next: NextBoot,
    mut images: Vec<ApprovedImage>,
    pinned: PcrSet,
) -> anyhow::Result<NextBoot> {
    let now = SystemClock.now();
    let mut lists = Vec::new();
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
    Ok(next.judged(accepted, pinned))
}
