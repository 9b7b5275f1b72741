//! Reconciles an approved image: gets its measurements from its label, from another object with the same
//! digest, or from a Job.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tec_core::attest::PinnedPcrs;
use tec_core::image::ExpectedPcrs;
use tec_core::migrate::Deed;
use tec_core::port::{PortError, chain};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::context::Context;
use super::job;
use super::job::JobState;
use super::pinned;
use super::queue::Next;
use super::report::resumed;
use crate::api;
use crate::api::{ApprovedImage, ApprovedImageStatus, ConditionKind, Reason, is_paused};
use crate::client::{is_object_name, port_error};
use crate::render::{DOCKER_CONFIG, ImageAccess};
use crate::signal::Event;

/// Finalizer of the existing operator, which would block the deletion of its objects forever
/// (trusted-cluster-operator).
const FOREIGN_FINALIZER: &str = "finalizer.approved-image.trusted-execution-clusters.io";
/// Entry of a Secret of type kubernetes.io/dockercfg.
const DOCKER_CFG: &str = ".dockercfg";
/// Interval between checks of a running Job: only the pod shows whether it starts.
const JOB_POLL: Duration = Duration::from_secs(10);
/// How long an image waits after its Job has failed.
const JOB_RETRY: Duration = Duration::from_mins(10);

/// State of the measurements.
enum Progress {
    Known(ExpectedPcrs),
    Working(Reason, String),
    Failed(String),
}

/// Reconciles one image.
pub(super) async fn reconcile(ctx: &Context, name: &str) -> Result<Next, PortError> {
    // Whatever happened to it, the set of live images may have changed.
    ctx.publish.notify_one();
    let Some(image) = ctx.caches.images.get(name) else {
        return Ok(Next::Wait);
    };
    if is_paused(&*image) {
        // It counts as it is, unless it is revoked or has expired.
        let known = image.status.as_ref().map(|status| &status.conditions);
        ctx.say_paused(&*image, known).await?;
        return Ok(until_expiry(&image, ctx.latest()));
    }
    if image.metadata.deletion_timestamp.is_some() {
        ctx.unclaim(&*image, FOREIGN_FINALIZER).await?;
        return Ok(Next::Wait);
    }
    if ctx.claim(&*image, ctx.cluster().as_deref(), &[], None).await? {
        return Ok(Next::Wait);
    }
    if let Some((reason, message)) = ended(&image, ctx.latest()) {
        job::remove(ctx, &image).await?;
        say(ctx, &image, reason, &message).await?;
        return Ok(Next::Wait);
    }
    let mut measured = image.status.as_ref().map(ApprovedImageStatus::expected).unwrap_or_default();
    measured.first_boot = image.spec.first_boot;
    if !measured.is_sound() {
        let message = "the measurements in its status do not produce their values and are \
                       ignored: delete the object, and approve the image again";
        say(ctx, &image, Reason::Malformed, message).await?;
        return Ok(Next::Wait);
    }
    if !measured.pcrs.is_empty() {
        job::remove(ctx, &image).await?;
        committed(ctx, &image, &measured).await?;
        return Ok(until_expiry(&image, ctx.latest()));
    }
    if !ctx.may(Deed::Admit) {
        say(ctx, &image, Reason::NoAuthority, &ctx.role()).await?;
        return Ok(Next::Wait);
    }
    compute(ctx, &image).await
}

/// The reason why nothing more will happen to an image.
fn ended(image: &ApprovedImage, now: Timestamp) -> Option<(Reason, String)> {
    if image.spec.revoked_at.is_some() {
        return Some((Reason::Revoked, String::new()));
    }
    if let Err(error) = image.digest() {
        return Some((Reason::NoDigestGiven, error.to_string()));
    }
    match image.to_core() {
        Ok(known) if known.expires_at.is_some_and(|end| end <= now) => {
            Some((Reason::Expired, "approve it anew, or for longer".to_owned()))
        }
        Ok(_) => None,
        Err(error) => Some((Reason::Malformed, chain(&error))),
    }
}

fn until_expiry(image: &ApprovedImage, now: Timestamp) -> Next {
    let end = image.to_core().ok().and_then(|known| known.expires_at);
    let seconds = end.map(|end| end.unix_seconds().saturating_sub(now.unix_seconds()));
    match seconds.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) => Next::After(Duration::from_secs(seconds.saturating_add(1))),
        None => Next::Wait,
    }
}

