//! `tec eventlog`: shows what a log contains, which values it replays to, which registers it explains, and
//! how two logs differ.

mod args;
mod verify;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use tec_core::attest::LoggedEvent;
use tec_core::pcr::PcrIndex;
use tec_support::exit::OK;
use tec_tpm::event_log::{Bank, EventLog, LogDiff, LogView, systemd_records};

pub(crate) use self::args::{BankName, EventlogCommand};
use super::input::log_bytes;
use crate::output::Output;

pub(crate) fn eventlog(command: EventlogCommand, output: &Output) -> anyhow::Result<u8> {
    match command {
        EventlogCommand::Show { log_file, bank, values_only } => {
            let bytes = log_bytes(&log_file)?;
            let log = parse(&bytes, &log_file)?;
            let view = view(&log, bank)?;
            if values_only {
                output.print(&view.replay, values_text)?;
            } else {
                output.print(&view, LogView::table)?;
            }
        }
        EventlogCommand::Verify { log_file, values, systemd_log, pcrs } => {
            let bytes = log_bytes(&log_file)?;
            let records = systemd_log.map(|file| records(&file)).transpose()?.unwrap_or_default();
            return verify::verify(&parse(&bytes, &log_file)?, &records, &values, &pcrs, output);
        }
        EventlogCommand::Diff { before, after, bank } => {
            let (first, second) = (log_bytes(&before)?, log_bytes(&after)?);
            let (first, second) = (parse(&first, &before)?, parse(&second, &after)?);
            output.print(&first.diff(&second, bank.into())?, LogDiff::table)?;
        }
    }
    Ok(OK)
}

fn parse<'a>(bytes: &'a [u8], path: &Path) -> anyhow::Result<EventLog<'a>> {
    EventLog::parse(bytes).with_context(|| format!("{} is not an event log", path.display()))
}

fn records(path: &Path) -> anyhow::Result<Vec<LoggedEvent>> {
    let records = systemd_records(&log_bytes(path)?);
    records.with_context(|| format!("{} is not a log of systemd", path.display()))
}

/// The value of each extended register, by bank.
type Values = BTreeMap<&'static str, BTreeMap<PcrIndex, String>>;

/// The values of one bank, which the log must have, or of all banks that can be replayed.
fn view(log: &EventLog<'_>, bank: Option<BankName>) -> anyhow::Result<LogView> {
    let mut view = LogView::new(log);
    if let Some(bank) = bank.map(Bank::from) {
        log.replay(bank)?;
        view.replay.retain(|name, _| *name == bank.as_str());
    }
    Ok(view)
}

fn values_text(values: &Values) -> String {
    let mut text = String::new();
    for (bank, registers) in values {
        let _ = writeln!(text, "{bank}");
        for (pcr, value) in registers {
            let _ = writeln!(text, "  PCR {:2} = {value}", u8::from(*pcr));
        }
    }
    text
}
