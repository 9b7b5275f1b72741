//! Follows tags: approves what they point to, and revokes what no machine needs any longer.
//!
//! ```text
//!   registry ─► look ─┐
//!   ApprovedImages ───┼─► decide ─► ApprovedImage of the new digest ─► `image`: signature, measurements
//!   Machines ─────────┘         └─► revocation of older ones          ─► status, Events
//! ```
//! *What it is*: level-triggered, one look per interval, and no API request per machine. What was approved
//! before is known from the ApprovedImages, which stay after their revocation, and from the status.
//!
//! *What it is not*: it neither measures images nor checks signatures; an ApprovedImage that it creates is
//! handled like any other. It never touches one that an admin created.

mod decide;
mod look;
mod machines;
mod tell;

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use tec_core::flow;
use tec_core::migrate::Deed;
use tec_core::port::PortError;
use tec_core::time::Timestamp;

use self::decide::{Case, Decision, Machines, Policy, Standing, State, Version, decide};
use self::look::{Look, look};
use super::context::{Context, Task};
use super::queue::Next;
use super::report::owner_of;
use crate::api::{
    ApprovedImage, ConditionKind, FOLLOWED_BY, FollowedImage, FollowedVersion, Reason, built_at,
    is_paused,
};
use crate::client::{KubeRegistry, port_error};
use crate::signal::Event;

/// Longest time between two decisions, however rare looks are: machines boot newer images in between.
const DECIDE: Duration = Duration::from_mins(10);

/// Reconciles one tag.
pub(super) async fn reconcile(ctx: &Context, name: &str) -> Result<Next, PortError> {
    let Some(followed) = ctx.caches.followed.get(name) else {
        return Ok(Next::Wait);
    };
    let Some(cluster) = ctx.cluster().filter(|_| followed.metadata.deletion_timestamp.is_none())
    else {
        return Ok(Next::Wait);
    };
    if is_paused(&*followed) {
        let known = followed.status.as_ref().map(|status| &status.conditions);
        ctx.say_paused(&*followed, known).await?;
        return Ok(Next::Wait);
    }
    if ctx.claim(&*followed, Some(&*cluster), &[], None).await? {
        return Ok(Next::Wait);
    }
    if !ctx.may(Deed::Admit) {
        let said = (ConditionKind::Following, Reason::NoAuthority, ctx.role());
        tell::plainly(ctx, &followed, said).await?;
        return Ok(Next::Wait);
    }
    Follower::new(ctx, followed).await?.run().await
}

/// Reconciles the tag that an image was approved for, or those that point to what an admin approved.
pub(super) fn wake_follower(ctx: &Context, image: &ApprovedImage) {
    if let Some(name) = image.labels().get(FOLLOWED_BY) {
        ctx.queue.wake(Task::Followed(name.clone()));
        return;
    }
    for followed in ctx.caches.followed.all() {
        let current = followed.status.as_ref().and_then(|status| status.current.as_deref());
        if current.and_then(digest_of).is_some_and(|digest| image.digest().ok() == Some(digest)) {
            ctx.queue.wake(Task::Followed(followed.name_any()));
        }
    }
}

/// One look at a tag.
struct Follower<'a> {
    ctx: &'a Context,
    followed: Arc<FollowedImage>,
    look: Look,
    /// By number, the latest last.
    versions: Vec<Version>,
}

impl<'a> Follower<'a> {
    async fn new(ctx: &'a Context, followed: Arc<FollowedImage>) -> Result<Self, PortError> {
        let look = look(ctx, &followed).await?;
        let versions = versions(ctx, &followed).await?;
        Ok(Self { ctx, followed, look, versions })
    }

    async fn run(&self) -> Result<Next, PortError> {
        let decision = self.decide();
        let mut images: Vec<_> = self.versions.iter().map(Version::listed).collect();
        if !self.followed.spec.dry_run {
            images.extend(self.approve(&decision).await?);
            self.revoke(&decision).await?;
        }
        let images = FollowedVersion::latest(images);
        tell::tag(self.ctx, &self.followed, &self.look, &decision, images).await?;
        Ok(Next::After(self.look.wait(self.ctx, &self.followed).min(DECIDE)))
    }

