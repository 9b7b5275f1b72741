//! `tec image`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use tec_core::boot::{BootState, Pins};
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::{PublishError, UnpinnedInputs};
use tec_core::id::{ImageName, MachineId};
use tec_core::image::{ApprovedImage, ExpectedPcrs};
use tec_core::port::{AttemptLog, AuditSink, Clock as _, ImageRegistry};
use tec_core::store::Store;
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::boot;
use tec_support::boot::{ChainArgs, MachineArgs};
use tec_support::exit::{CodedError, OK};
use tec_tpm::compute::Banks;
use tec_tpm::output::{PredictionReport, UnpredictableRegisters, unpredictable_text};

use super::booted::{Booted, Review, booted};
use super::machine::all;
use super::pcr::bundle;
use super::{coded, input};
use crate::args::Consent;
use crate::consent::consented;
use crate::image::{
    ApproveArgs, ImageCommand, Origin, ProofArgs, UnpinnedImage, WithUnpinned, checked_by,
    image_state, last_image, render,
};
use crate::output::{Output, Table};
use crate::state::{Said, open, open_existing};

/// Largest file of computed values to read.
const MAX_PCRS_FILE: u64 = 4 << 20;

pub(crate) async fn image(
    state_dir: &Path,
    command: ImageCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        ImageCommand::Approve(args) => approve(state_dir, *args, output).await?,
        ImageCommand::List(_) => {
            let store = open_existing(state_dir)?;
            let images = list(&store).await?;
            let pins = Said::pins(state_dir)?;
            let table = image_table(&images).with_notes(&UnpinnedImage::among(&images, pins));
            let images: Vec<_> = images.into_iter().map(|image| shown(image, pins)).collect();
            output.table(&images, &table)?;
        }
        ImageCommand::Show { name } => {
            let image = find(&*open_existing(state_dir)?, &name).await?;
            let shown = shown(image, Said::pins(state_dir)?);
            let state = image_state(&shown.object);
            output.print(&shown, |shown| render(&shown.object, &state, shown))?;
        }
        ImageCommand::Revoke { name, consent } => {
            revoke(&*open_existing(state_dir)?, &name, consent, output).await?;
        }
    }
    Ok(OK)
}

async fn approve(state_dir: &Path, args: ApproveArgs, output: &Output) -> anyhow::Result<()> {
    let booted = match &args.origin.from_attempt {
        Some(attempt) => {
            let store = open_existing(state_dir)?;
            Some(booted(&store, Said::pins(state_dir)?, attempt).await?)
        }
        None => None,
    };
    let (values, review) = match booted {
        Some(Booted { reference, expected, review }) => {
            (Values { reference, ..Values::of_file(Path::new(""), expected) }, Some(review))
        }
        None => (values(&args.origin, &args.proof, &args.chain, &args.machine)?, None),
    };
    let chosen = args.expires_at();
    let now = SystemClock.now();
    let mut image = ApprovedImage::new(args.name, values.reference, values.expected, now);
    image.expires_at = [chosen, values.expires_at].into_iter().flatten().min();
    let (pins, inputs) = (Said::pins(state_dir)?, args.unpinned.inputs());
    // Before the store is created.
    flow::check_image(&image, pins, inputs).map_err(coded_refusal)?;
    let go = match &review {
        Some(review) => consented(&review.lines(), args.consent)?,
        None => !args.consent.dry_run.dry_run,
    };
    let state = if go {
        let store = open(state_dir)?;
        flow::publish_image(&*store, &*store, &image, pins, inputs).await?;
        image_state(&image)
    } else {
        "would be approved".to_owned()
    };
    let image = shown(image, pins);
    let approval = Approval { image, unpredictable: values.unpredictable, review };
    output.print(&approval, |Approval { image, unpredictable, .. }| {
        render(&image.object, &state, image) + &unpredictable_text(unpredictable)
    })
}

fn shown(image: ApprovedImage, pins: Pins) -> WithUnpinned<ApprovedImage> {
    WithUnpinned::new(checked_by(pins, &image.expected), image)
}

/// Adds its code to a refusal that an admin can accept.
fn coded_refusal(error: PublishError) -> anyhow::Error {
    match &error {
        PublishError::Unpinned { image, .. } => {
            let context = format!("cannot approve image {image}");
            CodedError::caused(Code::ImageUnpinned, context, error).into()
        }
        _ => error.into(),
    }
}

async fn list(store: &Store) -> anyhow::Result<Vec<ApprovedImage>> {
    let images = ImageRegistry::list(store).await;
    Ok(images.map_err(coded(Code::StoreUnavailable, "list the images"))?)
}

/// Approves an image without any further flags.
pub(crate) async fn approve_plain(
    (images, audit): (&dyn ImageRegistry, &dyn AuditSink),
    (name, path): (ImageName, &Path),
    (pins, inputs): (Pins, UnpinnedInputs),
) -> anyhow::Result<ApprovedImage> {
    /// The defaults of those flags.
    #[derive(clap::Parser)]
    struct Unsaid {
        #[command(flatten)]
        origin: Origin,
        #[command(flatten)]
        proof: ProofArgs,
        #[command(flatten)]
        chain: ChainArgs,
        #[command(flatten)]
        machine: MachineArgs,
    }
    let words = [OsStr::new("approve"), OsStr::new("--"), path.as_os_str()];
    let unsaid = <Unsaid as clap::Parser>::try_parse_from(words)?;
    let values = values(&unsaid.origin, &unsaid.proof, &unsaid.chain, &unsaid.machine)?;
    let now = SystemClock.now();
    let image = ApprovedImage::new(name, values.reference, values.expected, now);
    let published = flow::publish_image(images, audit, &image, pins, inputs).await;
    published.map_err(coded_refusal)?;
    Ok(image)
}

