//! `tec machine`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
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
use crate::args::DryRun;
use crate::attempt::one_line;
use crate::machine::{readmit, say};
use crate::output::{Output, table};
use crate::recovery;
use crate::state::{Endpoints, open_existing};

#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List them.
    List,
    /// Show one, with its keys and last attempts.
    Show {
        /// Which.
        id: MachineId,
    },
    /// Register one by hand, and print its Ignition config.
    Add {
        /// Its id; a random one if not given.
        #[arg(long)]
        id: Option<MachineId>,
    },
    /// Set the name that people know a machine by; lists show it.
    Name {
        /// Id of the machine.
        id: MachineId,
        /// The name, for example that of its Kubernetes Node.
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Withhold the disk key from a machine until it is released.
    Quarantine {
        /// Id of the machine.
        id: MachineId,
        /// Reason, for the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Lift the quarantine of a machine.
    Release {
        /// Id of the machine.
        id: MachineId,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Decommission a machine, which cannot be undone. Its disk key is kept until it is removed.
    Retire {
        /// Id of the machine.
        id: MachineId,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Let it attest no more; its disk key stays.
    Revoke {
        /// Which.
        id: MachineId,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Remove it with its keys. Its disk can then be opened by nobody but a recovery key.
    Remove {
        /// Which.
        id: MachineId,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Take its TPM's next quote as the first: after its TPM was set back on purpose, as by restoring a
    /// snapshot of a virtual machine. Whoever has another copy of that state may be the first, too.
    Readmit {
        /// Which.
        id: MachineId,
    },
    /// The recovery keys that it left, the latest first: sealed, or opened with the admin's key.
    RecoveryKey {
        /// Which.
        id: MachineId,
        /// The admin's private key, a JWK as `jose jwk gen -i '{"alg":"ECDH-ES+A256KW"}'` makes it;
        /// without it the sealed keys are printed, for `jose jwe dec -i- -k <file>`.
        #[arg(long, value_name = "FILE")]
        identity: Option<PathBuf>,
    },
    /// Remove those that registered long ago and never got an attestation key.
    Prune {
        /// How long ago, in seconds.
        #[arg(long, default_value_t = 3600)]
        older_than: i64,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

/// Machines are read in pages of this size.
const PAGE: usize = 1000;

pub(crate) async fn machine(
    state_dir: &Path,
    command: MachineCommand,
    output: Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    match command {
        MachineCommand::List => {
            let machines = named(&store, all(&store).await?)?;
            output.print(&machines, |machines| machine_table(machines))?;
        }
        MachineCommand::Show { id } => show(&store, id, output).await?,
        MachineCommand::Add { id } => add(state_dir, &store, id, output).await?,
        MachineCommand::Name { id, name, dry_run } => {
            find(&store, id).await?;
            if !dry_run.dry_run {
                set_name(&store, id, &name).await?;
            }
            say(output, "named", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Revoke { id, dry_run } => {
            find(&store, id).await?;
            if !dry_run.dry_run {
                flow::revoke_machine(&*store, &SystemClock, id)
                    .await
                    .map_err(coded(Code::StoreUnavailable, format!("revoke machine {id}")))?;
            }
            say(output, "revoked", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Quarantine { id, reason, dry_run } => {
            change(&store, id, MachineChange::Quarantine, &reason, dry_run).await?;
            say(output, "quarantined", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Release { id, dry_run } => {
            change(&store, id, MachineChange::Release, "", dry_run).await?;
            say(output, "released", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Retire { id, dry_run } => {
            change(&store, id, MachineChange::Retire, "", dry_run).await?;
            say(output, "retired", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Remove { id, dry_run } => {
            find(&store, id).await?;
            if !dry_run.dry_run {
                flow::remove_machine(&*store, &*store, &*store, &SystemClock, id)
                    .await
                    .map_err(coded(Code::StoreUnavailable, format!("remove machine {id}")))?;
            }
            say(output, "removed", dry_run.dry_run, &[id])?;
        }
        MachineCommand::Readmit { id } => {
            // The store of a guard knows no machines, only how far their TPMs are.
            readmit(&*store, Code::StoreUnavailable, id, output).await?;
        }
        MachineCommand::RecoveryKey { id, identity } => {
            recovery::print(&*store, Code::StoreUnavailable, id, identity.as_deref(), output)
                .await?;
        }
        MachineCommand::Prune { older_than, dry_run } => {
            prune(&store, older_than, dry_run.dry_run, output).await?;
        }
    }
    Ok(OK)
}

/// All machines, in order of their ids.
pub(super) async fn all(store: &Store) -> anyhow::Result<Vec<Machine>> {
    let mut machines: Vec<Machine> = Vec::new();
    loop {
        let after = machines.last().map(|machine| machine.id);
        let page = MachineRegistry::list(store, after, PAGE)
            .await
            .map_err(coded(Code::StoreUnavailable, "list the machines"))?;
        if page.is_empty() {
            return Ok(machines);
        }
        machines.extend(page);
    }
}

async fn find(store: &Store, id: MachineId) -> anyhow::Result<Machine> {
    MachineRegistry::find(store, &id)
        .await
        .map_err(coded(Code::StoreUnavailable, format!("look up machine {id}")))?
        .ok_or_else(|| {
            CodedError::new(Code::MachineUnknown, format!("there is no machine {id}")).into()
        })
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
    id: MachineId,
    change: MachineChange,
    reason: &str,
    dry_run: DryRun,
) -> anyhow::Result<()> {
    let machine = find(store, id).await?;
    if machine.state_after(change).is_none() {
        let context = format!("machine {id} is {} for good", word(&machine.state));
        return Err(CodedError::new(Code::MachineUnknown, context).into());
    }
    if dry_run.dry_run {
        return Ok(());
    }
    flow::change_machine(store, &SystemClock, id, change, reason)
        .await
        .map_err(coded(Code::StoreUnavailable, format!("change the state of machine {id}")))?;
    Ok(())
}

/// A machine with its name.
#[derive(Serialize)]
struct Named {
    #[serde(flatten)]
    machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

fn named(store: &Store, machines: Vec<Machine>) -> anyhow::Result<Vec<Named>> {
    let mut names = store.machine_names().map_err(unnamed)?;
    let named = machines.into_iter().map(|machine| {
        let name = names.remove(&machine.id);
        Named { machine, name }
    });
    Ok(named.collect())
}

fn unnamed(error: StoreError) -> CodedError {
    CodedError::caused(error.code(), "list the names of machines", error)
}

fn machine_table(machines: &[Named]) -> String {
    let row = |Named { machine, name }: &Named| {
        [
            machine.id.to_string(),
            name.clone().unwrap_or_else(|| "-".to_owned()),
            word(&machine.state),
            word(&machine.registered_by),
            machine.registered_at.to_string(),
        ]
    };
    table(
        ["MACHINE", "NAME", "STATE", "BY", "REGISTERED"],
        &machines.iter().map(row).collect::<Vec<_>>(),
    )
}

#[derive(Serialize)]
struct Shown {
    machine: Named,
    keys: Vec<AkRecord>,
    attempts: Vec<Attempt>,
}

async fn show(store: &Store, id: MachineId, output: Output) -> anyhow::Result<()> {
    let unavailable = || coded(Code::StoreUnavailable, format!("look up machine {id}"));
    let machine = find(store, id).await?;
    let name = store.machine_names().map_err(unnamed)?.remove(&id);
    let shown = Shown {
        machine: Named { machine, name },
        keys: AkRegistry::list(store, Some(id)).await.map_err(unavailable())?,
        attempts: store.latest(Some(id), 5).await.map_err(unavailable())?,
    };
    output.print(&shown, |shown| {
        let mut text = machine_table(std::slice::from_ref(&shown.machine));
        for key in &shown.keys {
            let _ = write!(text, "\nkey {} {}", key.fingerprint(), word(&key.state));
        }
        for attempt in &shown.attempts {
            let _ = write!(text, "\n{}", one_line(attempt));
        }
        text
    })
}

async fn add(
    state_dir: &Path,
    store: &Store,
    id: Option<MachineId>,
    output: Output,
) -> anyhow::Result<()> {
    let pins = Endpoints::read(state_dir)?.pins()?;
    let ports = RegisterPorts::new(store, store, &pins, &SystemClock, &SystemEntropy);
    let registration = flow::register_by_admin(ports, id).await?;
    let ignition: serde_json::Value = serde_json::from_slice(&registration.ignition)?;
    let added = serde_json::json!({ "machine": registration.machine, "ignition": ignition });
    output.print(&added, |added| {
        format!(
            "machine {} registered; its Ignition config:\n{}",
            registration.machine, added["ignition"]
        )
    })
}

async fn prune(
    store: &Store,
    older_than: i64,
    dry_run: bool,
    output: Output,
) -> anyhow::Result<()> {
    let before = SystemClock.now().plus_seconds(-older_than);
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
