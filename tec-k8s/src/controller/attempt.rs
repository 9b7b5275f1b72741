//! The guard's reports of attestation attempts, as a condition of the machine.
//!
//! The guard may write no status, so that an attacker who takes it over cannot bind a key. Its Events, which every
//! kubelet can write, only say that a machine's AttestationRecord has news.

use k8s_openapi::api::events::v1::Event;
use kube::runtime::watcher;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::time::Timestamp;

use super::context::{Context, Task};
use crate::api::{
    AttestationRecord, ConditionKind, LastAttestation, Machine, MachineStatus, Reason,
};
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

/// What was recorded of a machine and its status does not say.
///
/// # Security
/// Events only say when to look: the records count, which the guard and the key broker alone write. What a machine
/// booted decides which images a followed tag still needs.
pub(super) async fn news(ctx: &Context, machine: &Machine) -> News {
    let (status, now) = (machine.status.as_ref(), ctx.latest());
    let Some(id) = machine.machine_id().ok().filter(|_| is_noticed(ctx, machine)) else {
        return News::default();
    };
    let name = AttestationRecord::name_of(Some(id));
    let record = ctx.objects::<AttestationRecord>().get_opt(&name).await;
    let record = record.unwrap_or_else(|error| {
        // The rest of the status must not wait for it, nor for a Role of an older release.
        tracing::warn!(%error, "{name} cannot be read; the status of its machine stays");
        None
    });
    newest(reports(record.iter().flat_map(AttestationRecord::attempts)), status, now)
}

/// Oldest first, so that of two in the same second the newer one counts.
fn reports(newest_first: impl Iterator<Item = Attempt>) -> impl Iterator<Item = Report> {
    let reports: Vec<_> = newest_first.filter_map(|attempt| Report::of(&attempt)).collect();
    reports.into_iter().rev()
}

/// Whether an Event says something of a machine that its status does not.
fn is_noticed(ctx: &Context, machine: &Machine) -> bool {
    let uid = machine.metadata.uid.as_ref();
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let events = ctx.caches.attempts.indexed(name);
    let about_this = |event: &&std::sync::Arc<Event>| {
        event.regarding.as_ref().and_then(|about| about.uid.as_ref()) == uid
    };
    let reports = events.iter().filter(about_this).filter_map(|event| Report::in_event(event));
    let news = newest(reports, machine.status.as_ref(), ctx.latest());
    news.last.is_some() || news.boot.is_some()
}

/// An attempt, as an Event or a record reports it.
#[derive(Clone, Debug)]
struct Report {
    at: Timestamp,
    last: LastAttestation,
    /// Whether the key was released: a node that attests while it runs does not request it.
    is_boot: bool,
}

impl Report {
    /// `None` if anyone could have sent the evidence.
    fn of(attempt: &Attempt) -> Option<Self> {
        let last = LastAttestation::of(attempt);
        let is_boot = attempt.ladder.is_released();
        (!attempt.unsigned).then_some(Self { at: attempt.at, last, is_boot })
    }

    /// The attempt in the Event, unless anyone could have made it: evidence without a valid signature belongs to
    /// nobody.
    fn in_event(event: &Event) -> Option<Self> {
        let text = event.metadata.annotations.as_ref()?.get(ATTEMPT)?;
        let last: LastAttestation = serde_json::from_str(text).ok()?;
        let code = last.code.as_deref().and_then(|code| code.parse().ok());
        let is_signed = !matches!(code, Some(Code::EvidenceMalformed | Code::QuoteInvalid));
        let is_boot = event.metadata.name.as_ref().is_some_and(|name| name.ends_with(RELEASED));
        let at = last.at.parse().ok()?;
        is_signed.then_some(Self { at, last, is_boot })
    }

    /// Times are reported in seconds. Of two attempts in the same second, the refused one counts, since it must
    /// not be overlooked.
    fn rank(&self) -> (Timestamp, bool) {
        (self.at, self.last.code.is_some())
    }
}

