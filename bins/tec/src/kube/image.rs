//! Images of a namespace, as `tec image` shows them, and their approval by reference.

use anyhow::Context as _;
use clap::ValueEnum;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::api::PostParams;
use kube::{Api, Resource as _};
use serde_json::json;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::id::ImageName;
use tec_core::pcr::PcrIndex;
use tec_k8s::api::{
    ApprovedImage, ApprovedImageSpec, BootSpec, ConditionKind, GROUP, Machine, PinsKind, SecureBoot,
};
use tec_support::boot::{ChainArgs, MachineArgs, SecureBootState};
use tec_support::exit::CodedError;

use super::access::{Cluster, coded};
use super::{condition, is_true};
use crate::image::{Approval, ApproveArgs, OnImage};
use crate::output::Output;

pub(crate) async fn approvals(cluster: &Cluster) -> anyhow::Result<Vec<Approval>> {
    let objects = cluster.list::<ApprovedImage>().await?;
    // Not everyone who may read images may read the cluster object.
    let status = cluster.cluster_object().await.ok().and_then(|object| object.status);
    let kind = status.and_then(|status| status.pins).unwrap_or_default();
    Ok(objects.iter().filter_map(|object| approval(object, kind)).collect())
}

/// What the status says of the image. An approval counts once it is committed.
fn approval(object: &ApprovedImage, kind: PinsKind) -> Option<Approval> {
    let status = object.status.clone().unwrap_or_default();
    let pinned = status.pinned_pcrs.iter().filter_map(|index| PcrIndex::new(*index).ok());
    let pins = match (kind, PinnedPcrs::new(pinned.collect())) {
        (PinsKind::Predicted, _) | (_, Err(_)) => Pins::Predicted,
        (_, Ok(pinned)) => Pins::Exactly(pinned),
    };
    let held_back = match condition(&status.conditions, ConditionKind::Committed.as_str()) {
        Some(committed) if committed.status == "True" => None,
        Some(committed) => Some(format!("{} {}", committed.reason, committed.message)),
        None => Some("its measurements are not known yet".to_owned()),
    };
    let mut approval = Approval::new(object.to_core().ok()?, pins);
    approval.held_back = held_back;
    Some(approval)
}

/// An expired approval is no longer committed, so the time is not checked here.
pub(super) fn is_live(image: &ApprovedImage) -> bool {
    let conditions = image.status.as_ref().map(|status| &status.conditions);
    image.spec.revoked_at.is_none()
        && conditions.is_some_and(|all| is_true(all, ConditionKind::Committed))
}

/// Approves an image of a registry: a Job determines its measurements.
pub(crate) async fn approve(
    cluster: &Cluster,
    args: ApproveArgs,
    output: &Output,
) -> anyhow::Result<()> {
    let mut spec = ApprovedImageSpec::default();
    spec.expires_at = args.expires_at().map(|end| end.to_string());
    let image = args.origin.image.context("no image was given")?;
    spec.image = image.to_string_lossy().into_owned();
    spec.pull_secret = args.pull_secret;
    spec.first_boot = args.first_boot;
    spec.boot = boot(args.chain, args.machine);
    let (name, dry_run) = (args.name, args.consent.dry_run);
    let object = ApprovedImage::new(name.as_str(), spec);
    // The resource's own rule accepts anything after `@sha256:`.
    object.digest().map_err(|error| {
        let context = format!("approve {}", object.spec.image);
        CodedError::caused(Code::ClusterRefused, context, error)
    })?;
    cluster.create(&object, dry_run).await?;
    let dry_run = dry_run.dry_run;
    let value = serde_json::json!({ "image": name, "action": "approved", "dry_run": dry_run });
    let would = if dry_run { "would be " } else { "" };
    output.print(&value, |_| format!("image {name} {would}approved"))
}

/// How the flags say that the image boots, if they say anything.
fn boot(chain: ChainArgs, machine: MachineArgs) -> Option<BootSpec> {
    fn name(version: &impl ValueEnum) -> Option<String> {
        version.to_possible_value().map(|value| value.get_name().to_owned())
    }
    let mut boot = BootSpec::default();
    boot.kernel = chain.kernel;
    boot.firmware_starts = chain.firmware_starts;
    boot.shim_starts = chain.shim_starts;
    boot.shim_profile = chain.shim_profile.as_ref().and_then(name);
    boot.grub_profile = chain.grub_profile.as_ref().and_then(name);
    boot.stub_profile = chain.stub_profile.as_ref().and_then(name);
    boot.secure_boot = machine.secure_boot.map(|state| match state {
        SecureBootState::Off => SecureBoot::Disabled,
        _ => SecureBoot::Enabled,
    });
    boot.grub_device = machine.grub_device;
    boot.grub_root = machine.grub_root;
    (boot != BootSpec::default()).then_some(boot)
}

/// Refuses before anything is replaced: without this right, an approval would lose its values.
pub(crate) async fn may_write_values(cluster: &Cluster) -> anyhow::Result<()> {
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "metadata": {}, "spec": { "resourceAttributes": {
            "namespace": cluster.namespace, "verb": "patch", "group": GROUP,
            "resource": ApprovedImage::plural(&()), "subresource": "status",
        }},
    });
    let review: SelfSubjectAccessReview = serde_json::from_value(review)?;
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let asked = "ask for the right to patch approvedimages/status".to_owned();
    let answer = reviews.create(&PostParams::default(), &review).await.map_err(coded(asked))?;
    if !answer.status.is_some_and(|status| status.allowed) {
        let why = "approve values: this takes the right to patch approvedimages/status";
        return Err(CodedError::new(Code::ClusterForbidden, why).into());
    }
    Ok(())
}

/// The machines that last booted the image, or parts of it.
pub(crate) async fn booted(cluster: &Cluster, name: &ImageName) -> anyhow::Result<Vec<OnImage>> {
    let machines = cluster.list::<Machine>().await?;
    let on_it = machines.iter().filter_map(|machine| {
        let images = machine.status.as_ref()?.image.clone()?;
        let has_it = images.split(", ").any(|image| image == name.as_str());
        has_it.then_some(OnImage { machine: machine.machine_id().ok()?, booted: images })
    });
    Ok(on_it.collect())
}
