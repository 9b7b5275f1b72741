//! The guard's reports of attestation attempts, as a condition of the machine.
//!
//! The guard may write no status, so that an attacker who takes it over cannot bind a key. No decision depends
//! on these Events, which every kubelet can write; see `untrusted` for the records that count there.

use k8s_openapi::api::events::v1::Event;
use kube::runtime::watcher;
use tec_core::code::Code;
use tec_core::time::Timestamp;

use super::context::{Context, Task};
use crate::api::{ConditionKind, LastAttestation, Machine, MachineStatus, Reason};
use crate::client::{ATTEMPT, ATTEMPT_REPORTER, RELEASED};

/// By how many seconds the clock of a guard may be ahead.
const AHEAD: i64 = 600;

/// What the status of a machine does not report yet.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The newest attempt.
    pub(super) last: Option<LastAttestation>,
    /// The newest attempt that obtained the key, which may be an earlier one.
    pub(super) boot: Option<LastAttestation>,
}

impl News {
    /// The condition that reports the newest attempt.
    pub(super) fn said(&self) -> Option<(ConditionKind, Reason, String)> {
        self.last.as_ref().map(said)
    }
}

/// Follows the guard's Events forever.
pub(super) async fn follow(ctx: &Context) {
    let fields = format!("reportingController={ATTEMPT_REPORTER}");
    let events = watcher(ctx.objects(), watcher::Config::default().fields(&fields));
    let changed = |event: &Event| {
        let machine = event.regarding.as_ref().and_then(|about| about.name.clone());
        if let Some(machine) = machine {
            ctx.queue.wake(Task::Machine(machine));
        }
    };
    ctx.caches.attempts.follow(events, changed).await;
}

/// What the Events say of a machine and its status does not.
pub(super) fn news(ctx: &Context, machine: &Machine) -> News {
    let uid = machine.metadata.uid.as_ref();
    let Some(name) = &machine.metadata.name else {
        return News::default();
    };
    let events = ctx.caches.attempts.indexed(name);
    let about_this = |event: &&std::sync::Arc<Event>| {
        event.regarding.as_ref().and_then(|about| about.uid.as_ref()) == uid
    };
    let events = events.iter().filter(about_this).map(|event| &**event);
    newest(events, machine.status.as_ref(), ctx.latest())
}

fn newest<'a>(
    events: impl Iterator<Item = &'a Event>,
    status: Option<&MachineStatus>,
    now: Timestamp,
) -> News {
    let (mut attempts, mut boots) = (Vec::new(), Vec::new());
    for event in events {
        // One from the future would hide all later ones.
        let read = read(event).filter(|(at, _)| *at <= now.plus_seconds(AHEAD));
        boots.extend(read.clone().filter(|_| is_boot(event)));
        attempts.extend(read);
    }
    let last = status.and_then(|status| status.last_attestation.as_ref());
    let is_news = |(at, attempt): &(Timestamp, LastAttestation)| {
        last != Some(attempt) && is_later(*at, last.map(|last| &last.at))
    };
    let booted = status.and_then(|status| status.last_boot.as_ref());
    let image = status.and_then(|status| status.image.as_ref());
    let is_new_boot = |(at, boot): &(Timestamp, LastAttestation)| {
        let is_other = boot.image.is_some() && boot.image.as_ref() != image;
        (booted != Some(&boot.at) || is_other) && is_later(*at, booted)
    };
    let attempt = |(_, attempt)| attempt;
    News {
        last: attempts.into_iter().max_by_key(rank).filter(is_news).map(attempt),
        // Also where a refused attempt in the same second is what counts as the newest.
        boot: boots.into_iter().max_by_key(|(at, _)| *at).filter(is_new_boot).map(attempt),
    }
}

/// Whether a time is no earlier than the known one, if there is one.
fn is_later(at: Timestamp, known: Option<&String>) -> bool {
    known.and_then(|known| known.parse().ok()).is_none_or(|known: Timestamp| known <= at)
}

/// Whether the key was released: a node that attests while it runs does not request it.
fn is_boot(event: &Event) -> bool {
    event.metadata.name.as_ref().is_some_and(|name| name.ends_with(RELEASED))
}

/// Times are reported in seconds. Of two attempts in the same second, the refused one counts, since it must
/// not be overlooked.
fn rank((at, last): &(Timestamp, LastAttestation)) -> (Timestamp, bool) {
    (*at, last.code.is_some())
}

