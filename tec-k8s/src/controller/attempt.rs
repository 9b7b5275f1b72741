//! A machine's last attempts to attest, as parts of its status.
//!
//! The guard may write no status, so that an attacker who takes it over cannot bind a key.

use std::time::Duration;

use tec_core::code::Code;
use tec_core::time::Timestamp;

use super::context::Context;
use super::summary::Summary;
use crate::api::{ConditionKind, LastAttestation, Machine, MachineStatus, Reason};

/// For how many seconds the status does not say that a machine attested once more, or was refused once more
/// for the same reason.
const SELDOM: i64 = 3600;
const QUIET: i64 = 30;

/// What the status of a machine does not report yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// The newest attempt.
    pub(super) last: Option<LastAttestation>,
    /// The newest attempt that obtained the key, which may be an earlier one.
    pub(super) boot: Option<LastAttestation>,
}

impl News {
    /// What was recorded of a machine and its status does not say.
    pub(super) fn of(ctx: &Context, machine: &Machine) -> Self {
        let status = machine.status.clone().unwrap_or_default();
        Self::unreported(Summary::for_machine(ctx, machine), &status, ctx.latest())
    }

    fn unreported(summary: Summary, status: &MachineStatus, now: Timestamp) -> Self {
        let is_boot = summary.last == summary.boot;
        let told = status.last_attestation.as_ref();
        Self {
            last: summary.last.filter(|last| is_news(last, told, (is_boot, now))),
            boot: summary.boot.filter(|boot| is_new_boot(boot, status)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// When the status says what it leaves out now, if it leaves out a refusal.
    pub(super) fn later(ctx: &Context, machine: &Machine) -> Option<Duration> {
        let last = Summary::for_machine(ctx, machine).last?;
        let told = machine.status.as_ref()?.last_attestation.as_ref()?;
        let is_left_out = last != *told && last.code.is_some();
        is_left_out.then_some(Duration::from_secs(QUIET.unsigned_abs()))
    }

    /// The condition that reports the newest attempt.
    pub(super) fn said(&self) -> Option<(ConditionKind, Reason, String)> {
        self.last.as_ref().map(said)
    }
}

fn is_news(
    last: &LastAttestation,
    told: Option<&LastAttestation>,
    (is_boot, now): (bool, Timestamp),
) -> bool {
    let Some(told) = told else {
        return true;
    };
    let Some(passed) = seconds_since(&told.at, &last.at) else {
        return true;
    };
    let pause = match last.code {
        _ if (&last.code, &last.image) != (&told.code, &told.image) => 0,
        Some(_) => QUIET,
        None if is_boot => 0,
        None => SELDOM,
    };
    let quiet = seconds_since(&told.at, &now.to_string()).unwrap_or(pause);
    last != told && passed >= 0 && passed.max(quiet) >= pause
}

fn is_new_boot(boot: &LastAttestation, status: &MachineStatus) -> bool {
    let known = status.last_boot.as_ref();
    let is_other = boot.image.is_some() && boot.image != status.image;
    let is_later = known.and_then(|known| seconds_since(known, &boot.at));
    (known != Some(&boot.at) || is_other) && is_later.is_none_or(|passed| passed >= 0)
}

/// `None` if one of them is no time.
fn seconds_since(earlier: &str, later: &str) -> Option<i64> {
    let seconds = |text: &str| Some(text.parse::<Timestamp>().ok()?.unix_seconds());
    Some(seconds(later)?.saturating_sub(seconds(earlier)?))
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

    const BASE: &str = "2026-11-21T04:31:00Z";

    fn at(second: i64) -> String {
        BASE.parse::<Timestamp>().unwrap().plus_seconds(second).to_string()
    }

    fn last(second: i64, code: Option<&str>) -> LastAttestation {
        let code = code.map(str::to_owned);
        LastAttestation { at: at(second), code, ..LastAttestation::default() }
    }

    fn booted(second: i64, image: &str) -> LastAttestation {
        LastAttestation { image: Some(image.to_owned()), ..last(second, None) }
    }

    #[test]
    fn a_refusal_says_its_code_and_a_release_none() {
        let (_, reason, message) = said(&last(0, Some("TEC-A412")));
        assert_eq!(reason, Reason::AttestationFailed);
        assert!(message.starts_with("TEC-A412 boot not approved"), "{message}");
        let expected = (Reason::AttestationSucceeded, String::new());
        let (_, reason, message) = said(&last(0, None));
        assert_eq!((reason, message), expected);
    }

    #[test]
    fn the_same_again_is_seldom_news_and_another_outcome_always_is() {
        let refused = Some("TEC-A412");
        for (told, code, second, expected) in [
            (None, None, SELDOM - 1, false),
            (None, None, SELDOM, true),
            (refused, refused, QUIET - 1, false),
            (refused, refused, QUIET, true),
            (refused, Some("TEC-A409"), 0, true),
            (None, refused, 0, true),
            (refused, None, 1, true),
            (refused, None, -1, false),
        ] {
            let told = last(0, told);
            let now = at(second).parse().unwrap();
            let is = is_news(&last(second, code), Some(&told), (false, now));
            assert_eq!(is, expected, "{code:?} after {second} s of {told:?}");
        }
        let now = |second| at(second).parse().unwrap();
        assert!(is_news(&last(1, None), Some(&last(0, None)), (true, now(1))), "a boot");
        let again = last(1, refused);
        assert!(
            is_news(&again, Some(&last(0, refused)), (false, now(QUIET))),
            "the last of several"
        );
    }

    #[test]
    fn a_boot_in_the_second_of_a_refused_attempt_is_reported_too_and_once() {
        let refused = last(0, Some("TEC-A412"));
        let now = BASE.parse().unwrap();
        let last_attestation = Some(refused.clone());
        let mut status = MachineStatus { last_attestation, ..MachineStatus::default() };
        let summary = |image| {
            let (last, boot) = (Some(refused.clone()), Some(booted(0, image)));
            Summary { last, boot, seen: None }
        };
        let news = News::unreported(summary("os-1"), &status, now);
        assert_eq!((news.last, &news.boot), (None, &Some(booted(0, "os-1"))));
        (status.last_boot, status.image) = (Some(at(0)), Some("os-1".to_owned()));
        assert!(News::unreported(summary("os-1"), &status, now).is_empty());
        let news = News::unreported(summary("os-2"), &status, now);
        assert_eq!(news.boot, Some(booted(0, "os-2")), "of the same second");
        status.last_boot = Some(at(1));
        assert!(News::unreported(summary("os-2"), &status, now).is_empty(), "an earlier boot");
    }
}