/// Values with their source.
struct Values {
    reference: String,
    expected: ExpectedPcrs,
    /// Expiry that came with the values.
    expires_at: Option<Timestamp>,
    unpredictable: Vec<UnpredictableRegisters>,
}

/// An approval as printed, with the registers that it does not cover.
#[derive(Serialize)]
struct Approval {
    #[serde(flatten)]
    image: WithUnpinned<ApprovedImage>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unpredictable: Vec<UnpredictableRegisters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    review: Option<Review>,
}

impl Values {
    fn of_file(path: &Path, expected: ExpectedPcrs) -> Self {
        Self {
            reference: path.display().to_string(),
            expected,
            expires_at: None,
            unpredictable: Vec::new(),
        }
    }
}

fn values(
    origin: &Origin,
    proof: &ProofArgs,
    chain: &ChainArgs,
    machine: &MachineArgs,
) -> anyhow::Result<Values> {
    if let Some(path) = &origin.pcrs {
        return Ok(Values::of_file(path, read_pcrs(path)?));
    }
    if let Some(path) = &origin.bundle {
        let bundle = bundle::verify(path, proof)?.into_bundle();
        return Ok(Values {
            reference: bundle.image.to_string(),
            expires_at: Some(bundle.expires_at),
            ..Values::of_file(path, bundle.expected)
        });
    }
    let path = origin.image.as_deref().context("no image was given")?;
    let machine = boot::machine(machine)?;
    let prediction = boot::predict(path, chain, &machine, Banks::SHA256)?;
    Ok(Values {
        unpredictable: PredictionReport::new(&prediction, boot::remedy).unpredictable,
        ..Values::of_file(path, prediction.expected())
    })
}

fn read_pcrs(path: &Path) -> anyhow::Result<ExpectedPcrs> {
    let refuse = |why: String| {
        CodedError::new(Code::ImageUnreadable, format!("read {}: {why}", path.display()))
    };
    let text = input::text(path, MAX_PCRS_FILE).map_err(|error| refuse(format!("{error:#}")))?;
    let expected: ExpectedPcrs =
        serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    Ok(ExpectedPcrs::new(expected.pcrs))
}

async fn find(store: &Store, name: &ImageName) -> anyhow::Result<ApprovedImage> {
    ImageRegistry::find(store, name)
        .await
        .map_err(coded(Code::StoreUnavailable, format!("look up image {name}")))?
        .ok_or_else(|| {
            CodedError::new(Code::ImageUnknown, format!("there is no image {name}")).into()
        })
}

fn image_table(images: &[ApprovedImage]) -> Table {
    let row = |image: &ApprovedImage| {
        let pcrs: Vec<_> = image.expected.pcrs.iter().map(|pcr| pcr.id.to_string()).collect();
        vec![image.name.to_string(), image_state(image), pcrs.join(","), image.reference.clone()]
    };
    Table::new(&["IMAGE", "STATE", "PCRS", "FROM"], images.iter().map(row))
}

/// Machines whose last good boot was of this image or contained parts of it: revoking it locks them out at
/// their next boot, unless another approval covers them.
async fn on_image(store: &Store, name: &ImageName) -> anyhow::Result<Vec<OnImage>> {
    let mut on_it = Vec::new();
    for machine in all(store).await? {
        let attempts = store
            .latest(Some(machine.id), 16)
            .await
            .map_err(coded(Code::StoreUnavailable, "look up the attempts"))?;
        let last_good = attempts.into_iter().find(|a| a.ladder.is_released());
        let booted = last_good.and_then(|attempt| attempt.booted);
        let booted = booted.filter(|state| state.images().any(|image| image == name));
        on_it.extend(booted.map(|booted| OnImage { machine: machine.id, booted }));
    }
    Ok(on_it)
}

/// A machine, and what it booted last.
struct OnImage {
    machine: MachineId,
    booted: BootState,
}

async fn revoke(
    store: &Store,
    name: &ImageName,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let image = find(store, name).await?;
    let machines = on_image(store, name).await?;
    let now = SystemClock.now();
    let is_last = list(store).await?.iter().all(|other| other.name == *name || !other.is_live(now));
    let dry_run = consent.dry_run.dry_run;
    let go = if is_last && image.is_live(now) {
        consented(&[last_image(name)], consent)?
    } else {
        !dry_run
    };
    if go {
        flow::revoke_image(store, &SystemClock, name)
            .await
            .map_err(coded(Code::StoreUnavailable, format!("revoke image {name}")))?;
    }
    let ids: Vec<_> = machines.iter().map(|on| on.machine).collect();
    let value = serde_json::json!({ "image": name, "dry_run": dry_run, "last_booted_by": ids });
    output.print(&value, |_| {
        let mut text = format!("image {name} {}revoked", if dry_run { "would be " } else { "" });
        for OnImage { machine, booted } in &machines {
            let _ = write!(text, "\n  machine {machine}: last {}", booted.sentence());
        }
        text
    })
}
