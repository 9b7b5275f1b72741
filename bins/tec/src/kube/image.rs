//! `tec image` on a cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::json;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::id::ImageName;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::port::{Clock as _, chain};
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, ConditionKind, Machine};
use tec_support::SystemClock;
use tec_support::exit::{CodedError, OK};

use super::access::Cluster;
use super::{cell, cells, condition, is_true};
use crate::args::{Consent, DryRun};
use crate::consent::consented;
use crate::image::{
    ImageCommand, UnpinnedImage, WithUnpinned, checked_by, image_state, last_image, render,
};
use crate::output::{Output, Table};

pub(crate) async fn image(
    cluster: &Cluster,
    command: ImageCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        ImageCommand::List(_) => {
            let images = cluster.list::<ApprovedImage>().await?;
            let table = image_table(&images).with_notes(&unpinned_images(&images));
            let images: Vec<_> = images.into_iter().map(with_unpinned).collect();
            output.table(&images, &table)?;
        }
        ImageCommand::Show { name } => show(cluster, &name, output).await?,
        ImageCommand::Approve(args) => {
            let mut spec = ApprovedImageSpec::default();
            spec.expires_at = args.expires_at().map(|end| end.to_string());
            let image = args.origin.image.context(
                "on Kubernetes, images are approved by reference, `registry/name@sha256:…`",
            )?;
            spec.image = image.to_string_lossy().into_owned();
            spec.pull_secret = args.pull_secret;
            approve(cluster, &args.name, spec, args.consent.dry_run).await?;
            say(output, "approved", args.consent.dry_run, &args.name, &[])?;
        }
        ImageCommand::Revoke { name, consent } => {
            revoke(cluster, &name, consent, output).await?;
        }
    }
    Ok(OK)
}

#[derive(Serialize)]
struct Shown {
    image: WithUnpinned<ApprovedImage>,
    /// IDs of the machines that last booted it.
    last_booted_by: Vec<String>,
    /// The same machines as displayed.
    #[serde(skip)]
    labels: Vec<String>,
}

async fn show(cluster: &Cluster, name: &ImageName, output: &Output) -> anyhow::Result<()> {
    let image = cluster.get::<ApprovedImage>(name.as_str()).await?;
    let machines = cluster.list::<Machine>().await?;
    let booted = booted(&machines, name);
    let labels = booted.iter().map(|machine| machine.label()).collect();
    let shown = Shown { image: with_unpinned(image), last_booted_by: ids(&booted), labels };
    output.print(&shown, detail)
}

fn detail(shown: &Shown) -> String {
    let object = &shown.image.object;
    let status = object.status.clone().unwrap_or_default();
    let mut text = match object.to_core() {
        Ok(image) => render(&image, &image_state(&image), &shown.image),
        Err(error) => format!("image {}  {}\n", object.name_any(), chain(&error)),
    };
    let pinned: Vec<_> = status.pinned_pcrs.iter().map(ToString::to_string).collect();
    let pinned = if pinned.is_empty() { "none".to_owned() } else { pinned.join(", ") };
    let _ = writeln!(text, "  pinned PCRs: {pinned}");
    if let Some(committed) = condition(&status.conditions, ConditionKind::Committed.as_str()) {
        let (is, reason) = (&committed.status, &committed.reason);
        let _ = writeln!(text, "  Committed={is} {reason} {}", committed.message);
    }
    for machine in &shown.labels {
        let _ = writeln!(text, "  last booted by machine {machine}");
    }
    text
}

/// What is not checked of an image's boots, according to its status. While nothing is known of them, none
/// of them gets a key.
fn with_unpinned(object: ApprovedImage) -> WithUnpinned<ApprovedImage> {
    let status = object.status.clone().unwrap_or_default();
    let pinned = status.pinned_pcrs.iter().filter_map(|index| PcrIndex::new(*index).ok());
    let pins = PinnedPcrs::new(pinned.collect()).map_or(Pins::Predicted, Pins::Exactly);
    let checked_by = match status.pcrs {
        unknown if unknown.is_empty() => BTreeMap::new(),
        pcrs => checked_by(pins, &ExpectedPcrs::new(pcrs)),
    };
    WithUnpinned::new(checked_by, object)
}