    fn decide(&self) -> Decision {
        let current = self.look.current.as_deref().and_then(digest_of);
        let is_approved = |version: &&Version| version.standing == Standing::Approved;
        let has_older = self.versions.iter().filter(is_approved).count() > 1;
        // Only a revocation depends on machines, of which there may be many.
        let machines = if has_older { machines::booted(self.ctx) } else { Machines::default() };
        let by_admin = current.and_then(|digest| by_admin(self.ctx, digest));
        decide(&Case {
            policy: self.policy(),
            current,
            built_at: self.look.built_at,
            versions: &self.versions,
            by_admin: by_admin.as_deref(),
            machines: &machines,
            keep: self.followed.spec.keep(),
        })
    }

    fn policy(&self) -> Policy {
        let cluster = self.ctx.cluster();
        if cluster.is_some_and(|cluster| cluster.spec.image_signatures.is_some()) {
            Policy::Signed
        } else if self.followed.spec.dangerously_unsigned {
            Policy::DangerouslyUnsigned
        } else {
            Policy::Missing
        }
    }

    /// Creates the ApprovedImage of a new image; returns the version that it is.
    async fn approve(&self, decision: &Decision) -> Result<Option<FollowedVersion>, PortError> {
        let current = self.look.current.as_deref().filter(|_| decision.state == State::New);
        let number = self.versions.last().map_or(0, |newest| newest.number) + 1;
        let version = current.and_then(|reference| {
            let version = FollowedVersion::new(&self.followed.name_any(), reference, number)?;
            let image = self.followed.approved_image(&version, reference, self.look.built_at);
            Some((image, version))
        });
        let Some((image, version)) = version else {
            return Ok(None);
        };
        if self.policy() == Policy::DangerouslyUnsigned {
            tracing::warn!(image.name = version.name, "an image is approved without a signature");
        }
        if self.registry().approve_object(&image).await? {
            let note = format!("{} is approved as {}", image.spec.image, version.name);
            tracing::info!(image.name = version.name, "an image of a followed tag is approved");
            self.ctx.event(&*self.followed, Event::ImageFollowed, &note).await;
        }
        Ok(Some(version))
    }

    /// New objects go with the cluster object.
    fn registry(&self) -> KubeRegistry {
        let owner = self.ctx.cluster().and_then(|cluster| owner_of(&*cluster));
        owner.map_or_else(|| self.ctx.registry.clone(), |owner| self.ctx.registry.owned_by(owner))
    }

    /// Whether the newest approved image still is: an admin may have revoked it since the cache saw it, and
    /// the last approval must not go.
    async fn is_newest_live(&self) -> Result<bool, PortError> {
        let is_approved = |version: &&Version| version.standing == Standing::Approved;
        let Some(newest) = self.versions.iter().rfind(is_approved) else {
            return Ok(false);
        };
        let found = find(self.ctx, &self.followed, &newest.name).await?;
        let now = self.ctx.latest();
        Ok(found.is_some_and(|image| standing(&image, now) == Standing::Approved))
    }

    async fn revoke(&self, decision: &Decision) -> Result<(), PortError> {
        if decision.revoke.is_empty() || !self.is_newest_live().await? {
            return Ok(());
        }
        for name in &decision.revoke {
            // The cache may be older than the last revocation, or than what an admin changed.
            let found = find(self.ctx, &self.followed, name).await?;
            let found = found.filter(|image| image.spec.revoked_at.is_none());
            let Some(image) = found.and_then(|image| image.name_any().parse().ok()) else {
                continue;
            };
            flow::revoke_image(&self.ctx.registry, self.ctx.clock(), &image).await?;
            let note =
                format!("{name} is revoked: a newer image is approved, and no machine needs it");
            tracing::info!(image.name = name, "an old image of a followed tag is revoked");
            self.ctx.event(&*self.followed, Event::OldImageRevoked, &note).await;
        }
        Ok(())
    }
}

