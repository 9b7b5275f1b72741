//! The next boot of a machine, compared with the current boot and the accepted values.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use serde::Serialize;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::{BootState, BootStates, LiveImages, Pins};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};

use super::prediction::{PredictedEvent, PredictedRegister, unpredictable_text};
use super::{PredictionReport, ReferenceValues, UnpredictableRegisters};
use crate::compute::Prediction;
use crate::event_log::{Event, EventLog, EventLogError, EventView};

/// The current boot, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CurrentBoot<'b> {
    /// Values of registers; used only if there is no log.
    pub values: Option<&'b BTreeMap<PcrIndex, Sha256Digest>>,
    /// The event log.
    pub log: Option<&'b EventLog<'b>>,
}

/// Values that are accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted<'a> {
    /// Determines the states that the images can be in: one of them must have all values.
    pub states: &'a dyn BootStates,
    /// The images.
    pub live: &'a LiveImages<'a>,
    /// Lists, each with a name: one of them must have every value.
    pub lists: &'a [(String, ReferenceValues)],
}

/// The values that the next boot produces, and what they mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextBoot {
    /// The registers that are predicted, or taken from the log.
    pub registers: Vec<NextRegister>,
    /// The registers that cannot be predicted, by reason.
    pub unpredictable: Vec<UnpredictableRegisters>,
    /// Whether the values are accepted; none if the accepted values were not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Values in the form that images state, where they differ from those of `registers`.
    #[serde(skip)]
    stated: BTreeMap<PcrIndex, Sha256Digest>,
}

/// One register after the next boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextRegister {
    /// The register.
    pub pcr: PcrIndex,
    /// Value after the next boot.
    pub next: Sha256Digest,
    /// Current value, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<Sha256Digest>,
    /// Whether the value was taken from the log, since the firmware alone produces it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
    /// Events in the current boot's log that the next boot does not produce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<EventView>,
    /// Events of the next boot that are not in the current boot's log.
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
        /// The boot in terms of the images: one of them, or a state between them.
        states: Vec<BootState>,
        /// Names of the lists.
        lists: Vec<String>,
    },
    /// The values are not accepted.
    Refused {
        /// Pinned registers whose value is not accepted at all; empty if the values are only not accepted
        /// together.
        pcrs: Vec<PcrIndex>,
        /// Why some states of the images may also be refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// A pinned register cannot be predicted.
    Undetermined {
        /// The registers.
        pcrs: Vec<PcrIndex>,
    },
    /// All pinned registers stay as they are, so the servers' decision about the current boot still
    /// applies.
    AsNow,
    /// The accepted values are unknown, and pinned registers change.
    Changed {
        /// The registers.
        pcrs: Vec<PcrIndex>,
    },
    /// A key broker would accept the boot.
    ServerAccepts,
    /// A key broker would refuse the boot.
    ServerRefuses {
        /// The code of the refusal.
        code: Code,
    },
    /// The machine would not start a file.
    Blocked {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
}

impl Verdict {
    /// Whether the next boot has accepted values.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted { .. } | Self::AsNow | Self::ServerAccepts)
    }
}

impl NextRegister {
    /// Whether the value changes; none if the current one is not known.
    pub fn changes(&self) -> Option<bool> {
        self.now.map(|now| now != self.next)
    }
}

impl NextBoot {
    /// Compares a prediction with the current boot.
    ///
    /// # Errors
    /// [`EventLogError`] when the log has no complete SHA-256 bank.
    pub fn new(
        prediction: PredictionReport,
        current: CurrentBoot<'_>,
    ) -> Result<Self, EventLogError> {
        let PredictionReport { pcrs, unpredictable, .. } = prediction;
        let replayed = current.log.map(EventLog::replay_sha256).transpose()?;
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
        let (registers, stated) = (registers.collect(), BTreeMap::new());
        Ok(Self { registers, unpredictable, verdict: None, stated })
    }

    /// With the prediction in the form that images state, if `registers` have that of this machine's firmware.
    pub fn stated_as(mut self, prediction: &Prediction) -> Self {
        let stated = prediction.expected().pcrs;
        self.stated = stated.into_iter().map(|stated| (stated.id, stated.value)).collect();
        self
    }

    /// The values to ask a server about: in the form that images state.
    pub fn stated(&self) -> BTreeMap<PcrIndex, Sha256Digest> {
        let value = |register: &NextRegister| {
            (register.pcr, *self.stated.get(&register.pcr).unwrap_or(&register.next))
        };
        self.registers.iter().map(value).collect()
    }

    /// Determines whether the pinned registers have accepted values, as a server with these pins does. A
    /// register that nothing is measured into, or that cannot be predicted, is never accepted.
    pub fn judged(mut self, accepted: Accepted<'_>, pins: Pins) -> Self {
        self.verdict = Some(self.verdict_of(accepted, pins));
        self
    }