async fn compute(ctx: &Context, image: &ApprovedImage) -> Result<Next, PortError> {
    match progress(ctx, image).await? {
        Progress::Known(expected) => {
            commit(ctx, image, &expected).await?;
            Ok(Next::Wait)
        }
        Progress::Working(reason, message) => {
            say(ctx, image, reason, &message).await?;
            Ok(Next::After(JOB_POLL))
        }
        Progress::Failed(message) => {
            say(ctx, image, Reason::ComputationFailed, &message).await?;
            Ok(Next::After(JOB_RETRY))
        }
    }
}

async fn progress(ctx: &Context, image: &ApprovedImage) -> Result<Progress, PortError> {
    let must_be_signed =
        ctx.cluster().is_some_and(|cluster| cluster.spec.image_signatures.is_some());
    if !must_be_signed && api::must_be_signed(image) {
        let why = "the cluster object names no keys: set its spec.imageSignatures, or delete this \
                   object and approve the image manually";
        return Ok(Progress::Working(Reason::SignatureRequired, why.to_owned()));
    }
    let known = of_same_digest(ctx, image).filter(|_| !must_be_signed);
    if let Some(known) = known {
        return Ok(Progress::Known(known));
    }
    let state = job::state(ctx, image).await?;
    let is_rested = image_rested(image, ctx.now());
    match state {
        Some(JobState::Running) => {
            // The reason for the Job was reported when it was created.
            let message = said(image, Reason::Computing).unwrap_or("its Job runs");
            return Ok(Progress::Working(Reason::Computing, message.to_owned()));
        }
        Some(JobState::Pending(why)) => return Ok(Progress::Working(Reason::PodPending, why)),
        Some(JobState::Failed(why)) if !is_rested => return Ok(Progress::Failed(why)),
        Some(JobState::Failed(_)) => job::remove(ctx, image).await?,
        Some(JobState::Done) => {
            let why = "its Job ended well and wrote no measurements";
            if !is_rested {
                return Ok(Progress::Failed(why.to_owned()));
            }
            job::remove(ctx, image).await?;
        }
        None => {}
    }
    let credentials = match pull_secret(ctx, image.spec.pull_secret.as_deref()).await? {
        Ok(credentials) => credentials,
        Err(why) => return Ok(Progress::Working(Reason::PodPending, why)),
    };
    let why = if must_be_signed {
        "it must be signed".to_owned()
    } else if image.spec.boot.is_some() {
        "its spec.boot says how it boots".to_owned()
    } else {
        match of_label(ctx, image, credentials).await {
            Ok(expected) => return Ok(Progress::Known(expected)),
            Err(why) => why,
        }
    };
    job::create(ctx, image).await?;
    ctx.event(image, Event::ComputationStarted, &why).await;
    Ok(Progress::Working(Reason::Computing, format!("a Job computes them: {why}")))
}

/// The measurements in the image's label, or why it has none.
async fn of_label(
    ctx: &Context,
    image: &ApprovedImage,
    credentials: Option<SecretBytes>,
) -> Result<ExpectedPcrs, String> {
    match ctx.parts.labels.label(&image.spec.image, credentials).await {
        Ok(Some(expected)) if is_sound(&expected) => Ok(expected),
        Ok(Some(_)) => Err("the events in its label do not produce its values".to_owned()),
        Ok(None) => Err("it has no label with measurements".to_owned()),
        Err(error) => Err(match error.code() {
            Some(code) => format!("{code}: {}", chain(&error)),
            None => chain(&error),
        }),
    }
}

/// The message of the condition, if it has this reason.
fn said(image: &ApprovedImage, reason: Reason) -> Option<&str> {
    let mut conditions = image.status.iter().flat_map(|status| &status.conditions);
    let condition = conditions.find(|condition| condition.reason == reason.as_str())?;
    Some(&condition.message)
}

/// A value that does not follow from its events could not be explained.
fn is_sound(expected: &ExpectedPcrs) -> bool {
    !expected.pcrs.is_empty()
        && expected.pcrs.iter().all(tec_core::image::ExpectedPcr::is_consistent)
}

/// Whether the last failure is long enough ago for another try.
fn image_rested(image: &ApprovedImage, now: Timestamp) -> bool {
    let conditions = image.status.iter().flat_map(|status| &status.conditions);
    let failed = conditions
        .filter(|condition| condition.reason == Reason::ComputationFailed.as_str())
        .map(|condition| condition.last_transition_time.0.as_second())
        .next();
    let rest = i64::try_from(JOB_RETRY.as_secs()).unwrap_or(i64::MAX);
    failed.is_some_and(|at| now.unix_seconds().saturating_sub(at) >= rest)
}

