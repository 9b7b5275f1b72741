//! Looks at the registry when that is due.

use std::time::Duration;

use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind, chain};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tokio::time::timeout;

use super::super::context::Context;
use super::super::image::pull_secret;
use super::super::trust::TagReader;
use crate::api::{FollowedImage, Reason};

/// Deadline for one look, with all mirrors and retries.
const DEADLINE: Duration = Duration::from_mins(2);
/// Longest wait after failures, unless the interval is longer.
const LONGEST: u64 = 3600;

/// What is known about where a tag points to.
#[derive(Debug)]
pub(super) struct Look {
    /// The image, by digest, as of the last successful look.
    pub(super) current: Option<String>,
    /// When it was built, if it states this.
    pub(super) built_at: Option<Timestamp>,
    /// When the last look was, this one included.
    pub(super) at: Option<String>,
    /// Failed looks since the last successful one.
    pub(super) failures: u32,
    /// Why this look failed; `None` if it succeeded or none was due.
    pub(super) failure: Option<(Reason, String)>,
    /// Whether the registry was asked.
    pub(super) is_new: bool,
}

impl Look {
    /// How long until the next look is due.
    pub(super) fn wait(&self, ctx: &Context, followed: &FollowedImage) -> Duration {
        let last = self.at.as_deref().and_then(|text| text.parse().ok());
        let due = last.map_or(0, |last| due(ctx.now(), last, followed, self.failures));
        // Looks that failed together are not repeated together.
        Duration::from_secs(due) + Duration::from_millis(due.saturating_mul(jitter(ctx)))
    }
}

/// Up to a tenth, in thousandths.
fn jitter(ctx: &Context) -> u64 {
    let mut random = [0];
    ctx.entropy().fill(&mut random);
    random.iter().map(|byte| u64::from(*byte) * 100 / 255).sum()
}

/// Seconds until the next look.
fn due(now: Timestamp, last: Timestamp, followed: &FollowedImage, failures: u32) -> u64 {
    let interval = u64::from(followed.spec.interval_seconds());
    let factor = 1_u64.checked_shl(failures).unwrap_or(u64::MAX);
    let wait = interval.saturating_mul(factor).min(LONGEST.max(interval));
    let since = u64::try_from(now.unix_seconds().saturating_sub(last.unix_seconds()));
    // A last look in the future: the clock was wrong.
    since.map_or(0, |since| wait.saturating_sub(since))
}

/// Asks the registry if that is due; otherwise, the last answer counts.
pub(super) async fn look(ctx: &Context, followed: &FollowedImage) -> Result<Look, PortError> {
    let status = followed.status.clone().unwrap_or_default();
    // A different reference, or what an admin changed to end a failure.
    let is_changed = status.observed_generation != followed.metadata.generation;
    let mut known = Look {
        current: status.current.filter(|_| !is_changed),
        built_at: status.current_built_at.and_then(|at| at.parse().ok()),
        at: status.last_look,
        failures: status.failed_looks.unwrap_or_default(),
        failure: None,
        is_new: false,
    };
    let last = known.at.as_deref().and_then(|text| text.parse().ok());
    let is_due = last.is_none_or(|last| due(ctx.now(), last, followed, known.failures) == 0);
    if !is_due && !is_changed {
        return Ok(known);
    }
    known.at = Some(ctx.now().to_string());
    known.is_new = true;
    match ask(ctx, followed, &known).await? {
        Ok((current, built_at)) => {
            (known.current, known.built_at, known.failures) = (Some(current), built_at, 0);
        }
        Err(failure) => {
            known.failures = known.failures.saturating_add(1);
            known.failure = Some(failure);
        }
    }
    Ok(known)
}

/// Where a tag points to, and when that was built.
type Answer = (String, Option<Timestamp>);

async fn ask(
    ctx: &Context,
    followed: &FollowedImage,
    known: &Look,
) -> Result<Result<Answer, (Reason, String)>, PortError> {
    let Some(tags) = &ctx.parts.tags else {
        let why = "this operator does not look at registries".to_owned();
        return Ok(Err((Reason::TagUnreadable, why)));
    };
    let credentials = match pull_secret(ctx, followed.spec.pull_secret.as_deref()).await? {
        Ok(credentials) => credentials,
        Err(why) => return Ok(Err((Reason::RegistryDenied, why))),
    };
    let answer = timeout(DEADLINE, find(&**tags, followed, known, credentials.as_ref())).await;
    Ok(answer.map_or_else(
        |_| {
            let why = format!("no answer within {} s (it is tried again)", DEADLINE.as_secs());
            Err((Reason::RegistryUnreachable, why))
        },
        |answer| answer.map_err(|error| refusal(&error)),
    ))
}

