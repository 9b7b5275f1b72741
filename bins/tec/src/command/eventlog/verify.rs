//! Which registers a log explains.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};
use tec_support::exit::{FAILED, OK};
use tec_tpm::event_log::{Bank, EventLog, EventView};
use tec_tpm::output::{MAX_INPUT, read_pcrread};

use crate::command::input;
use crate::output::Output;

/// How well a log explains the values of a TPM.
#[derive(Serialize)]
struct Verdict {
    registers: Vec<RegisterVerdict>,
    /// Events of the explained registers.
    events: Vec<EventView>,
}

#[derive(Serialize)]
struct RegisterVerdict {
    pcr: PcrIndex,
    explained: bool,
    /// The value that the log replays to.
    replayed: Sha256Digest,
    /// The value in the TPM.
    value: Sha256Digest,
}

/// Exit status 1 if a register is not explained.
pub(super) fn verify(
    log: EventLog<'_>,
    file: &Path,
    pcrs: &[PcrIndex],
    output: &Output,
) -> anyhow::Result<u8> {
    let shown = file.display();
    let values =
        read_pcrread(&input::text(file, MAX_INPUT as u64)?).with_context(|| shown.to_string())?;
    let replayed = log.replay_sha256()?;
    let chosen: PcrSet = match pcrs {
        [] => log.replay(Bank::Sha256)?.extended(),
        pcrs => pcrs.iter().copied().collect(),
    };
    let mut registers = Vec::new();
    for pcr in chosen.iter() {
        let value = values.get(&pcr);
        let value = *value.with_context(|| format!("{shown} has no value of PCR {pcr}"))?;
        let replayed = *replayed.value(pcr);
        registers.push(RegisterVerdict { pcr, explained: replayed == value, replayed, value });
    }
    let explained = registers.iter().filter(|register| register.explained);
    let explained: PcrSet = explained.map(|register| register.pcr).collect();
    let verdict = Verdict { registers, events: events(log, &values, explained)? };
    output.print(&verdict, text)?;
    Ok(if explained == chosen { OK } else { FAILED })
}

/// The events of explained registers, from a log verified for them.
fn events(
    log: EventLog<'_>,
    values: &BTreeMap<PcrIndex, Sha256Digest>,
    explained: PcrSet,
) -> anyhow::Result<Vec<EventView>> {
    if explained.is_empty() {
        return Ok(Vec::new());
    }
    let mut quoted = [Sha256Digest::ZERO; 24];
    for (slot, pcr) in quoted.iter_mut().zip(PcrIndex::all()) {
        *slot = values.get(&pcr).copied().unwrap_or(Sha256Digest::ZERO);
    }
    let verified = log.verify(&PcrValues::new(quoted), explained)?;
    Ok(verified.events().map(EventView::new).collect())
}

fn text(verdict: &Verdict) -> String {
    let mut text = String::new();
    for register in &verdict.registers {
        let (pcr, value) = (u8::from(register.pcr), register.value);
        let _ = if register.explained {
            writeln!(text, "PCR {pcr:2} = {value}  explained by the log")
        } else {
            let replayed = register.replayed;
            writeln!(text, "PCR {pcr:2} = {value}  NOT explained, the log gives {replayed}")
        };
    }
    let _ = write!(text, "\n{}", EventView::table(&verdict.events));
    text
}
