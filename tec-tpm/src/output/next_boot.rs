//! The next boot of a machine beside the boot that runs now and the values that are accepted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrSet;

use super::PredictionReport;
use super::ReferenceValues;
use super::UnpredictableRegisters;
use super::prediction::PredictedEvent;
use super::prediction::PredictedRegister;
use super::prediction::unpredictable_text;
use crate::event_log::Event;
use crate::event_log::EventLog;
use crate::event_log::EventView;

/// What runs now, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CurrentBoot<'b> {
    /// Values of registers; they count where there is no log.
    pub values: Option<&'b BTreeMap<PcrIndex, Sha256Digest>>,
    /// The event log.
    pub log: Option<&'b EventLog<'b>>,
}

/// Values that are accepted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Accepted {
    /// Images, each with a name: one of them must have all values.
    pub images: Vec<(String, ExpectedPcrs)>,
    /// Lists, each with a name: one of them must have every value.
    pub lists: Vec<(String, ReferenceValues)>,
}

/// What the next boot leaves, and what that means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextBoot {
    /// The registers that are predicted.
    pub registers: Vec<NextRegister>,
    /// The registers that cannot be told, by reason.
    pub unpredictable: Vec<UnpredictableRegisters>,
    /// Whether the values are accepted; none if it was not said what is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// One register after the next boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextRegister {
    /// The register.
    pub pcr: PcrIndex,
    /// Its value after the next boot.
    pub next: Sha256Digest,
    /// Its value now, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Sha256Digest>,
    /// Events of the running boot's log that the next boot does not make.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<EventView>,
    /// Events of the next boot that are not in the running boot's log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub new: Vec<PredictedEvent>,
}

/// Whether the next boot has accepted values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
#[non_exhaustive]
pub enum Verdict {
    /// All pinned registers have values that are accepted together.
    Accepted {
        /// Names of the images and lists.
        by: Vec<String>,
    },
    /// They have not.
    Refused {
        /// Pinned registers whose value nobody accepts; none if no image accepts them together.
        pcrs: Vec<PcrIndex>,
    },
    /// A pinned register cannot be told.
    Undetermined {
        /// These.
        pcrs: Vec<PcrIndex>,
    },
}

impl Verdict {
    /// Whether the next boot has accepted values.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted { .. })
    }
}

impl NextRegister {
    /// Whether the value changes; none if the present one is not known.
    pub fn changes(&self) -> Option<bool> {
        self.now.map(|now| now != self.next)
    }
}

impl NextBoot {
    /// Compares a prediction with the running boot.
    pub fn new(prediction: PredictionReport, current: CurrentBoot<'_>) -> Self {
        let PredictionReport {
            pcrs,
            unpredictable,
        } = prediction;
        let replayed = current.log.and_then(|log| log.replay_sha256().ok());
        // The log ends where the boot does; a running system extends registers further.
        let now = |pcr| match (&replayed, current.values) {
            (Some(values), _) => Some(*values.value(pcr)),
            (None, Some(values)) => values.get(&pcr).copied(),
            (None, None) => None,
        };
        let registers = pcrs.into_iter().map(|register| {
            let now = now(register.id);
            next_register(register, now, current.log)
        });
        Self {
            registers: registers.collect(),
            unpredictable,
            verdict: None,
        }
    }

    /// Says whether the registers in `pinned` have accepted values. A register that nothing is
    /// measured into, or that cannot be told, is accepted by nobody.
    #[must_use]
    pub fn judged(mut self, accepted: &Accepted, pinned: PcrSet) -> Self {
        self.verdict = Some(self.verdict_of(accepted, pinned));
        self
    }