/// The attempt in the Event, unless anyone could have made it: evidence without a valid signature belongs to
/// nobody.
fn read(event: &Event) -> Option<(Timestamp, LastAttestation)> {
    let text = event.metadata.annotations.as_ref()?.get(ATTEMPT)?;
    let last: LastAttestation = serde_json::from_str(text).ok()?;
    let code = last.code.as_deref().and_then(|code| code.parse().ok());
    let is_signed = !matches!(code, Some(Code::EvidenceMalformed | Code::QuoteInvalid));
    let at = last.at.parse().ok()?;
    is_signed.then_some((at, last))
}

fn said(last: &LastAttestation) -> (ConditionKind, Reason, String) {
    let code: Option<Code> = last.code.as_deref().and_then(|code| code.parse().ok());
    let reason = match (&last.code, code) {
        (None, _) => Reason::AttestationSucceeded,
        (_, Some(Code::ReleaseDenied)) => Reason::ResourcePolicyDenied,
        _ => Reason::AttestationFailed,
    };
    let message = code.map(|code| format!("{code} {}", code.title()));
    let message = message.or_else(|| last.code.clone()).unwrap_or_default();
    (ConditionKind::Attested, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(code: Option<&str>) -> Event {
        let last = LastAttestation {
            at: "2026-11-21T04:31:00Z".to_owned(),
            code: code.map(str::to_owned),
            ..LastAttestation::default()
        };
        let text = serde_json::to_string(&last).unwrap();
        let mut event = Event::default();
        event.metadata.annotations = Some([(ATTEMPT.to_owned(), text)].into());
        event
    }

    fn at() -> Timestamp {
        "2026-11-21T04:31:00Z".parse().unwrap()
    }

    #[test]
    fn an_event_from_the_future_hides_nothing() {
        let event = event(Some("TEC-A412"));
        let told = |now: Timestamp| newest([&event].into_iter(), None, now).last.is_some();
        assert!(told(at()) && told(at().plus_seconds(-AHEAD)));
        assert!(!told(at().plus_seconds(-AHEAD - 1)));
    }

    #[test]
    fn a_refusal_says_its_code_and_a_release_none() {
        let (_, refused) = read(&event(Some("TEC-A412"))).unwrap();
        let (_, reason, message) = said(&refused);
        assert_eq!(reason, Reason::AttestationFailed);
        assert!(message.starts_with("TEC-A412 boot not approved"), "{message}");
        let (_, released) = read(&event(None)).unwrap();
        let expected = (Reason::AttestationSucceeded, String::new());
        let (_, reason, message) = said(&released);
        assert_eq!((reason, message), expected);
    }

    #[test]
    fn only_a_released_key_is_a_boot() {
        let mut event = event(None);
        for (outcome, expected) in [("released", true), ("attested", false), ("tec-a412", false)] {
            event.metadata.name = Some(format!("attempt-uid-{outcome}"));
            assert_eq!(is_boot(&event), expected, "{outcome}");
        }
    }

    #[test]
    fn of_two_attempts_in_one_second_the_refused_one_is_told() {
        let released = read(&event(None)).unwrap();
        let refused = read(&event(Some("TEC-A412"))).unwrap();
        assert!(rank(&refused) > rank(&released));
    }

    #[test]
    fn a_boot_in_the_second_of_a_refused_attempt_is_reported_too() {
        let refused = event(Some("TEC-A412"));
        let mut released = event(None);
        released.metadata.name = Some("attempt-uid-released".to_owned());
        let (_, last) = read(&refused).unwrap();
        let mut status = MachineStatus { last_attestation: Some(last), ..MachineStatus::default() };
        let news = newest([&refused, &released].into_iter(), Some(&status), at());
        assert_eq!((news.last, &news.boot), (None, &Some(read(&released).unwrap().1)));
        status.last_boot = news.boot.map(|boot| boot.at);
        let news = newest([&refused, &released].into_iter(), Some(&status), at());
        assert_eq!((news.last, news.boot), (None, None), "it is reported once");
        status.image = Some("os-1".to_owned());
        let text = r#"{"at": "2026-11-21T04:31:00Z", "image": "os-2"}"#;
        released.metadata.annotations = Some([(ATTEMPT.to_owned(), text.to_owned())].into());
        let news = newest([&refused, &released].into_iter(), Some(&status), at());
        assert_eq!(news.boot.unwrap().image.unwrap(), "os-2", "of the same second");
    }

    #[test]
    fn evidence_that_anybody_could_send_says_nothing_of_the_machine() {
        assert!(read(&event(Some("TEC-A405"))).is_none());
        assert!(read(&event(Some("TEC-A400"))).is_none());
        assert!(read(&Event::default()).is_none());
    }
}