/// The configuration of an image that was known before is not read again.
async fn find(
    tags: &dyn TagReader,
    followed: &FollowedImage,
    known: &Look,
    credentials: Option<&SecretBytes>,
) -> Result<Answer, PortError> {
    let credentials = || credentials.map(|it| it.duplicate("it is needed for each request"));
    let current = tags.resolve(&followed.spec.reference, credentials()).await?;
    let built_at = if known.current.as_ref() == Some(&current) {
        known.built_at
    } else {
        tags.built_at(&current, credentials()).await?
    };
    Ok((current, built_at))
}

/// Why a look failed, and what to do.
fn refusal(error: &PortError) -> (Reason, String) {
    let reason = match (error.code(), error.kind()) {
        (Some(Code::ImageTag), _) => Reason::InvalidReference,
        (Some(Code::ImageSecret), _) | (_, PortErrorKind::Denied) => Reason::RegistryDenied,
        (_, PortErrorKind::Unavailable) => Reason::RegistryUnreachable,
        (_, PortErrorKind::NotFound) => Reason::TagMissing,
        _ => Reason::TagUnreadable,
    };
    let next = match reason {
        Reason::InvalidReference => "set spec.reference to a tag, such as registry.example/os:44",
        Reason::RegistryDenied => "name a Secret that allows pulling in spec.pullSecret",
        Reason::TagMissing => "push the tag, or correct spec.reference",
        _ => "it is tried again",
    };
    let why = chain(error);
    match error.code() {
        Some(code) => (reason, format!("{code}: {why} ({next})")),
        None => (reason, format!("{why} ({next})")),
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;
    use crate::api::FollowedImageSpec;

    fn followed(interval: u32) -> FollowedImage {
        let interval_seconds = Some(interval);
        FollowedImage::new("os", FollowedImageSpec { interval_seconds, ..Default::default() })
    }

    #[test]
    fn looks_that_fail_are_made_less_often_up_to_an_hour() {
        let last = sample::time(1);
        let after = |interval, failures| due(last, last, &followed(interval), failures);
        assert_eq!((after(600, 0), after(600, 1), after(600, 2)), (600, 1200, 2400));
        assert_eq!((after(600, 3), after(600, u32::MAX)), (3600, 3600));
        assert_eq!(after(7200, 5), 7200, "never more often than asked for");
    }

    #[test]
    fn a_look_is_due_after_the_interval_and_at_once_if_the_clock_was_wrong() {
        let last = sample::time(1);
        let of = |seconds| due(last.plus_seconds(seconds), last, &followed(600), 0);
        assert_eq!((of(0), of(599), of(600), of(9000)), (600, 1, 0, 0));
        assert_eq!(of(-5), 0);
    }

    #[test]
    fn each_failure_has_a_reason_and_the_next_step() {
        for (kind, code, expected) in [
            (PortErrorKind::Invalid, Some(Code::ImageTag), Reason::InvalidReference),
            (PortErrorKind::Invalid, Some(Code::ImageSecret), Reason::RegistryDenied),
            (PortErrorKind::Denied, Some(Code::ImageDenied), Reason::RegistryDenied),
            (PortErrorKind::NotFound, Some(Code::ImageAbsent), Reason::TagMissing),
            (PortErrorKind::Unavailable, None, Reason::RegistryUnreachable),
            (PortErrorKind::Invalid, Some(Code::RegistryAnswer), Reason::TagUnreadable),
        ] {
            let error = PortError::new(kind, "look up the tag");
            let error = match code {
                Some(code) => error.with_code(code),
                None => error,
            };
            let (reason, message) = refusal(&error);
            assert_eq!(reason, expected, "{code:?}");
            assert!(code.is_none_or(|code| message.starts_with(code.as_str())), "{message}");
        }
    }
}
