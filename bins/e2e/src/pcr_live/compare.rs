//! Compares the prediction with the measurements: registers in all banks, and event by event.

use std::collections::BTreeMap;

use anyhow::Context as _;
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_tpm::compute::{
    Banks, BootPredictor, DirectoryImage, Measurement, PlatformState, Prediction, Register,
};
use tec_tpm::event_log::{Bank, Event, EventLog};

use super::boot::Recording;
use crate::qemu::disk::GRUB_DEVICE;

/// The predicted registers.
const REGISTERS: [PcrIndex; 7] = [
    PcrIndex::BOOT_MANAGER,
    PcrIndex::SECURE_BOOT,
    PcrIndex::BOOT_COMMANDS,
    PcrIndex::BOOT_FILES,
    PcrIndex::KERNEL_BOOT,
    PcrIndex::KERNEL_CONFIG,
    PcrIndex::MOK,
];

/// A register, predicted and measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegisterResult {
    /// The register.
    pub pcr: PcrIndex,
    /// The result.
    pub verdict: Verdict,
}

/// The result for a register.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// It cannot be derived from boot files and variables.
    Unpredictable(String),
    /// It was predicted.
    Predicted {
        /// Values of each active bank.
        banks: BTreeMap<Bank, Values>,
        /// How many events match in order; `None` if the system got no log.
        events: Option<usize>,
        /// The first event that does not match.
        difference: Option<Difference>,
    },
}

/// A register in one bank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Values {
    /// As predicted.
    pub predicted: Vec<u8>,
    /// As the TPM has it.
    pub measured: Vec<u8>,
}

/// Two different events at the same position of a register.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// Position among the events of the register, from 0.
    pub place: usize,
    /// Component, file and subject predicted there; `None` after the end of the prediction.
    pub predicted: Option<String>,
    /// Number, type and data logged there; `None` after the end of the log.
    pub logged: Option<String>,
    /// Banks whose digests differ; empty if the type differs, or an event is missing.
    pub banks: Vec<Bank>,
}

impl Verdict {
    /// Whether nothing contradicts the prediction.
    pub fn holds(&self) -> bool {
        match self {
            Self::Unpredictable(_) => true,
            Self::Predicted { banks, difference, .. } => {
                difference.is_none() && banks.values().all(Values::fit)
            }
        }
    }
}

impl Values {
    /// Whether they are equal.
    pub fn fit(&self) -> bool {
        self.predicted == self.measured
    }
}

/// Predicts the boot from its files and the variables before it, and compares.
///
/// # Errors
/// There is no prediction, or the log does not prove the measurements.
pub fn compare(recording: &Recording) -> anyhow::Result<Vec<RegisterResult>> {
    let image = DirectoryImage::open(recording.esp()).context("cannot open the boot files")?;
    let platform = PlatformState::from_variable_store(&recording.variables)?;
    let prediction = BootPredictor::new()
        .with_banks(Banks::ALL)
        .predict(&image, &platform.with_grub_device(GRUB_DEVICE))
        .context("cannot predict the boot")?;
    let log = match &recording.log {
        Some(bytes) => Some(proven(bytes, recording)?),
        None => None,
    };
    let registers = REGISTERS.into_iter();
    registers
        .map(|pcr| {
            let verdict = verdict(pcr, &prediction, log.as_ref(), recording)?;
            Ok(RegisterResult { pcr, verdict })
        })
        .collect()
}

/// The log, if it replays to the quoted values and, in the other banks, to the values read.
fn proven<'l>(bytes: &'l [u8], recording: &Recording) -> anyhow::Result<EventLog<'l>> {
    let parse = || EventLog::parse(bytes).context("cannot read the event log");
    let chosen: PcrSet = REGISTERS.into_iter().collect();
    parse()?
        .verify(&recording.quoted, chosen)
        .context("the event log does not replay to the quote")?;
    let log = parse()?;
    for bank in recording.pcrs.keys() {
        let replayed = log.replay(*bank).context("cannot replay the event log")?;
        for pcr in REGISTERS {
            anyhow::ensure!(
                measured(recording, *bank, pcr)? == replayed.value(pcr),
                "the event log does not replay to PCR {pcr} of the {bank} bank"
            );
        }
    }
    Ok(log)
}

fn measured(recording: &Recording, bank: Bank, pcr: PcrIndex) -> anyhow::Result<&[u8]> {
    let value = recording.pcrs.get(&bank).and_then(|bank| bank.get(&pcr));
    Ok(value.with_context(|| format!("PCR {pcr} of the {bank} bank was not read"))?)
}

fn verdict(
    pcr: PcrIndex,
    prediction: &Prediction,
    log: Option<&EventLog<'_>>,
    recording: &Recording,
) -> anyhow::Result<Verdict> {
    let value = match prediction.register(pcr) {
        Register::Predicted(value) => value,
        other => return Ok(Verdict::Unpredictable(other.to_string())),
    };
    let mut banks = BTreeMap::new();
    for bank in recording.pcrs.keys() {
        let predicted = value.get(*bank).unwrap_or_default().to_vec();
        let measured = measured(recording, *bank, pcr)?.to_vec();
        let values = Values { predicted, measured };
        banks.insert(*bank, values);
    }
    let predicted: Vec<&Measurement> = prediction.of_register(pcr).collect();
    let compared = log.map(|log| {
        let logged: Vec<_> =
            log.events().iter().filter(|event| event.extends() == Some(pcr)).collect();
        first_difference(&predicted, &logged, log)
    });
    Ok(Verdict::Predicted {
        banks,
        events: compared.as_ref().map(|compared| match compared {
            Some(difference) => difference.place,
            None => predicted.len(),
        }),
        difference: compared.flatten(),
    })
}

fn first_difference(
    predicted: &[&Measurement],
    logged: &[&Event<'_>],
    log: &EventLog<'_>,
) -> Option<Difference> {
    (0..predicted.len().max(logged.len())).find_map(|place| {
        let (predicted, logged) = (predicted.get(place).copied(), logged.get(place).copied());
        let banks = match (predicted, logged) {
            (Some(predicted), Some(logged)) => log
                .banks()
                .filter(|bank| predicted.digests.get(*bank) != logged.digests.get(*bank))
                .collect(),
            _ => Vec::new(),
        };
        let same_kind = predicted.map(|event| event.kind) == logged.map(|event| event.kind);
        (!banks.is_empty() || !same_kind).then(|| Difference {
            place,
            predicted: predicted.map(describe_measurement),
            logged: logged.map(describe_event),
            banks,
        })
    })
}

fn describe_measurement(measurement: &Measurement) -> String {
    let mut text = format!("{} ({})", measurement.component, measurement.kind.name());
    for part in [&measurement.file, &measurement.subject].into_iter().flatten() {
        text = format!("{text} {part:?}");
    }
    text
}

fn describe_event(event: &Event<'_>) -> String {
    let detail = event.detail().unwrap_or_default();
    format!("event {} ({}) {detail:?}", event.number, event.kind.name())
}

#[cfg(test)]
mod tests;
