//! `tec platform`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tec_core::ak::Fingerprint;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::flow;
use tec_core::id::MachineId;
use tec_core::platform::{ChangeEffect, PlatformChange, changes};
use tec_core::port::{AkRegistry as _, PlatformEntry, PlatformLog, PlatformRecord, PortErrorKind};
use tec_core::store::Store;
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::exit::{CodedError, OK};

use super::coded;
use super::machine::id_of;
use crate::args::{Consent, MachineRef};
use crate::consent::consented;
use crate::output::{Output, Table};
use crate::platform::PlatformCommand;
use crate::state::open_existing;

pub(crate) async fn platform(
    state_dir: &Path,
    command: PlatformCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        PlatformCommand::List => list(&store, output).await?,
        PlatformCommand::Diff { machine } => diff(&store, &machine, output).await?,
        PlatformCommand::Approve { machine, consent } => {
            approve(&store, &machine, consent, output).await?;
        }
    }
    Ok(OK)
}

/// Number of digits of an ID that a table shows.
const DIGITS: usize = 12;

/// A machine in the list.
#[derive(Debug, Serialize)]
struct Listed {
    machine: MachineId,
    key: Fingerprint,
    baseline: Sha256Digest,
    /// Machines with this baseline.
    machines: usize,
    seen: Sha256Digest,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_at: Option<Timestamp>,
}

async fn entries(store: &Store) -> anyhow::Result<Vec<PlatformEntry>> {
    let listed = PlatformLog::list(store).await;
    Ok(listed.map_err(coded(Code::StoreUnavailable, "list platforms"))?)
}

async fn list(store: &Store, output: &Output) -> anyhow::Result<()> {
    let entries = entries(store).await?;
    let mut sharing: BTreeMap<Sha256Digest, usize> = BTreeMap::new();
    for entry in &entries {
        *sharing.entry(entry.baseline).or_default() += 1;
    }
    let mut listed: Vec<_> = entries
        .iter()
        .map(|entry| Listed {
            machine: entry.machine,
            key: entry.key,
            baseline: entry.baseline,
            machines: sharing.get(&entry.baseline).copied().unwrap_or(1),
            seen: entry.seen,
            state: if entry.refused_at.is_some() { "waits for approval" } else { "accepted" },
            refused_at: entry.refused_at,
        })
        .collect();
    // What waits comes first, then the odd ones out.
    listed.sort_by_key(|one| (one.refused_at.is_none(), one.machines, one.baseline, one.machine));
    output.table(&listed, &table(&listed))
}

fn table(listed: &[Listed]) -> Table {
    let short = |id: &Sha256Digest| id.to_string().chars().take(DIGITS).collect::<String>();
    let row = |one: &Listed| {
        vec![
            one.machine.to_string(),
            short(&one.baseline),
            one.machines.to_string(),
            one.state.to_owned(),
            short(&one.seen),
            one.refused_at.map_or_else(|| "-".to_owned(), |at| at.to_string()),
            one.key.to_string(),
        ]
    };
    let head = ["MACHINE", "BASELINE", "SHARED BY", "STATE", "LAST SEEN", "REFUSED", "KEY"];
    Table::new(&head, listed.iter().map(row)).narrow(4)
}

/// The platform recorded for the bound key of a machine.
async fn recorded(
    store: &Store,
    asked: &MachineRef,
) -> anyhow::Result<(MachineId, Fingerprint, PlatformRecord)> {
    let id = id_of(store, asked).await?;
    let failed = || coded(Code::StoreUnavailable, format!("look up the platform of machine {id}"));
    let none = || {
        let context = format!("no boot of machine {id} was accepted yet, so it has no baseline");
        CodedError::new(Code::MachineUnknown, context)
    };
    let key = store.bound_to(&id).await.map_err(failed())?.ok_or_else(none)?.fingerprint();
    let record = PlatformLog::find(store, &key).await.map_err(failed())?.ok_or_else(none)?;
    Ok((id, key, record))
}

/// The changes of a machine.
#[derive(Debug, Serialize)]
struct Diff {
    machine: MachineId,
    refused: bool,
    changes: Vec<PlatformChange>,
}

impl Diff {
    fn of(machine: MachineId, record: &PlatformRecord) -> Self {
        let changes = changes(&record.baseline, &record.seen);
        Self { machine, refused: record.refused_at.is_some(), changes }
    }

    fn text(&self) -> String {
        let id = self.machine;
        if self.changes.is_empty() {
            return format!("the last boot of machine {id} matches its baseline");
        }
        let line = |change: &PlatformChange| format!("{}  {change}", effect(change.effect));
        let mut lines: Vec<_> = self.changes.iter().map(line).collect();
        if self.refused {
            lines.push(format!("to approve it: tec platform approve {id}"));
        }
        lines.join("\n")
    }
}

fn effect(effect: ChangeEffect) -> &'static str {
    match effect {
        ChangeEffect::Refused => "refused ",
        ChangeEffect::Admitted => "admitted",
        ChangeEffect::Recorded => "recorded",
    }
}

async fn diff(store: &Store, asked: &MachineRef, output: &Output) -> anyhow::Result<()> {
    let (id, _, record) = recorded(store, asked).await?;
    output.print(&Diff::of(id, &record), Diff::text)
}

async fn approve(
    store: &Store,
    asked: &MachineRef,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let (id, key, record) = recorded(store, asked).await?;
    if record.refused_at.is_none() {
        let context = format!(
            "nothing waits for approval: the last boot of machine {id} was not refused for its platform"
        );
        return Err(CodedError::new(Code::MachineUnknown, context).into());
    }
    let all = entries(store).await?;
    let baseline = all.iter().find(|entry| entry.key == key).map(|entry| entry.baseline);
    let same = all.iter().filter(|entry| Some(entry.baseline) == baseline);
    let mut machines: Vec<_> = same.map(|entry| entry.machine).collect();
    let mut effects: Vec<_> = Diff::of(id, &record)
        .changes
        .iter()
        .filter(|change| change.effect != ChangeEffect::Recorded)
        .map(ToString::to_string)
        .collect();
    effects.push(format!(
        "This platform is accepted from now on, for {} with the baseline of machine {id}.",
        match machines.len() {
            1 => "the only machine".to_owned(),
            count => format!("all {count} machines"),
        }
    ));
    if consented(&effects, consent)? {
        let seen = &record.seen.firmware;
        let approved = flow::approve_platform(store, &SystemClock, (id, &key), seen).await;
        machines = approved.map_err(|error| refused(id, error))?;
    }
    let dry_run = consent.dry_run.dry_run;
    let value = serde_json::json!({ "machines": machines, "dry_run": dry_run });
    output.print(&value, |_| {
        let would = if dry_run { "would be " } else { "" };
        let lines = machines.iter().map(|id| format!("platform {would}approved for machine {id}"));
        lines.collect::<Vec<_>>().join("\n")
    })
}

fn refused(id: MachineId, error: tec_core::port::PortError) -> CodedError {
    let context = match error.kind() {
        PortErrorKind::Conflict => {
            format!("machine {id} booted in the meantime (run tec platform diff {id} again)")
        }
        _ => format!("approve the platform of machine {id}"),
    };
    coded(Code::StoreUnavailable, context)(error)
}
