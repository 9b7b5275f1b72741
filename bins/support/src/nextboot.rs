//! Predicts what the next boot of a machine will measure, and whether it will be refused: for the admin's
//! program, and for the node itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::{LiveImages, Pins, words_after};
use tec_core::digest::Sha256Digest;
use tec_core::id::ImageName;
use tec_core::image::ApprovedImage;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};
use tec_core::port::{Clock as _, chain};
use tec_tpm::combine::MixedStates;
use tec_tpm::compute::{Banks, Guid, PredictError, Prediction, ShimError};
use tec_tpm::event_log::EventLog;
use tec_tpm::output as form;
use tec_tpm::output::{Accepted, CurrentBoot, NextBoot, PredictionReport, ReferenceValues};

use crate::boot::{ChainArgs, MachineArgs};
use crate::pins::parse_pcr;
use crate::{SystemClock, boot, input};

mod grub;
mod keys;
mod shim;

/// Where Linux exposes the variables of the machine.
const EFIVARS: &str = "/sys/firmware/efi/efivars";
/// Registers that only the firmware extends: they stay the same as long as the firmware does.
const FIRMWARE: [u8; 6] = [0, 1, 2, 3, 5, 6];
/// Largest update of keys to read; real ones of dbx are about 25 KiB.
const MAX_UPDATE: u64 = 1 << 20;

/// What boots next, on which machine, and what is accepted.
#[derive(Clone, Debug, Args)]
#[non_exhaustive]
pub struct NextbootArgs {
    /// Image that boots next: directory, raw disk, FAT or ext4 file system, tar stream, OCI layout or unified kernel
    /// image; - for standard input
    pub image: PathBuf,
    /// Which parts of the image boot.
    #[command(flatten)]
    pub chain: ChainArgs,
    /// The machine that it boots on.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// dbx update that the firmware will have applied by then: signature lists, with or without the
    /// preceding signature (.esl, .auth, DBXUpdate.bin); repeatable
    #[arg(long, value_name = "FILE", help_heading = "The machine")]
    pub dbx_update: Vec<PathBuf>,
    /// Update of db that the firmware will have applied by then, in the same forms; repeatable
    #[arg(long, value_name = "FILE", help_heading = "The machine")]
    pub db_update: Vec<PathBuf>,
    /// Update of KEK that the firmware will have applied by then, in the same forms; repeatable
    #[arg(long, value_name = "FILE", help_heading = "The machine")]
    pub kek_update: Vec<PathBuf>,
    /// Shim that the machine runs now, if the image has a different one; tells the owner's keys from the
    /// vendor's (default: the one below /boot/efi that the event log lists)
    #[arg(long, value_name = "FILE", help_heading = "The machine")]
    pub running_shim: Option<PathBuf>,
    /// File with accepted values: of an image, a bundle, or a Trustee list; repeatable. States between images
    /// are accepted, too
    #[arg(long, value_name = "[NAME=]FILE", help_heading = "What is accepted")]
    pub accepted: Vec<String>,
    /// Register that must have an accepted value; repeatable (default: as a server by default, whichever of
    /// PCR 4, 8, 9, 11, 12, 13 and 14 an image's prediction states)
    #[arg(
        long = "pin-pcr",
        value_name = "INDEX",
        value_parser = parse_pcr,
        help_heading = "What is accepted"
    )]
    pub pin_pcrs: Vec<PcrIndex>,
}

impl NextbootArgs {
    /// Which registers must have an accepted value.
    pub fn pins(&self) -> Pins {
        let listed = PinnedPcrs::new(self.pin_pcrs.iter().copied().collect());
        listed.map_or(Pins::Predicted, Pins::Exactly)
    }
}

/// The current boot, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Running {
    /// Values of the registers.
    pub values: Option<BTreeMap<PcrIndex, Sha256Digest>>,
    /// Bytes of the event log.
    pub log: Option<Vec<u8>>,
}

/// What the next boot is evaluated against, in addition to the files in [`NextbootArgs::accepted`].
#[derive(Clone, Debug)]
pub enum Judge {
    /// Nothing: without files there is no verdict.
    Nobody,
    /// Images approved by a server.
    Approved(Vec<ApprovedImage>),
    /// The current boot, if there are no files.
    RunningBoot,
}

/// Predicts the next boot, compares it with the current one, and decides whether it would be
/// accepted.
/// Errors: A file cannot be read, or the boot cannot be predicted at all. A file that the machine would refuse to
/// start is a verdict, not an error.
pub fn foretell(args: &NextbootArgs, running: &Running, judge: Judge) -> anyhow::Result<NextBoot> {
    let prediction = match predicted(args, running) {
        Ok(prediction) => prediction,
        Err(error) => return blocked(error),
    };
    let next = compared(running, &prediction)?;
    match judge {
        Judge::Nobody if args.accepted.is_empty() => Ok(next),
        Judge::RunningBoot if args.accepted.is_empty() => {
            Ok(next.beside_the_running_boot(args.pins()))
        }
        Judge::Approved(images) => judged(args, next, images),
        Judge::Nobody | Judge::RunningBoot => judged(args, next, Vec::new()),
    }
}

/// Reads register values in the format of `tpm2_pcrread`.
pub fn pcr_values(path: &Path) -> anyhow::Result<BTreeMap<PcrIndex, Sha256Digest>> {
    let text = input::text(path, form::MAX_INPUT as u64)?;
    form::read_pcrread(&text).with_context(|| path.display().to_string())
}