impl Version {
    /// As the status lists it.
    fn listed(&self) -> FollowedVersion {
        let (name, digest) = (self.name.clone(), self.digest.clone());
        FollowedVersion { number: self.number, name, digest }
    }
}

/// Reads an image that was approved for a tag; `None` if there is none of this name.
async fn find(
    ctx: &Context,
    followed: &FollowedImage,
    name: &str,
) -> Result<Option<ApprovedImage>, PortError> {
    let found = ctx.objects::<ApprovedImage>().get_opt(name).await;
    let found = found.map_err(|error| port_error(format!("look up {name}"), error))?;
    Ok(found.filter(|image| is_of(image, followed)))
}

fn digest_of(reference: &str) -> Option<&str> {
    reference.split_once("@sha256:").map(|(_, digest)| digest)
}

fn is_of(image: &ApprovedImage, followed: &FollowedImage) -> bool {
    image.labels().get(FOLLOWED_BY) == Some(&followed.name_any())
}

/// The live approval of a digest by an admin.
fn by_admin(ctx: &Context, digest: &str) -> Option<String> {
    let now = ctx.latest();
    let same = ctx.caches.images.indexed(digest);
    let mut admins = same.iter().filter(|image| !image.labels().contains_key(FOLLOWED_BY));
    let found = admins.find(|image| standing(image, now) == Standing::Approved);
    found.map(|image| image.name_any())
}

/// All images that were approved for a tag: those whose objects exist, and those that the status lists.
async fn versions(ctx: &Context, followed: &FollowedImage) -> Result<Vec<Version>, PortError> {
    let now = ctx.latest();
    let all = ctx.caches.images.all();
    let ours = all.iter().filter(|image| is_of(image, followed));
    let mut versions: Vec<_> = ours.filter_map(|image| version(image, now)).collect();
    let listed = followed.status.iter().flat_map(|status| &status.images);
    let mut gone: Vec<_> = listed
        .filter(|listed| versions.iter().all(|known| known.name != listed.name))
        .map(ended)
        .collect();
    gone.sort_by_key(|version| version.number);
    // An image that was just approved is not in the cache yet.
    if let Some(last) = gone.last_mut()
        && versions.iter().all(|known| known.number < last.number)
    {
        let found = find(ctx, followed, &last.name).await?;
        *last = found.and_then(|image| version(&image, now)).unwrap_or_else(|| last.clone());
    }
    versions.extend(gone);
    versions.sort_by_key(|version| version.number);
    Ok(versions)
}

fn version(image: &ApprovedImage, now: Timestamp) -> Option<Version> {
    let FollowedVersion { number, name, digest, .. } = FollowedVersion::of(image)?;
    let built_at = built_at(image);
    Some(Version { number, name, digest, built_at, standing: standing(image, now) })
}

fn ended(listed: &FollowedVersion) -> Version {
    Version {
        number: listed.number,
        name: listed.name.clone(),
        digest: listed.digest.clone(),
        built_at: None,
        standing: Standing::Ended,
    }
}

fn standing(image: &ApprovedImage, now: Timestamp) -> Standing {
    let is_live = image.to_core().is_ok_and(|known| known.is_live(now));
    if !is_live || image.metadata.deletion_timestamp.is_some() {
        return Standing::Ended;
    }
    if is_paused(image) {
        return Standing::Paused;
    }
    let mut conditions = image.status.iter().flat_map(|status| &status.conditions);
    let committed = conditions.find(|one| one.type_ == ConditionKind::Committed.as_str());
    let Some(committed) = committed else {
        return Standing::Measuring;
    };
    let is = |reason: Reason| committed.reason == reason.as_str();
    if committed.status == "True" {
        Standing::Approved
    } else if is(Reason::Computing) || is(Reason::NoAuthority) {
        Standing::Measuring
    } else {
        Standing::Refused(format!("{}: {}", committed.reason, committed.message))
    }
}
