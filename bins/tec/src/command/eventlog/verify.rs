//! Which registers a log explains.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use tec_core::attest::{LogEvidence, LoggedEvent};
use tec_core::boot::{SYSTEMD, add_systemd};
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
    /// Events of the explained registers, at the end those of systemd.
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
    log: &EventLog<'_>,
    systemd: &[LoggedEvent],
    file: &Path,
    pcrs: &[PcrIndex],
    output: &Output,
) -> anyhow::Result<u8> {
    let shown = file.display();
    let values =
        read_pcrread(&input::text(file, MAX_INPUT as u64)?).with_context(|| shown.to_string())?;
    let replay = log.replay_sha256()?;
    let extended = log.replay(Bank::Sha256)?.extended();
    let chosen: PcrSet = match pcrs {
        [] => extended.iter().chain(systemd.iter().map(|record| record.pcr)).collect(),
        pcrs => pcrs.iter().copied().collect(),
    };
    let quoted = PcrValues::predicted(|pcr| values.get(&pcr).copied());
    let mut evidence = log.evidence_against(&quoted);
    add_systemd(&mut evidence, &quoted, systemd);
    let (logged, proven) = match evidence {
        LogEvidence::Parsed { events, replayed, .. } => (events, replayed),
        _ => (Vec::new(), PcrSet::default()),
    };
    let mut registers = Vec::new();
    for pcr in chosen.iter() {
        let value = values.get(&pcr);
        let value = *value.with_context(|| format!("{shown} has no value of PCR {pcr}"))?;
        let (explained, replayed) = (proven.contains(pcr), *replay.value(pcr));
        registers.push(RegisterVerdict { pcr, explained, replayed, value });
    }
    let is_explained = |pcr: PcrIndex| chosen.contains(pcr) && proven.contains(pcr);
    let of_firmware = log.events().iter().filter(|e| e.extends().is_some_and(is_explained));
    let after = logged.iter().filter(|e| e.kind == SYSTEMD && is_explained(e.pcr));
    let events = of_firmware.map(EventView::new).chain(after.map(EventView::of_systemd)).collect();
    output.print(&Verdict { registers, events }, text)?;
    Ok(if chosen.iter().all(is_explained) { OK } else { FAILED })
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