    /// A boot that ends at a file which the machine refuses to start; nothing is measured then.
    pub fn blocked(file: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            registers: Vec::new(),
            unpredictable: Vec::new(),
            verdict: Some(Verdict::Blocked { file: file.into(), reason: reason.into() }),
            stated: BTreeMap::new(),
        }
    }

    /// Determines whether the pinned registers stay as they are now: for a node, which does not know what its
    /// servers accept.
    pub fn beside_the_running_boot(mut self, pins: Pins) -> Self {
        let pinned: PcrSet = match pins {
            Pins::Exactly(pinned) => pinned.iter().collect(),
            Pins::Predicted => Pins::of_images().filter(|pcr| self.is_known(*pcr)).collect(),
        };
        let change = |pcr| {
            let mut registers = self.registers.iter();
            let register = registers.find(|register| register.pcr == pcr);
            register.and_then(NextRegister::changes)
        };
        let such = |wanted| pinned.iter().filter(|pcr| change(*pcr) == wanted).collect();
        let (unknown, changed): (Vec<_>, Vec<_>) = (such(None), such(Some(true)));
        self.verdict = Some(if !unknown.is_empty() || pinned.is_empty() {
            Verdict::Undetermined { pcrs: unknown }
        } else if changed.is_empty() {
            Verdict::AsNow
        } else {
            Verdict::Changed { pcrs: changed }
        });
        self
    }

    fn verdict_of(&self, accepted: Accepted<'_>, pins: Pins) -> Verdict {
        let next = self.values();
        let Accepted { states, live, lists } = accepted;
        let in_list = |list: &ReferenceValues, pcr| list.values(pcr).any(|v| v == next.value(pcr));
        let pinned_by = |list: &ReferenceValues| {
            pins.of_stated(|pcr: &PcrIndex| list.values(*pcr).next().is_some())
        };
        let fits = |(_, list): &&(String, _)| {
            pinned_by(list).is_some_and(|pinned| pinned.iter().all(|pcr| in_list(list, pcr)))
        };
        let fitting = lists.iter().filter(fits).map(|(name, _)| name.clone());
        let fitting: Vec<_> = fitting.collect();
        let admitted = pins.admit(states, live, &next);
        if !admitted.is_empty() || !fitting.is_empty() {
            return Verdict::Accepted { states: admitted, lists: fitting };
        }
        let of_images = (live.iter().next().is_some() || lists.is_empty()).then(|| pins.any(live));
        let of_lists = lists.iter().filter_map(|(_, list)| pinned_by(list));
        let pinned: PcrSet =
            of_images.into_iter().chain(of_lists).flat_map(PinnedPcrs::iter).collect();
        let (known, unknown): (Vec<_>, Vec<_>) = pinned.iter().partition(|pcr| self.is_known(*pcr));
        if !unknown.is_empty() {
            return Verdict::Undetermined { pcrs: unknown };
        }
        let occurs = |pcr: &PcrIndex| {
            pins.values(states, live, *pcr).contains(next.value(*pcr))
                || lists.iter().any(|(_, list)| in_list(list, *pcr))
        };
        Verdict::Refused {
            pcrs: known.into_iter().filter(|pcr| !occurs(pcr)).collect(),
            trouble: pins.trouble(states, live),
        }
    }

    fn is_known(&self, pcr: PcrIndex) -> bool {
        self.registers.iter().any(|register| register.pcr == pcr)
    }

    /// The values after the next boot, as images state them.
    fn values(&self) -> PcrValues {
        let stated = self.stated();
        PcrValues::predicted(|pcr| stated.get(&pcr).copied())
    }

    /// The comparison in readable form.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for register in &self.registers {
            let mark = match register.changes() {
                None => "",
                Some(true) => "  changes",
                Some(false) if register.recorded => "  from the log",
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
            let _ = writeln!(text, "{verdict}");
        }
        text
    }
}

/// One line, without its end.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |pcrs: &[PcrIndex]| {
            let pcrs: Vec<_> = pcrs.iter().map(ToString::to_string).collect();
            pcrs.join(", ")
        };
        match self {
            Self::Accepted { states, lists } => {
                let states = states.iter().map(BootState::sentence);
                let lists = lists.iter().map(|name| format!("list {name}"));
                let by: Vec<_> = states.chain(lists).collect();
                write!(f, "accepted: {}", by.join("; "))
            }
            Self::Refused { pcrs, trouble } => {
                let why = if pcrs.is_empty() {
                    "each value is accepted, but not all of them together".to_owned()
                } else {
                    format!("nobody accepts PCR {}", list(pcrs))
                };
                let trouble = trouble.as_ref().map(|trouble| format!(" ({trouble})"));
                write!(f, "refused: {why}{}", trouble.unwrap_or_default())
            }
            Self::Undetermined { pcrs } => {
                write!(f, "undecided: PCR {} is not predicted", list(pcrs))
            }
            Self::AsNow => f.write_str("as the running boot: no pinned register changes"),
            Self::Changed { pcrs } => {
                write!(f, "changes PCR {}: approve this image before", list(pcrs))
            }
            Self::ServerAccepts => f.write_str("accepted by the key broker"),
            Self::ServerRefuses { code } => {
                write!(f, "refused by the key broker: {code} {}", code.title())
            }
            Self::Blocked { file, reason } => {
                write!(f, "does not boot: {}: {reason}", file.escape_debug())
            }
        }
    }
}

/// Events are matched by type and digest; if all match, only their order can differ.
fn next_register(
    register: PredictedRegister,
    now: Option<Sha256Digest>,
    log: Option<&EventLog<'_>>,
) -> NextRegister {
    let mut next = NextRegister {
        pcr: register.id,
        next: register.value,
        now,
        recorded: register.recorded,
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