/// The measurements of another object with the same digest, which boots in the same way: they are a fact about the
/// content.
fn of_same_digest(ctx: &Context, image: &ApprovedImage) -> Option<ExpectedPcrs> {
    let same = ctx.caches.images.indexed(image.digest().ok()?);
    let same = same.iter().filter(|other| other.spec.boot == image.spec.boot);
    let known = same.filter_map(|other| other.status.as_ref());
    known.map(ApprovedImageStatus::expected).find(is_sound)
}

/// A pull secret, if one is named; the error states what is wrong with it.
pub(super) async fn pull_secret(
    ctx: &Context,
    name: Option<&str>,
) -> Result<Result<Option<SecretBytes>, String>, PortError> {
    let Some(name) = name else {
        return Ok(Ok(None));
    };
    // Anything but an object name would be a different path of the API.
    if !is_object_name(name) {
        let why = "the text under pullSecret cannot be the name of a Secret";
        return Ok(Err(why.to_owned()));
    }
    let secret = ctx.objects::<Secret>().get_opt(name).await;
    let secret = secret.map_err(|error| port_error(format!("read the Secret {name}"), error))?;
    let Some(secret) = secret else {
        return Ok(Err(format!("the pull secret {name} is not there")));
    };
    let mut data = secret.data.unwrap_or_default();
    let mut entry = data.remove(DOCKER_CONFIG).map(|bytes| bytes.0);
    if ctx.parts.deploy.image_access == ImageAccess::Volume {
        // The kubelet also accepts the older type.
        entry = entry.or_else(|| Some(modern(&data.remove(DOCKER_CFG)?.0)));
    }
    let entry = entry.map(|bytes| Some(SecretBytes::new(bytes)));
    Ok(entry.ok_or_else(|| format!("the pull secret {name} has no entry {DOCKER_CONFIG}")))
}

/// Converts the older form to the newer one.
fn modern(docker_cfg: &[u8]) -> Vec<u8> {
    [&br#"{"auths":"#[..], docker_cfg, b"}"].concat()
}

async fn commit(
    ctx: &Context,
    image: &ApprovedImage,
    expected: &ExpectedPcrs,
) -> Result<(), PortError> {
    ctx.event(image, Event::ComputationCompleted, Event::ComputationCompleted.help()).await;
    let mut news = json!({"pcrs": expected.pcrs, "firstSeen": ctx.now()});
    if let (Some(members), Some(root_hash)) = (news.as_object_mut(), expected.root_hash) {
        members.insert("rootHash".to_owned(), json!(root_hash));
    }
    write(ctx, image, (Reason::ImageCommitted, ""), news).await
}

/// Reports which parts of its boots are checked.
async fn committed(
    ctx: &Context,
    image: &ApprovedImage,
    expected: &ExpectedPcrs,
) -> Result<(), PortError> {
    // A Job wrote them.
    if said(image, Reason::ImageCommitted).is_none() {
        ctx.event(image, Event::ComputationCompleted, Event::ComputationCompleted.help()).await;
    }
    let pins = ctx.parts.trust.pins();
    let pinned: Vec<_> =
        pins.of_expected(expected).into_iter().flat_map(PinnedPcrs::iter).collect();
    let told = pinned::told(pins, expected);
    write(ctx, image, (Reason::ImageCommitted, &told), json!({"pinnedPcrs": pinned})).await
}

async fn say(
    ctx: &Context,
    image: &ApprovedImage,
    reason: Reason,
    message: &str,
) -> Result<(), PortError> {
    let conditions = image.status.iter().flat_map(|status| &status.conditions);
    let is_news = !conditions.into_iter().any(|condition| condition.reason == reason.as_str());
    match reason {
        Reason::ComputationFailed if is_news => {
            ctx.event(image, Event::ComputationFailed, message).await;
        }
        Reason::Expired if is_news => ctx.event(image, Event::ImageExpired, message).await,
        _ => {}
    }
    write(ctx, image, (reason, message), json!({})).await
}

async fn write(
    ctx: &Context,
    image: &ApprovedImage,
    (reason, message): (Reason, &str),
    mut status: Value,
) -> Result<(), PortError> {
    let known = image.status.as_ref().map(|status| &status.conditions);
    let mut said = vec![(ConditionKind::Committed, reason, message.to_owned())];
    said.extend(resumed(known));
    if let Some(members) = status.as_object_mut() {
        members.insert("observedGeneration".to_owned(), json!(image.metadata.generation));
    }
    ctx.say(image, known, &said, status).await
}

/// Reconciles every image with the same content, since the measurements apply to all of them.
pub(super) fn wake_same(ctx: &Context, image: &ApprovedImage) {
    for other in image.digest().map(|digest| ctx.caches.images.indexed(digest)).unwrap_or_default()
    {
        ctx.queue.wake(super::context::Task::Image(other.name_any()));
    }
}
