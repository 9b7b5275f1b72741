//! `tec image`.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::{PublishError, UnpinnedInputs};
use tec_core::id::ImageName;
use tec_core::image::{ApprovedImage, ExpectedPcrs};
use tec_core::port::{AuditSink, Clock as _, ImageRegistry};
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::boot;
use tec_support::boot::{ChainArgs, MachineArgs};
use tec_support::exit::{CodedError, OK};
use tec_tpm::compute::Banks;
use tec_tpm::output::{PredictionReport, UnpredictableRegisters, shell_text, unpredictable_text};

use super::booted::{Booted, Review, booted};
use super::input;
use super::pcr::bundle;
use crate::anchor::{Anchor, Place};
use crate::args::{Access, Consent};
use crate::consent::consented;
use crate::image::{
    Approval, ApproveArgs, ImageCommand, OnImage, Origin, ProofArgs, UnpinnedImage, is_reference,
    last_image,
};
use crate::kube;
use crate::kube::access::Cluster;
use crate::output::{Output, Table};
use crate::state::{Said, open};

/// Largest file of computed values to read.
const MAX_PCRS_FILE: u64 = 4 << 20;

pub(crate) async fn image(
    state_dir: &Path,
    access: Option<&Access>,
    command: ImageCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let anchor = async || Anchor::open(state_dir, access).await;
    match command {
        ImageCommand::Approve(args) => match (access, &args.origin.image) {
            (Some(access), Some(image)) if is_reference(image) => {
                let cluster = Cluster::connect(access).await?;
                kube::image::approve(&cluster, *args, output).await?;
            }
            _ => approve((state_dir, access), *args, output).await?,
        },
        ImageCommand::List(_) => {
            let images = anchor().await?.approvals().await?;
            let table = image_table(&images).with_notes(&UnpinnedImage::among(&images));
            output.table(&images, &table)?;
        }
        ImageCommand::Show { name } => {
            let anchor = anchor().await?;
            let image = find(&anchor, &name).await?;
            let last_booted_by = on_image(&anchor, &name).await?;
            let shown = Shown { image, last_booted_by };
            output.print(&shown, |shown| {
                shown.image.text(&shown.image.state()) + &OnImage::lines(&shown.last_booted_by)
            })?;
        }
        ImageCommand::Revoke { name, consent } => {
            revoke(&anchor().await?, &name, consent, output).await?;
        }
    }
    Ok(OK)
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    image: Approval,
    last_booted_by: Vec<OnImage>,
}

/// Approves values that are known here. On a cluster they are in the status of the object, so the operator
/// computes none.
async fn approve(
    (state_dir, access): (&Path, Option<&Access>),
    args: ApproveArgs,
    output: &Output,
) -> anyhow::Result<()> {
    let anchor = match (access, &args.origin.from_attempt) {
        // The first approval creates the store.
        (None, None) => None,
        _ => Some(Anchor::open(state_dir, access).await?),
    };
    let pins = match &anchor {
        Some(anchor) => anchor.checked().await?,
        None => Said::pins(state_dir)?,
    };
    let attempt = args.origin.from_attempt.as_ref().zip(anchor.as_ref());
    let (values, review) = if let Some((attempt, anchor)) = attempt {
        let Booted { reference, expected, review } = booted(anchor, pins, attempt).await?;
        (Values { reference, expected, ..Values::default() }, Some(review))
    } else {
        let known = values(&args.origin, &args.proof, &args.chain, &args.machine);
        let on_cluster = "an image of a registry is named by its digest, registry/name@sha256:…";
        (if access.is_some() { known.context(on_cluster)? } else { known? }, None)
    };
    let (chosen, inputs) = (args.expires_at(), args.inputs());
    let now = SystemClock.now();
    let mut image = ApprovedImage::new(args.name, values.reference, values.expected, now);
    image.expires_at = [chosen, values.expires_at].into_iter().flatten().min();
    image.expected.first_boot |= args.first_boot;
    // Before the store is created.
    flow::check_image(&image, pins, inputs).map_err(coded_refusal)?;
    let go = match &review {
        Some(review) => consented(&review.lines(), args.consent)?,
        None => !args.consent.dry_run.dry_run,
    };
    if go {
        let anchor = match anchor {
            Some(anchor) => anchor,
            None => Anchor::directory(state_dir, open(state_dir)?),
        };
        if let Place::Namespace(cluster) = &anchor.place {
            kube::image::may_write_values(cluster).await?;
        }
        let ports = &*anchor.ports;
        match flow::publish_image(ports, ports, &image, pins, inputs).await {
            Err(PublishError::Store { source, .. }) => {
                return Err(anchor.failed(format!("approve image {}", image.name))(source).into());
            }
            published => published?,
        }
    }
    let image = Approval::new(image, pins);
    let state = if go { image.state() } else { "would be approved".to_owned() };
    let Values { unpredictable, shell_words, .. } = values;
    let approved = Approved { image, unpredictable, shell_words, review };
    output.print(&approved, |Approved { image, unpredictable, shell_words, .. }| {
        image.text(&state) + &unpredictable_text(unpredictable) + &shell_text(shell_words)
    })
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
#[derive(Default)]
struct Values {
    reference: String,
    expected: ExpectedPcrs,
    /// Expiry that came with the values.
    expires_at: Option<Timestamp>,
    unpredictable: Vec<UnpredictableRegisters>,
    shell_words: Vec<String>,
}

/// An approval as printed, with the registers that it does not state.
#[derive(Serialize)]
struct Approved {
    #[serde(flatten)]
    image: Approval,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unpredictable: Vec<UnpredictableRegisters>,
    /// Words of the command line with which the boot may give a shell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shell_words: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    review: Option<Review>,
}

impl Values {
    fn of_file(path: &Path, expected: ExpectedPcrs) -> Self {
        Self { reference: path.display().to_string(), expected, ..Self::default() }
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
        shell_words: prediction.shell_words(),
        ..Values::of_file(path, prediction.expected())
    })
}