/// An expired approval is no longer committed, so the time is not checked here.
pub(super) fn is_live(image: &ApprovedImage) -> bool {
    let conditions = image.status.as_ref().map(|status| &status.conditions);
    image.spec.revoked_at.is_none()
        && conditions.is_some_and(|all| is_true(all, ConditionKind::Committed))
}

/// The live images of whose boots parts are not checked.
pub(super) fn unpinned_images(images: &[ApprovedImage]) -> Vec<UnpinnedImage> {
    let live = images.iter().filter(|image| is_live(image));
    let of = |image: &ApprovedImage| {
        UnpinnedImage::of(&image.name_any(), with_unpinned(image.clone()).unpinned)
    };
    live.filter_map(of).collect()
}

async fn approve(
    cluster: &Cluster,
    name: &ImageName,
    spec: ApprovedImageSpec,
    dry_run: DryRun,
) -> anyhow::Result<()> {
    let object = ApprovedImage::new(name.as_str(), spec);
    // The resource's own rule accepts anything after `@sha256:`.
    object.digest().map_err(|error| {
        let context = format!("approve {}", object.spec.image);
        CodedError::caused(Code::ClusterRefused, context, error)
    })?;
    cluster.create(&object, dry_run).await?;
    Ok(())
}

async fn revoke(
    cluster: &Cluster,
    name: &ImageName,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let images = cluster.list::<ApprovedImage>().await?;
    let is_live = |image: &&ApprovedImage| {
        image.to_core().is_ok_and(|image| image.is_live(SystemClock.now()))
    };
    let mut live = images.iter().filter(is_live).map(ApprovedImage::name_any);
    if live.next().is_some_and(|only| only == name.as_str()) && live.next().is_none() {
        consented(&[last_image(name)], consent)?;
    }
    let change = json!({"spec": {"revokedAt": SystemClock.now().to_string()}});
    // Read before the revocation, to show which machines it affects.
    let machines = cluster.list::<Machine>().await?;
    let dry_run = consent.dry_run;
    let changed = cluster.merge::<ApprovedImage>(name.as_str(), &change, dry_run);
    changed.await?;
    say(output, "revoked", dry_run, name, &booted(&machines, name))
}

/// The machines that last booted the image, or parts of it.
fn booted<'a>(machines: &'a [Machine], name: &ImageName) -> Vec<&'a Machine> {
    let booted_it = |machine: &&Machine| {
        let image = machine.status.as_ref().and_then(|status| status.image.as_deref());
        image.is_some_and(|images| images.split(", ").any(|image| image == name.as_str()))
    };
    machines.iter().filter(booted_it).collect()
}

fn ids(machines: &[&Machine]) -> Vec<String> {
    machines.iter().map(|machine| machine.spec.id.clone()).collect()
}

fn say(
    output: &Output,
    done: &str,
    dry_run: DryRun,
    name: &ImageName,
    machines: &[&Machine],
) -> anyhow::Result<()> {
    let value = json!({
        "image": name, "action": done, "dry_run": dry_run.dry_run, "last_booted_by": ids(machines),
    });
    let would = if dry_run.dry_run { "would be " } else { "" };
    output.print(&value, |_| {
        let mut lines = vec![format!("image {name} {would}{done}")];
        lines.extend(
            machines.iter().map(|machine| format!("  last booted by machine {}", machine.label())),
        );
        lines.join("\n")
    })
}

fn image_table(images: &[ApprovedImage]) -> Table {
    let row = |image: &ApprovedImage| {
        let status = image.status.clone().unwrap_or_default();
        let [committed, reason] = cells(&status.conditions, ConditionKind::Committed.as_str());
        vec![
            image.name_any(),
            committed,
            reason,
            cell(image.spec.expires_at.as_ref()),
            cell(image.spec.revoked_at.as_ref()),
            image.spec.image.clone(),
        ]
    };
    let head = ["NAME", "COMMITTED", "REASON", "EXPIRES", "REVOKED", "IMAGE"];
    Table::new(&head, images.iter().map(row))
}