fn predicted(args: &NextbootArgs, running: &Running) -> anyhow::Result<Prediction> {
    let mut given = args.machine.clone();
    let is_this_machine = given.efivars.is_none() && given.variable_store.is_none();
    if is_this_machine {
        given.efivars = Some(EFIVARS.into());
    }
    let log = running.log.as_deref();
    if let Some(log) = log {
        let devices = grub::Devices::of(log);
        given.grub_device = given.grub_device.or(devices.own);
        given.grub_root = given.grub_root.or(devices.other);
    }
    let mut machine = boot::machine(&given)?;
    for (files, variable, vendor) in [
        (&args.dbx_update, "dbx", Guid::SECURITY_DATABASE),
        (&args.db_update, "db", Guid::SECURITY_DATABASE),
        (&args.kek_update, "KEK", Guid::GLOBAL),
    ] {
        for file in files {
            let update = input::read(file, MAX_UPDATE)?;
            let updated = machine.with_update(variable, vendor, &update);
            machine = updated.with_context(|| file.display().to_string())?;
        }
    }
    if let (Some(log), None) = (log, given.secure_boot) {
        keys::check(&machine, log)?;
    }
    let shim = match &args.running_shim {
        Some(file) => Some(shim::given(file, log)?),
        None if is_this_machine => log.and_then(|log| shim::found(Path::new(shim::ESP), log)),
        None => None,
    };
    if let Some(shim) = shim {
        machine = machine.with_running_shim(shim);
    }
    boot::predict(&args.image, &args.chain, &machine, Banks::SHA256).map_err(with_remedy)
}

/// Names the flag that supplies what is missing.
fn with_remedy(error: anyhow::Error) -> anyhow::Error {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<ShimError>());
    match cause {
        Some(ShimError::ForeignMirror) => error
            .context("cannot predict this boot (pass the shim that runs now with --running-shim)"),
        _ => error,
    }
}

/// A boot that stops before the kernel starts is a valid answer.
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

/// Compares with the current boot.
fn compared(running: &Running, prediction: &Prediction) -> anyhow::Result<NextBoot> {
    let parse = |bytes| {
        let log = EventLog::parse(bytes);
        log.context("cannot read the log of the current boot")
    };
    let log = running.log.as_deref().map(parse).transpose()?;
    let here = match &log {
        Some(log) => as_on_this_machine(prediction.clone(), log, running.values.as_ref())?,
        None => prediction.clone(),
    };
    let mut current = CurrentBoot::default();
    current.values = running.values.as_ref();
    current.log = log.as_ref();
    let report = PredictionReport::new(&here, boot::remedy);
    Ok(NextBoot::new(report, current)?.stated_as(prediction))
}

/// Adds the registers of the firmware, and puts PCR 4 and 7 into its form, as far as the log proves their values. The
/// log alone is good enough for the form, in which it is compared.
fn as_on_this_machine(
    prediction: Prediction,
    log: &EventLog<'_>,
    values: Option<&BTreeMap<PcrIndex, Sha256Digest>>,
) -> anyhow::Result<Prediction> {
    let replayed = log.replay_sha256()?;
    let Some(values) = values else {
        let all = PcrIndex::all().collect();
        return Ok(prediction.in_form_of(&log.clone().verify(&replayed, all)?));
    };
    let quoted = PcrValues::predicted(|pcr| values.get(&pcr).copied());
    let proven = |pcr: &PcrIndex| {
        let (before, now) = (replayed.value(*pcr), quoted.value(*pcr));
        now == before || !words_after(*pcr, before, now, 0).is_empty()
    };
    let proven: PcrSet = PcrIndex::all().filter(proven).collect();
    if proven.is_empty() {
        return Ok(prediction);
    }
    let verified = log.clone().verify(&replayed, proven)?;
    let firmware = FIRMWARE.iter().filter_map(|index| PcrIndex::new(*index).ok()).collect();
    Ok(prediction.with_recorded(&verified, firmware).in_form_of(&verified))
}

/// Decides whether what is accepted includes the boot.
fn judged(
    args: &NextbootArgs,
    next: NextBoot,
    mut images: Vec<ApprovedImage>,
) -> anyhow::Result<NextBoot> {
    let now = SystemClock.now();
    let mut lists = Vec::new();
    for given in &args.accepted {
        let (name, path) = input::named_file(given);
        let text = input::text(path, form::MAX_INPUT as u64)?;
        // A list is an array and a message has a payload; anything else must be a label.
        if let Ok(list) = ReferenceValues::read_config_map(&text) {
            lists.push((name, list));
        } else if let Ok(list) = ReferenceValues::read_message(&text) {
            lists.push((name, list));
        } else {
            let label = form::read_label(&text);
            let label = label.with_context(|| path.display().to_string())?;
            let name: ImageName = name.parse().with_context(|| {
                format!("{name:?} is not a valid image name (pass NAME={given})")
            })?;
            images.push(ApprovedImage::new(name, given, label, now));
        }
    }
    let accepted = Accepted {
        states: &MixedStates::default(),
        live: &LiveImages::at(&images, now),
        lists: &lists,
    };
    Ok(next.judged(accepted, args.pins()))
}
