//! Conditions, status and Events of a followed tag.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use tec_core::port::PortError;

use super::super::context::Context;
use super::super::report::{Said, resumed};
use super::decide::{Decision, Held, State};
use super::look::Look;
use crate::api::{ConditionKind, FollowedImage, FollowedVersion, Reason};
use crate::signal::Event;

/// How many machines a message names.
const NAMED: usize = 3;

/// Sets one condition and nothing else.
pub(super) async fn plainly(
    ctx: &Context,
    followed: &FollowedImage,
    said: (ConditionKind, Reason, String),
) -> Result<(), PortError> {
    write(ctx, followed, vec![said], json!({})).await
}

/// Writes what was found and done.
pub(super) async fn tag(
    ctx: &Context,
    followed: &FollowedImage,
    look: &Look,
    decision: &Decision,
    images: Vec<FollowedVersion>,
) -> Result<(), PortError> {
    let following = following(followed, look, decision);
    report(ctx, followed, &following).await;
    let mut said = vec![(ConditionKind::Following, following.0, following.1)];
    said.extend(old(followed, decision));
    let status = json!({
        "current": look.current,
        "currentBuiltAt": look.built_at.filter(|_| look.current.is_some()),
        "lastLook": look.at,
        "failedLooks": Some(look.failures).filter(|failures| *failures > 0),
        "images": images,
        "observedGeneration": followed.metadata.generation,
    });
    write(ctx, followed, said, status).await
}

/// The state of the tag. A look that was not due says nothing new about an earlier failure.
fn following(followed: &FollowedImage, look: &Look, decision: &Decision) -> (Reason, String) {
    if let Some(failure) = &look.failure {
        return failure.clone();
    }
    let mut known = followed.status.iter().flat_map(|status| &status.conditions);
    let known = known.find(|one| one.type_ == ConditionKind::Following.as_str());
    if let Some(known) = known.filter(|_| look.failures > 0) {
        let failures = [
            Reason::InvalidReference,
            Reason::RegistryUnreachable,
            Reason::RegistryDenied,
            Reason::TagMissing,
            Reason::TagUnreadable,
        ];
        if let Some(reason) = failures.into_iter().find(|one| one.as_str() == known.reason) {
            return (reason, known.message.clone());
        }
    }
    if followed.spec.dry_run && !matches!(decision.state, State::NotSeen) {
        return (Reason::DryRun, dry_run(look, decision));
    }
    said(look, decision)
}

fn said(look: &Look, decision: &Decision) -> (Reason, String) {
    let current = look.current.as_deref().unwrap_or_default();
    match &decision.state {
        State::NotSeen => (Reason::TagUnreadable, "the registry was not asked yet".to_owned()),
        State::NoPolicy => (
            Reason::SignatureRequired,
            "whoever can push to the tag could approve an image: set spec.imageSignatures of the \
             TrustedExecutionCluster, or dangerouslyUnsigned here"
                .to_owned(),
        ),
        State::New => (Reason::Approving, format!("{current} is being approved")),
        State::Measuring(name) => (Reason::Approving, format!("{name} is being measured")),
        State::Refused { name, why } => (
            Reason::ImageRefused,
            format!("{name} is not approved, older images stay approved: {why}"),
        ),
        State::Approved(name) => (Reason::TagFollowed, format!("{name} is approved")),
        State::Paused(name) => (Reason::ImageRefused, format!("{name} is paused by an admin")),
        State::ByAdmin(name) => (Reason::TagFollowed, format!("approved by an admin as {name}")),
        State::RolledBack { name, newest } => (
            Reason::RolledBack,
            format!(
                "the tag points to {name} again, which {newest} replaced; it is not approved again, \
                 and nothing is revoked. If this is right, approve it manually: kubectl tec image \
                 approve <name> {current}"
            ),
        ),
        State::Older { newest } => (
            Reason::RolledBack,
            format!(
                "{current} was built before {newest}, and is not approved. If this is right, approve \
                 it manually: kubectl tec image approve <name> {current}"
            ),
        ),
        State::Withdrawn(name) => (
            Reason::Revoked,
            format!(
                "{name} was revoked, deleted or has expired, and is not approved again. Push a new \
                 image, or approve it manually: kubectl tec image approve <name> {current}"
            ),
        ),
    }
}

fn dry_run(look: &Look, decision: &Decision) -> String {
    let mut would = Vec::new();
    match (&decision.state, &look.current) {
        (State::New, Some(current)) => would.push(format!("would approve {current}")),
        _ => would.push(said(look, decision).1),
    }
    if !decision.revoke.is_empty() {
        would.push(format!("would revoke {}", decision.revoke.join(", ")));
    }
    would.join("; ")
}

/// What keeps older images from being revoked. The condition appears with the first such image.
fn old(followed: &FollowedImage, decision: &Decision) -> Option<(ConditionKind, Reason, String)> {
    let kind = ConditionKind::OldImagesRevoked;
    let mut known = followed.status.iter().flat_map(|status| &status.conditions);
    let is_known = known.any(|one| one.type_ == kind.as_str());
    if decision.held.is_empty() {
        return is_known.then(|| (kind, Reason::AsDesired, String::new()));
    }
    let held: Vec<_> = decision.held.iter().map(needed).collect();
    Some((kind, Reason::MachinesNeedThem, held.join("; ")))
}

fn needed(held: &Held) -> String {
    let Held { name, machines } = held;
    let named: Vec<_> = machines.iter().take(NAMED).cloned().collect();
    let named = named.join(", ");
    let others = machines.len().saturating_sub(NAMED);
    let others = if others > 0 { format!(" and {others} more") } else { String::new() };
    format!("{name} stays: {named}{others} booted it last, or no boot of them is known")
}

/// An Event for each change that someone may have to act on.
async fn report(ctx: &Context, followed: &FollowedImage, (reason, message): &(Reason, String)) {
    let mut known = followed.status.iter().flat_map(|status| &status.conditions);
    let known = known.find(|one| one.type_ == ConditionKind::Following.as_str());
    let is_news = |known: &Condition| {
        let is_plan = *reason == Reason::DryRun && known.message != *message;
        known.reason != reason.as_str() || is_plan
    };
    if !known.is_none_or(is_news) {
        return;
    }
    let event = match reason {
        Reason::TagFollowed | Reason::Approving => return,
        Reason::RolledBack => Event::TagRolledBack,
        Reason::DryRun => Event::FollowDryRun,
        _ => Event::FollowFailed,
    };
    ctx.event(followed, event, message).await;
}

async fn write(
    ctx: &Context,
    followed: &FollowedImage,
    mut said: Said,
    status: Value,
) -> Result<(), PortError> {
    let known = followed.status.as_ref().map(|status| &status.conditions);
    said.extend(resumed(known));
    ctx.say(followed, known, &said, status).await
}
