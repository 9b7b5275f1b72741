//! `tec machine`.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use tec_core::ak::{AkRecord, AkState};
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::{RegisterError, RegisterPorts};
use tec_core::id::MachineId;
use tec_core::machine::{MachineChange, MachineState, RegisteredBy};
use tec_core::port::{
    AkRegistry, AuditAction, AuditEvent, Clock as _, ClockLog, EntropyRng, MachineRegistry,
    PortErrorKind,
};
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::word;
use crate::anchor::{Anchor, Place};
use crate::args::{Consent, DryRun, MachineRef};
use crate::attempt::{LastSeen, OF_ONE, one_line, page};
use crate::consent::consented;
use crate::known::{Known, unknown};
use crate::kube;
use crate::machine::{Final, MachineCommand, say};
use crate::output::{Output, Table};
use crate::recovery;

pub(crate) async fn machine(
    anchor: &Anchor,
    command: MachineCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        MachineCommand::List(_) => {
            let machines = anchor.known().await?;
            output.table(&machines, &machine_table(&machines))?;
        }
        MachineCommand::Show { machine } => show(anchor, &machine, output).await?,
        MachineCommand::Add { id, name, dry_run } => {
            add(anchor, (id, name), dry_run, output).await?;
        }
        MachineCommand::Name { machine, name, dry_run } => {
            let id = anchor.find(&machine).await?.machine.id;
            if !dry_run.dry_run {
                anchor.set_name(id, &name).await?;
            }
            say(output, "named", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Quarantine { machine, reason, dry_run } => {
            let reason = reason.unwrap_or_default();
            let id = change(anchor, &machine, MachineChange::Quarantine, &reason, dry_run).await?;
            say(output, "quarantined", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Release { machine, dry_run } => {
            let id = change(anchor, &machine, MachineChange::Release, "", dry_run).await?;
            say(output, "released", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Retire { machine, consent } => {
            final_change(anchor, &machine, Final::Retire, consent, output).await?;
        }
        MachineCommand::Revoke { machine, consent } => {
            final_change(anchor, &machine, Final::Revoke, consent, output).await?;
        }
        MachineCommand::Remove { machine, consent } => {
            final_change(anchor, &machine, Final::Remove, consent, output).await?;
        }
        MachineCommand::Readmit { machine, dry_run } => {
            // The store of a guard has no machines, only the TPM counters.
            readmit(anchor, anchor.id_of(&machine).await?, dry_run, output).await?;
        }
        MachineCommand::RecoveryKey { machine, identity } => {
            let id = anchor.id_of(&machine).await?;
            recovery::print(anchor, id, identity.as_deref(), output).await?;
        }
        MachineCommand::Prune { older_than, dry_run } => {
            prune(anchor, older_than, dry_run.dry_run, output).await?;
        }
    }
    Ok(OK)
}

async fn change(
    anchor: &Anchor,
    asked: &MachineRef,
    change: MachineChange,
    reason: &str,
    dry_run: DryRun,
) -> anyhow::Result<MachineId> {
    let machine = anchor.find(asked).await?.machine;
    let id = machine.id;
    if machine.state_after(change).is_none() {
        let context = format!("machine {id} is {} for good", word(&machine.state));
        return Err(CodedError::new(Code::MachineUnknown, context).into());
    }
    if !dry_run.dry_run {
        flow::change_machine(&*anchor.ports, &SystemClock, id, change, reason)
            .await
            .map_err(anchor.failed(format!("change the state of machine {id}")))?;
    }
    Ok(id)
}

async fn final_change(
    anchor: &Anchor,
    asked: &MachineRef,
    to: Final,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let known = anchor.find(asked).await?;
    let (id, label) = (known.machine.id, known.label());
    if consented(&[to.effect(&label)], consent)? {
        let (ports, clock) = (&*anchor.ports, &SystemClock);
        let changed = match (to, &anchor.place) {
            (Final::Retire, _) => {
                flow::change_machine(ports, clock, id, MachineChange::Retire, "").await
            }
            (Final::Revoke, _) => flow::revoke_machine(ports, clock, id).await,
            (Final::Remove, Place::Directory(..)) => {
                flow::remove_machine(ports, ports, ports, clock, id).await
            }
            // Its keys are objects that it owns, and go with it.
            (Final::Remove, Place::Namespace(_)) => {
                let line = AuditEvent::new(clock.now(), AuditAction::MachineRemoved, Some(id), "");
                match ports.append(&line).await {
                    Ok(()) => MachineRegistry::remove(ports, &id).await,
                    failed => failed,
                }
            }
        };
        changed.map_err(anchor.failed(format!("{label} cannot be {}", to.done())))?;
    }
    say(output, to.done(), consent.dry_run.dry_run, &[id])
}

/// Number of attempts that are shown of a machine.
const SHOWN: usize = 5;

fn machine_table(machines: &[Known]) -> Table {
    let row = |known: &Known| {
        let (machine, seen) = (&known.machine, known.last_seen.as_ref());
        vec![
            machine.id.to_string(),
            known.shown_name(),
            word(&machine.state),
            word(&machine.registered_by),
            machine.registered_at.to_string(),
            seen.map_or_else(|| "-".to_owned(), LastSeen::age),
            seen.map_or_else(|| "-".to_owned(), |seen| seen.result.clone()),
            known.unmet.first().map_or_else(|| "-".to_owned(), Clone::clone),
        ]
    };
    let head = ["MACHINE", "NAME", "STATE", "BY", "REGISTERED", "LAST SEEN", "RESULT", "UNMET"];
    Table::new(&head, machines.iter().map(row)).narrow(5)
}

#[derive(Serialize)]
struct Shown {
    machine: Known,
    keys: Vec<AkRecord>,
    attempts: Vec<Attempt>,
    /// Whether the disk key is released in an initramfs only, if its TPM has attested.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_in_initramfs_only: Option<bool>,
}

async fn show(anchor: &Anchor, asked: &MachineRef, output: &Output) -> anyhow::Result<()> {
    let mut machine = anchor.find(asked).await?;
    let id = machine.machine.id;
    let failed = || anchor.failed(format!("look up machine {id}"));
    let mut attempts = anchor.attempts.latest(Some(id), OF_ONE).await.map_err(failed())?;
    // Anyone can send evidence without a signature in the machine's name: it comes last.
    attempts.sort_by_key(|attempt| attempt.unsigned);
    attempts.truncate(SHOWN);
    if let Some(last) = attempts.first().filter(|attempt| !attempt.unsigned) {
        machine.last_seen = Some(LastSeen::of(last));
    }
    if let Place::Namespace(cluster) = &anchor.place {
        machine.claimed_by =
            kube::machine::claims(cluster).await.remove(&id.to_string()).unwrap_or_default();
    }
    let keys = AkRegistry::list(&*anchor.ports, Some(id)).await.map_err(failed())?;
    let key_in_initramfs_only = in_initramfs_only(anchor, &keys).await;
    output.print(&Shown { machine, keys, attempts, key_in_initramfs_only }, |shown| {
        let mut text = machine_table(std::slice::from_ref(&shown.machine)).to_string();
        if let Some(seen) = &shown.machine.last_seen {
            let _ = write!(text, "\n{}", seen.sentence());
        }
        for line in &shown.machine.standing(anchor.program()) {
            let _ = write!(text, "\n{line}");
        }
        for key in &shown.keys {
            let _ = write!(text, "\nkey {} {}", key.fingerprint(), word(&key.state));
        }
        if shown.key_in_initramfs_only == Some(false) {
            text += "\nthe disk key is also released after the initramfs, until the machine has \
                     attested in one and its first boot is over";
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

async fn in_initramfs_only(anchor: &Anchor, keys: &[AkRecord]) -> Option<bool> {
    let bound = keys.iter().find(|key| key.state == AkState::Bound)?;
    // Not everyone who may read the machines of a cluster may read the clocks of their TPMs.
    let last = ClockLog::last(&*anchor.ports, &bound.fingerprint()).await.ok()??;
    Some(last.is_bound_to_initramfs())
}

async fn add(
    anchor: &Anchor,
    (id, name): (Option<MachineId>, Option<String>),
    dry_run: DryRun,
    output: &Output,
) -> anyhow::Result<()> {
    // Without an address there is no config, and therefore no machine.
    let pins = anchor.pins().await?;
    let id = id.unwrap_or_else(|| MachineId::random(&mut EntropyRng::new(&SystemEntropy)));
    if let Some(name) = &name {
        anchor.check_name(id, name).await?;
    }
    if dry_run.dry_run {
        return say(output, "registered", true, &[id]);
    }
    let store = &*anchor.ports;
    let ports = RegisterPorts::new(store, store, &pins, &SystemClock, &SystemEntropy);
    let registration = match flow::register_by_admin(ports, Some(id)).await {
        Err(RegisterError::Store(error)) => {
            return Err(anchor.failed(format!("register machine {id}"))(error).into());
        }
        registered => registered?,
    };
    if let Some(name) = name {
        anchor.set_name(registration.machine, &name).await?;
    }
    let ignition: serde_json::Value = serde_json::from_slice(&registration.ignition)?;
    let added = serde_json::json!({ "machine": registration.machine, "ignition": ignition });
    // Standard output is for the installer.
    tracing::info!(machine = %registration.machine, "registered");
    output.print(&added, |added| added["ignition"].to_string())
}

async fn prune(
    anchor: &Anchor,
    older_than: Duration,
    dry_run: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let seconds = i64::try_from(older_than.as_secs()).unwrap_or(i64::MAX);
    let before = SystemClock.now().plus_seconds(seconds.saturating_neg());
    let known = anchor.known().await?.into_iter().map(|known| known.machine);
    let stray = known.filter(|machine| {
        machine.state == MachineState::Unclaimed
            && machine.registered_by == RegisteredBy::FirstBoot
            && machine.registered_at < before
    });
    let ids: Vec<_> = stray.map(|machine| machine.id).collect();
    if !dry_run {
        let removed = MachineRegistry::expire_unclaimed(&*anchor.ports, before).await;
        removed.map_err(anchor.failed("remove unclaimed machines"))?;
    }
    say(output, "removed", dry_run, &ids)
}

/// Readmits the TPM of a machine.
async fn readmit(
    anchor: &Anchor,
    id: MachineId,
    dry_run: DryRun,
    output: &Output,
) -> anyhow::Result<()> {
    if !dry_run.dry_run {
        let readmitted = flow::readmit_tpm(&*anchor.ports, &SystemClock, id).await;
        readmitted.map_err(|error| match error.kind() {
            PortErrorKind::NotFound => {
                unknown(format!("no quote of machine {id} was accepted here"))
            }
            _ => anchor.failed(format!("readmit the TPM of machine {id}"))(error),
        })?;
    }
    say(output, "readmitted", dry_run.dry_run, &[id])
}