/// Reports from the future do not count: they would hide all later ones.
fn newest(
    reports: impl Iterator<Item = Report>,
    status: Option<&MachineStatus>,
    now: Timestamp,
) -> News {
    let reports: Vec<_> = reports.filter(|one| one.at <= now.plus_seconds(AHEAD)).collect();
    let last = status.and_then(|status| status.last_attestation.as_ref());
    let is_news =
        |one: &&Report| last != Some(&one.last) && is_later(one.at, last.map(|last| &last.at));
    let booted = status.and_then(|status| status.last_boot.as_ref());
    let image = status.and_then(|status| status.image.as_ref());
    let is_new_boot = |one: &&Report| {
        let is_other = one.last.image.is_some() && one.last.image.as_ref() != image;
        (booted != Some(&one.last.at) || is_other) && is_later(one.at, booted)
    };
    let boots = reports.iter().filter(|one| one.is_boot);
    let attempt = |one: &Report| one.last.clone();
    News {
        last: reports.iter().max_by_key(|one| one.rank()).filter(is_news).map(attempt),
        // Also where a refused attempt in the same second is what counts as the newest.
        boot: boots.max_by_key(|one| one.at).filter(is_new_boot).map(attempt),
    }
}

/// Whether a time is no earlier than the known one, if there is one.
fn is_later(at: Timestamp, known: Option<&String>) -> bool {
    known.and_then(|known| known.parse().ok()).is_none_or(|known: Timestamp| known <= at)
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
    use tec_core::explain::Gate;
    use tec_core::testing::sample;

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

    fn read(event: &Event) -> Report {
        Report::in_event(event).unwrap()
    }

    fn at() -> Timestamp {
        "2026-11-21T04:31:00Z".parse().unwrap()
    }

    #[test]
    fn an_event_from_the_future_hides_nothing() {
        let event = event(Some("TEC-A412"));
        let told =
            |now: Timestamp| newest(Report::in_event(&event).into_iter(), None, now).last.is_some();
        assert!(told(at()) && told(at().plus_seconds(-AHEAD)));
        assert!(!told(at().plus_seconds(-AHEAD - 1)));
    }

    #[test]
    fn a_refusal_says_its_code_and_a_release_none() {
        let (_, reason, message) = said(&read(&event(Some("TEC-A412"))).last);
        assert_eq!(reason, Reason::AttestationFailed);
        assert!(message.starts_with("TEC-A412 boot not approved"), "{message}");
        let expected = (Reason::AttestationSucceeded, String::new());
        let (_, reason, message) = said(&read(&event(None)).last);
        assert_eq!((reason, message), expected);
    }

    #[test]
    fn only_a_released_key_is_a_boot() {
        let mut event = event(None);
        for (outcome, expected) in [("released", true), ("attested", false), ("tec-a412", false)] {
            event.metadata.name = Some(format!("attempt-uid-{outcome}"));
            assert_eq!(read(&event).is_boot, expected, "{outcome}");
        }
    }

    #[test]
    fn of_two_attempts_in_one_second_the_refused_one_is_told() {
        let (released, refused) = (read(&event(None)), read(&event(Some("TEC-A412"))));
        assert!(refused.rank() > released.rank());
    }

    #[test]
    fn a_boot_in_the_second_of_a_refused_attempt_is_reported_too() {
        let refused = event(Some("TEC-A412"));
        let mut released = event(None);
        released.metadata.name = Some("attempt-uid-released".to_owned());
        let last = Some(read(&refused).last);
        let mut status = MachineStatus { last_attestation: last, ..MachineStatus::default() };
        let both = |released: &Event| [read(&refused), read(released)].into_iter();
        let news = newest(both(&released), Some(&status), at());
        assert_eq!((news.last, &news.boot), (None, &Some(read(&released).last)));
        status.last_boot = news.boot.map(|boot| boot.at);
        let news = newest(both(&released), Some(&status), at());
        assert_eq!((news.last, news.boot), (None, None), "it is reported once");
        status.image = Some("os-1".to_owned());
        let text = r#"{"at": "2026-11-21T04:31:00Z", "image": "os-2"}"#;
        released.metadata.annotations = Some([(ATTEMPT.to_owned(), text.to_owned())].into());
        let news = newest(both(&released), Some(&status), at());
        assert_eq!(news.boot.unwrap().image.unwrap(), "os-2", "of the same second");
    }

    #[test]
    fn of_two_boots_in_one_second_the_newer_one_counts() {
        let boot = |number: u64| {
            let mut attempt = sample::attempt_in_boot(number, 1);
            attempt.at = at();
            attempt.ladder.pass(Gate::Key, "released");
            attempt
        };
        let news = newest(reports([boot(2), boot(1)].into_iter()), None, at());
        assert_eq!(news.boot.unwrap().attempt, Some(sample::attempt_id(2).to_string()));
    }

    #[test]
    fn evidence_that_anybody_could_send_says_nothing_of_the_machine() {
        for event in [event(Some("TEC-A405")), event(Some("TEC-A400")), Event::default()] {
            assert!(Report::in_event(&event).is_none());
        }
    }
}
