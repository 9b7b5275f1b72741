//! `tec machine`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tec_core::ak::AkRecord;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::RegisterPorts;
use tec_core::id::MachineId;
use tec_core::machine::{Machine, MachineChange, MachineState, RegisteredBy};
use tec_core::port::{AkRegistry, AttemptLog, Clock as _, MachineRegistry, PortErrorKind};
use tec_core::store::{Store, StoreError};
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::{coded, word};
use crate::args::{Consent, DryRun, MachineFilter, MachineRef};
use crate::attempt::{LastSeen, one_line, page};
use crate::consent::consented;
use crate::machine::{Final, MachineCommand, meant, readmit, say};
use crate::output::{Output, Table};
use crate::recovery;
use crate::state::{Endpoints, open_existing};
pub(super) use crate::status::machines as all;

pub(crate) async fn machine(
    state_dir: &Path,
    command: MachineCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        MachineCommand::List(_) => {
            let machines = named(&store, all(&store).await?)?;
            output.table(&machines, &machine_table(&machines))?;
        }
        MachineCommand::Show { machine } => show(&store, &machine, output).await?,
        MachineCommand::Add { id, name, dry_run } => {
            add(state_dir, &store, (id, name), dry_run, output).await?;
        }
        MachineCommand::Name { machine, name, dry_run } => {
            let id = found(&store, &machine).await?.id;
            if !dry_run.dry_run {
                set_name(&store, id, &name).await?;
            }
            say(output, "named", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Quarantine { machine, reason, dry_run } => {
            let reason = reason.unwrap_or_default();
            let id = change(&store, &machine, MachineChange::Quarantine, &reason, dry_run).await?;
            say(output, "quarantined", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Release { machine, dry_run } => {
            let id = change(&store, &machine, MachineChange::Release, "", dry_run).await?;
            say(output, "released", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Retire { machine, consent } => {
            final_change(&store, &machine, Final::Retire, consent, output).await?;
        }
        MachineCommand::Revoke { machine, consent } => {
            final_change(&store, &machine, Final::Revoke, consent, output).await?;
        }
        MachineCommand::Remove { machine, consent } => {
            final_change(&store, &machine, Final::Remove, consent, output).await?;
        }
        MachineCommand::Readmit { machine, dry_run } => {
            // The store of a guard has no machines, only the TPM counters.
            let id = id_of(&store, &machine).await?;
            readmit(&*store, Code::StoreUnavailable, id, dry_run, output).await?;
        }
        MachineCommand::RecoveryKey { machine, identity } => {
            let id = id_of(&store, &machine).await?;
            recovery::print(&*store, Code::StoreUnavailable, id, identity.as_deref(), output)
                .await?;
        }
        MachineCommand::Prune { older_than, dry_run } => {
            prune(&store, older_than, dry_run.dry_run, output).await?;
        }
    }
    Ok(OK)
}

/// All machines, in order of their IDs.
async fn find(store: &Store, id: MachineId) -> anyhow::Result<Machine> {
    MachineRegistry::find(store, &id)
        .await
        .map_err(coded(Code::StoreUnavailable, format!("look up machine {id}")))?
        .ok_or_else(|| {
            CodedError::new(Code::MachineUnknown, format!("there is no machine {id}")).into()
        })
}

/// The given ID, even if there is no such machine, or the ID of the machine with this name.
pub(super) async fn id_of(store: &Store, asked: &MachineRef) -> anyhow::Result<MachineId> {
    if let Ok(id) = asked.machine.parse() {
        return Ok(id);
    }
    let machines = named(store, all(store).await?)?;
    let known = machines.into_iter().map(|Named { machine, name, .. }| (machine.id, name));
    let found = meant(known, &asked.machine);
    Ok(found.map_err(|unknown| CodedError::new(Code::MachineUnknown, unknown.to_string()))?)
}

/// The machine that the filter of a list names, if any.
pub(super) async fn wanted(
    store: &Store,
    filter: MachineFilter,
) -> anyhow::Result<Option<MachineId>> {
    match filter.machine {
        Some(machine) => Ok(Some(id_of(store, &MachineRef { machine }).await?)),
        None => Ok(None),
    }
}

async fn found(store: &Store, asked: &MachineRef) -> anyhow::Result<Machine> {
    find(store, id_of(store, asked).await?).await
}

async fn set_name(store: &Store, id: MachineId, name: &str) -> anyhow::Result<()> {
    match store.name_machine(&id, name).await {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == PortErrorKind::Conflict => {
            anyhow::bail!("cannot name machine {id} {name}: another machine has that name")
        }
        Err(error) => {
            Err(coded(Code::StoreUnavailable, format!("name machine {id}"))(error).into())
        }
    }
}

async fn change(
    store: &Store,
    asked: &MachineRef,
    change: MachineChange,
    reason: &str,
    dry_run: DryRun,
) -> anyhow::Result<MachineId> {
    let machine = found(store, asked).await?;
    let id = machine.id;
    if machine.state_after(change).is_none() {
        let context = format!("machine {id} is {} for good", word(&machine.state));
        return Err(CodedError::new(Code::MachineUnknown, context).into());
    }
    if !dry_run.dry_run {
        flow::change_machine(store, &SystemClock, id, change, reason)
            .await
            .map_err(coded(Code::StoreUnavailable, format!("change the state of machine {id}")))?;
    }
    Ok(id)
}

async fn final_change(
    store: &Store,
    asked: &MachineRef,
    to: Final,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let id = found(store, asked).await?.id;
    let name = store.machine_names().map_err(unnamed)?.remove(&id);
    let label = name.map_or_else(|| id.to_string(), |name| format!("{name} ({id})"));
    if consented(&[to.effect(&label)], consent)? {
        let failed = coded(Code::StoreUnavailable, format!("{label} cannot be {}", to.done()));
        match to {
            Final::Retire => {
                let retire = MachineChange::Retire;
                change(store, asked, retire, "", consent.dry_run).await?;
            }
            Final::Revoke => {
                flow::revoke_machine(store, &SystemClock, id).await.map_err(failed)?;
            }
            Final::Remove => {
                let removed = flow::remove_machine(store, store, store, &SystemClock, id);
                removed.await.map_err(failed)?;
            }
        }
    }
    say(output, to.done(), consent.dry_run.dry_run, &[id])
}

/// A machine with its name.
#[derive(Serialize)]
struct Named {
    #[serde(flatten)]
    machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen: Option<LastSeen>,
}

fn named(store: &Store, machines: Vec<Machine>) -> anyhow::Result<Vec<Named>> {
    let mut names = store.machine_names().map_err(unnamed)?;
    let last = store.last_attempts();
    let last =
        last.map_err(|error| CodedError::caused(error.code(), "read the last attempts", error))?;
    let named = machines.into_iter().map(|machine| {
        let name = names.remove(&machine.id);
        let last_seen = last.get(&machine.id).map(LastSeen::of);
        Named { machine, name, last_seen }
    });
    Ok(named.collect())
}

fn unnamed(error: StoreError) -> CodedError {
    CodedError::caused(error.code(), "list the names of machines", error)
}

fn machine_table(machines: &[Named]) -> Table {
    let row = |Named { machine, name, last_seen }: &Named| {
        let seen = last_seen.as_ref();
        vec![
            machine.id.to_string(),
            name.clone().unwrap_or_else(|| "-".to_owned()),
            word(&machine.state),
            word(&machine.registered_by),
            machine.registered_at.to_string(),
            seen.map_or_else(|| "-".to_owned(), LastSeen::age),
            seen.map_or_else(|| "-".to_owned(), |seen| seen.result.clone()),
        ]
    };
    let head = ["MACHINE", "NAME", "STATE", "BY", "REGISTERED", "LAST SEEN", "RESULT"];
    Table::new(&head, machines.iter().map(row)).narrow(5)
}

#[derive(Serialize)]
struct Shown {
    machine: Named,
    keys: Vec<AkRecord>,
    attempts: Vec<Attempt>,
}

async fn show(store: &Store, asked: &MachineRef, output: &Output) -> anyhow::Result<()> {
    let machine = found(store, asked).await?;
    let id = machine.id;
    let unavailable = || coded(Code::StoreUnavailable, format!("look up machine {id}"));
    let name = store.machine_names().map_err(unnamed)?.remove(&id);
    let attempts = store.latest(Some(id), 5).await.map_err(unavailable())?;
    // Anyone can send evidence without a signature in the machine's name.
    let last_seen = attempts.iter().find(|attempt| !attempt.unsigned).map(LastSeen::of);
    let shown = Shown {
        machine: Named { machine, name, last_seen },
        keys: AkRegistry::list(store, Some(id)).await.map_err(unavailable())?,
        attempts,
    };
    output.print(&shown, |shown| {
        let mut text = machine_table(std::slice::from_ref(&shown.machine)).to_string();
        if let Some(seen) = &shown.machine.last_seen {
            let _ = write!(text, "\n{}", seen.sentence());
        }
        for key in &shown.keys {
            let _ = write!(text, "\nkey {} {}", key.fingerprint(), word(&key.state));
        }
        for attempt in &shown.attempts {
            let _ = write!(text, "\n{}", one_line(attempt));
        }
        if let Some(code) = shown.attempts.first().and_then(|last| last.ladder.code) {
            let _ = write!(text, "\n{}", page(code));
        }
        text
    })
}

async fn add(
    state_dir: &Path,
    store: &Store,
    (id, name): (Option<MachineId>, Option<String>),
    dry_run: DryRun,
    output: &Output,
) -> anyhow::Result<()> {
    let pins = Endpoints::read(state_dir)?.pins()?;
    if dry_run.dry_run {
        return say(output, "registered", true, id.as_slice());
    }
    let ports = RegisterPorts::new(store, store, &pins, &SystemClock, &SystemEntropy);
    let registration = flow::register_by_admin(ports, id).await?;
    if let Some(name) = name {
        set_name(store, registration.machine, &name).await?;
    }
    let ignition: serde_json::Value = serde_json::from_slice(&registration.ignition)?;
    let added = serde_json::json!({ "machine": registration.machine, "ignition": ignition });
    // Standard output is for the installer.
    tracing::info!(machine = %registration.machine, "registered");
    output.print(&added, |added| added["ignition"].to_string())
}

async fn prune(
    store: &Store,
    older_than: Duration,
    dry_run: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let seconds = i64::try_from(older_than.as_secs()).unwrap_or(i64::MAX);
    let before = SystemClock.now().plus_seconds(seconds.saturating_neg());
    let mut stray = all(store).await?;
    stray.retain(|machine| {
        machine.state == MachineState::Unclaimed
            && machine.registered_by == RegisteredBy::FirstBoot
            && machine.registered_at < before
    });
    if !dry_run {
        store
            .expire_unclaimed(before)
            .await
            .map_err(coded(Code::StoreUnavailable, "remove unclaimed machines"))?;
    }
    let ids: Vec<_> = stray.iter().map(|machine| machine.id).collect();
    say(output, "removed", dry_run, &ids)
}