    fn verdict_of(&self, accepted: &Accepted, pinned: PcrSet) -> Verdict {
        let value = |pcr| self.registers.iter().find(|r| r.pcr == pcr).map(|r| r.next);
        let unknown: Vec<_> = pinned.iter().filter(|pcr| value(*pcr).is_none()).collect();
        if pinned.is_empty() || !unknown.is_empty() {
            return Verdict::Undetermined { pcrs: unknown };
        }
        let in_image = |image: &ExpectedPcrs, pcr| image.pcr(pcr).map(|p| p.value) == value(pcr);
        let in_list =
            |list: &ReferenceValues, pcr| list.values(pcr).any(|v| Some(*v) == value(pcr));
        let images = accepted.images.iter();
        let images = images.filter(|(_, image)| pinned.iter().all(|pcr| in_image(image, pcr)));
        let lists = accepted.lists.iter();
        let lists = lists.filter(|(_, list)| pinned.iter().all(|pcr| in_list(list, pcr)));
        let by: Vec<String> = images
            .map(|(name, _)| name.clone())
            .chain(lists.map(|(name, _)| name.clone()))
            .collect();
        if !by.is_empty() {
            return Verdict::Accepted { by };
        }
        let known = |pcr: &PcrIndex| {
            accepted.images.iter().any(|(_, i)| in_image(i, *pcr))
                || accepted.lists.iter().any(|(_, l)| in_list(l, *pcr))
        };
        Verdict::Refused {
            pcrs: pinned.iter().filter(|pcr| !known(pcr)).collect(),
        }
    }

    /// The comparison for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for register in &self.registers {
            let mark = match register.changes() {
                None => "",
                Some(true) => "  changes",
                Some(false) => "  as now",
            };
            let (pcr, next) = (u8::from(register.pcr), register.next);
            let _ = writeln!(text, "PCR {pcr:2} = {next}{mark}");
            for event in &register.gone {
                let digest = event.digests.get("sha256").map_or("", String::as_str);
                let said = event.detail.as_deref().unwrap_or("");
                let _ = writeln!(text, "  - {digest}  {} {said}", event.kind);
            }
            for event in &register.new {
                let said = event.source.as_deref().or(event.subject.as_deref());
                let said = said.unwrap_or("").escape_debug();
                let _ = writeln!(text, "  + {}  {} {said}", event.hash, event.id);
            }
        }
        text += &unpredictable_text(&self.unpredictable);
        if let Some(verdict) = &self.verdict {
            text += &verdict_text(verdict);
        }
        text
    }
}

fn verdict_text(verdict: &Verdict) -> String {
    let list = |pcrs: &[PcrIndex]| {
        let pcrs: Vec<_> = pcrs.iter().map(ToString::to_string).collect();
        pcrs.join(", ")
    };
    match verdict {
        Verdict::Accepted { by } => format!("accepted: as {}\n", by.join(", ")),
        Verdict::Refused { pcrs } if pcrs.is_empty() => {
            "refused: each value is accepted, but not all of them together\n".to_owned()
        }
        Verdict::Refused { pcrs } => format!("refused: nobody accepts PCR {}\n", list(pcrs)),
        Verdict::Undetermined { pcrs } => {
            format!("cannot be told: PCR {} is not predicted\n", list(pcrs))
        }
    }
}

/// Events are matched by type and digest; where all match, only their order can differ.
fn next_register(
    register: PredictedRegister,
    now: Option<Sha256Digest>,
    log: Option<&EventLog<'_>>,
) -> NextRegister {
    let mut next = NextRegister {
        pcr: register.id,
        next: register.value,
        now,
        gone: Vec::new(),
        new: Vec::new(),
    };
    let Some(log) = log else {
        return next;
    };
    let of_register = |event: &&Event<'_>| event.extends() == Some(register.id);
    let mut logged: Vec<_> = log.events().iter().filter(of_register).collect();
    for event in register.events {
        let same = logged.iter().position(|logged| {
            let digest = logged.digests.sha256;
            digest == Some(event.hash.as_bytes()) && logged.kind.name() == event.name
        });
        match same {
            Some(position) => drop(logged.remove(position)),
            None => next.new.push(event),
        }
    }
    next.gone = logged.into_iter().map(EventView::new).collect();
    next
}

#[cfg(test)]
mod tests;
