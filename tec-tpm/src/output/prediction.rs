//! This project's own format for one image: what its boot measures, in all banks, and what cannot
//! be predicted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use crate::compute::{BankDigests, Measurement, Prediction, Register, Unpredictable};
use crate::event_log::Bank;

/// All results of a prediction. Its JSON is that of the label `org.coreos.pcrs`, with more members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PredictionReport {
    /// The predicted and recorded registers that something is measured into.
    pub pcrs: Vec<PredictedRegister>,
    /// The registers that cannot be predicted, by reason.
    pub unpredictable: Vec<UnpredictableRegisters>,
    /// See [`Prediction::has_root_hash`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_hash: Option<bool>,
    /// See [`Prediction::shell_words`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell_words: Vec<String>,
}

/// One register whose value is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PredictedRegister {
    /// The register.
    pub id: PcrIndex,
    /// Value in the SHA-256 bank.
    pub value: Sha256Digest,
    /// Values in the other computed banks, in hexadecimal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub banks: BTreeMap<&'static str, String>,
    /// The measurements in order.
    pub events: Vec<PredictedEvent>,
    /// Whether the value was taken from a log: see [`Register::Recorded`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
}

/// One predicted measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PredictedEvent {
    /// Name of the event's type.
    pub name: String,
    /// The register.
    pub pcr: PcrIndex,
    /// Digest in the SHA-256 bank.
    pub hash: Sha256Digest,
    /// The part of the boot that makes it, for example `Pcr4Shim`.
    pub id: &'static str,
    /// File that it was computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What is measured: a variable, a command or a section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Digests in the other computed banks, in hexadecimal.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub banks: BTreeMap<&'static str, String>,
}

/// Registers that cannot be predicted for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnpredictableRegisters {
    /// The registers.
    pub pcrs: Vec<PcrIndex>,
    /// Why.
    pub reason: String,
    /// What would make them predictable, if the caller of [`PredictionReport::new`] knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl PredictionReport {
    /// The report of a prediction; `remedy` states what to add so that a register can be predicted.
    /// Registers that were not requested are omitted.
    pub fn new(
        prediction: &Prediction,
        remedy: impl Fn(&Unpredictable) -> Option<&'static str>,
    ) -> Self {
        Self {
            pcrs: PcrIndex::all().filter_map(|pcr| register(prediction, pcr)).collect(),
            unpredictable: unpredictable(prediction, remedy),
            root_hash: prediction.has_root_hash(),
            shell_words: prediction.shell_words(),
        }
    }

    /// The report in readable form.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for pcr in &self.pcrs {
            let _ = writeln!(text, "PCR {:2} = {}", u8::from(pcr.id), pcr.value);
            for (bank, value) in &pcr.banks {
                let _ = writeln!(text, "  {bank} = {value}");
            }
            for event in &pcr.events {
                let said = event.source.as_deref().or(event.subject.as_deref());
                let said = printable(said.unwrap_or(""));
                let _ = writeln!(text, "  {}  {:15} {said}", event.hash, event.id);
            }
        }
        let rest = unpredictable_text(&self.unpredictable) + root_text(self.root_hash);
        text + &rest + &shell_text(&self.shell_words)
    }
}

/// The registers that cannot be predicted, in readable form: one line per reason.
pub fn unpredictable_text(unpredictable: &[UnpredictableRegisters]) -> String {
    let mut text = String::new();
    for left in unpredictable {
        let pcrs: Vec<_> = left.pcrs.iter().map(ToString::to_string).collect();
        let (word, pcrs) = (plural(pcrs.len()), pcrs.join(", "));
        let reason = printable(&left.reason);
        let _ = write!(text, "{word} {pcrs}: not predicted, {reason}");
        match &left.remedy {
            Some(remedy) => text.extend(["; give ", remedy, "\n"]),
            None => text.push('\n'),
        }
    }
    text
}

/// What it means that a command line names no hash of the root, or that none is known, see
/// [`Prediction::has_root_hash`]; empty if it does.
pub fn root_text(root_hash: Option<bool>) -> &'static str {
    match root_hash {
        Some(true) => "",
        Some(false) => {
            "root file system: not measured (no roothash= or usrhash= on a command line that is checked); only \
             encryption with the released key protects it\n"
        }
        None => "root file system: whether a hash on the command line covers it is not known\n",
    }
}