fn read_pcrs(path: &Path) -> anyhow::Result<ExpectedPcrs> {
    let refuse = |why: String| {
        CodedError::new(Code::ImageUnreadable, format!("read {}: {why}", path.display()))
    };
    let text = input::text(path, MAX_PCRS_FILE).map_err(|error| refuse(format!("{error:#}")))?;
    let mut expected: ExpectedPcrs =
        serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    expected.pcrs.sort_by_key(|pcr| pcr.id);
    Ok(expected)
}

async fn find(anchor: &Anchor, name: &ImageName) -> anyhow::Result<Approval> {
    let found = anchor.approvals().await?.into_iter().find(|one| one.image.name == *name);
    let missing = || CodedError::new(Code::ImageUnknown, format!("there is no image {name}"));
    Ok(found.ok_or_else(missing)?)
}

fn image_table(images: &[Approval]) -> Table {
    let row = |one: &Approval| {
        let image = &one.image;
        let pcrs: Vec<_> = image.expected.pcrs.iter().map(|pcr| pcr.id.to_string()).collect();
        let (name, coverage) = (image.name.to_string(), one.coverage.to_string());
        vec![name, one.state(), pcrs.join(","), image.reference.clone(), coverage]
    };
    Table::new(&["IMAGE", "STATE", "PCRS", "FROM", "COVERAGE"], images.iter().map(row)).narrow(4)
}

/// Machines whose last good boot was of this image or contained parts of it: revoking it locks them out at
/// their next boot, unless another approval covers them.
async fn on_image(anchor: &Anchor, name: &ImageName) -> anyhow::Result<Vec<OnImage>> {
    if let Place::Namespace(cluster) = &anchor.place {
        return kube::image::booted(cluster, name).await;
    }
    let mut on_it = Vec::new();
    for known in anchor.known().await? {
        let machine = known.machine.id;
        let attempts = anchor.attempts.latest(Some(machine), 16).await;
        let attempts = attempts.map_err(anchor.failed("look up the attempts"))?;
        let last_good = attempts.into_iter().find(|a| a.ladder.is_released());
        let booted = last_good.and_then(|attempt| attempt.booted);
        let booted = booted.filter(|state| state.images().any(|image| image == name));
        on_it.extend(booted.map(|booted| OnImage { machine, booted: booted.sentence() }));
    }
    Ok(on_it)
}

async fn revoke(
    anchor: &Anchor,
    name: &ImageName,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let image = find(anchor, name).await?.image;
    let machines = on_image(anchor, name).await?;
    let is_other = |one: &Approval| one.image.name != *name && one.is_live();
    let is_last =
        image.is_live(SystemClock.now()) && !anchor.approvals().await?.iter().any(is_other);
    let dry_run = consent.dry_run.dry_run;
    let go = if is_last { consented(&[last_image(name)], consent)? } else { !dry_run };
    if go {
        let revoked = flow::revoke_image(&*anchor.ports, &SystemClock, name).await;
        revoked.map_err(anchor.failed(format!("revoke image {name}")))?;
    }
    let ids: Vec<_> = machines.iter().map(|on| on.machine).collect();
    let value = serde_json::json!({ "image": name, "dry_run": dry_run, "last_booted_by": ids });
    output.print(&value, |_| {
        let would = if dry_run { "would be " } else { "" };
        format!("image {name} {would}revoked\n{}", OnImage::lines(&machines))
    })
}