/// What it means that a command line has such words, see [`Prediction::shell_words`]; empty if it has none.
pub fn shell_text(words: &[String]) -> String {
    if words.is_empty() {
        return String::new();
    }
    let words = printable(&words.join(" "));
    format!(
        "warning: the command line has {words}: this boot may give a shell, without a password, to someone \
         at the console, and it gets the key; approve the regular boot entry instead\n"
    )
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "PCR" } else { "PCRs" }
}

/// Makes text printable: commands and file names come from the image.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn register(prediction: &Prediction, pcr: PcrIndex) -> Option<PredictedRegister> {
    let (value, recorded) = match prediction.register(pcr) {
        Register::Predicted(value) => (value, false),
        Register::Recorded(value) => (value, true),
        Register::Unpredictable(_) => return None,
    };
    let events: Vec<_> = prediction.of_register(pcr).map(event).collect();
    let says_something = !events.is_empty() || prediction.has_to_stay_empty(pcr);
    says_something.then(|| PredictedRegister {
        id: pcr,
        value: value.sha256(),
        banks: other_banks(&value),
        events,
        recorded,
    })
}

fn event(measurement: &Measurement) -> PredictedEvent {
    PredictedEvent {
        name: measurement.kind.name().into_owned(),
        pcr: measurement.pcr,
        hash: measurement.digest,
        id: measurement.component.as_str(),
        source: measurement.file.clone(),
        subject: measurement.subject.clone(),
        banks: other_banks(&measurement.digests),
    }
}

fn other_banks(digests: &BankDigests) -> BTreeMap<&'static str, String> {
    let others = Bank::ALL.into_iter().filter(|bank| *bank != Bank::Sha256);
    others.filter_map(|bank| Some((bank.as_str(), hex::encode(digests.get(bank)?)))).collect()
}

/// By reason, in the order of the first register of each.
fn unpredictable(
    prediction: &Prediction,
    remedy: impl Fn(&Unpredictable) -> Option<&'static str>,
) -> Vec<UnpredictableRegisters> {
    let mut found: Vec<(&Unpredictable, Vec<PcrIndex>)> = Vec::new();
    for (pcr, reason) in prediction.unpredictable() {
        if *reason == Unpredictable::NotAsked {
            continue;
        }
        match found.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, pcrs)) => pcrs.push(pcr),
            None => found.push((reason, vec![pcr])),
        }
    }
    let left = found.into_iter().map(|(reason, pcrs)| UnpredictableRegisters {
        pcrs,
        reason: reason.to_string(),
        remedy: remedy(reason).map(str::to_owned),
    });
    left.collect()
}

#[cfg(test)]
mod tests {
    use super::super::read_label;
    use super::*;
    use crate::compute::testing::debian_chain;
    use crate::compute::{Banks, BootPredictor, PlatformState, SecureBoot};

    fn report(remedy: impl Fn(&Unpredictable) -> Option<&'static str>) -> PredictionReport {
        let machine = PlatformState::with_unknown_variables(SecureBoot::On);
        let predictor = BootPredictor::new().with_banks(Banks::SHA256.with(Bank::Sha384));
        let image = debian_chain("2.12");
        PredictionReport::new(&predictor.predict(&image, &machine).unwrap(), remedy)
    }

    #[test]
    fn the_report_is_a_label_with_the_other_banks_beside() {
        let report = report(|_| None);
        let json = serde_json::to_string(&report).unwrap();
        let label = read_label(&json).unwrap();
        let registers: Vec<_> = label.pcrs.iter().map(|pcr| u8::from(pcr.id)).collect();
        assert_eq!(registers, [4]);
        assert_eq!(label.pcrs[0].events.len(), 5);
        let banks: Vec<_> = report.pcrs[0].banks.keys().copied().collect();
        assert_eq!(banks, ["sha384"]);
        assert_eq!(report.pcrs[0].banks["sha384"].len(), 96);
        assert_eq!(report.pcrs[0].events[0].banks["sha384"].len(), 96);
    }

    #[test]
    fn what_cannot_be_told_is_told_once_per_reason_with_its_remedy() {
        let report = report(|reason| (*reason == Unpredictable::Keys).then_some("--efivars"));
        let firmware = &report.unpredictable[0];
        let pcrs: Vec<_> = firmware.pcrs.iter().map(|pcr| u8::from(*pcr)).collect();
        assert_eq!((pcrs, &firmware.remedy), (vec![0, 1, 2, 3, 5, 6], &None));
        let text = report.text();
        let line = "PCR 7: not predicted, it holds the keys of the machine, which were not given; \
                    give --efivars\n";
        assert!(text.contains(line), "{text}");
    }
}
