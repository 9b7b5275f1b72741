//! `tec key`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::flow::ProvisionPorts;
use tec_core::id::MachineId;
use tec_core::machine::{Machine, MachineState};
use tec_core::port::{
    AuditAction, BeginOutcome, CancelOutcome, Clock as _, DiskKeys as _, MachineRegistry,
    PortError, PortErrorKind,
};
use tec_core::rotation::{Forget, Keys};
use tec_core::store::Store;
use tec_support::diskkey::DiskKeys;
use tec_support::exit::{CodedError, OK};
use tec_support::{SystemClock, SystemEntropy};

use super::coded;
use super::reseal::reseal;
use crate::anchor::{Anchor, machines};
use crate::args::MachineRef;
use crate::consent::consented;
use crate::key::{CancelArgs, KeyCommand, RotateArgs};
use crate::output::{Output, Table};
use crate::state::open_existing;

/// A machine and how far its rotation is.
#[derive(Serialize)]
struct Rotating {
    machine: MachineId,
    rotation: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
    /// A new key waits for its slot.
    Pending,
    /// The new key is released, and the old slot is yet to be removed.
    Promoted,
    /// As `Pending`, but only with `--dry-run`.
    WouldBegin,
    /// The rotation was canceled.
    Canceled,
    /// As `Canceled`, but only with `--dry-run`.
    WouldCancel,
    /// There was nothing to cancel.
    None,
}

impl Phase {
    fn of<K>(keys: &Keys<K>) -> Option<Self> {
        match keys {
            Keys::Settled { .. } => None,
            Keys::Pending { .. } => Some(Self::Pending),
            Keys::Promoted { .. } => Some(Self::Promoted),
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::Pending => "new key pending until the machine runs `node-agent key rotate`",
            Self::Promoted => "new key in use, old key slot not removed yet",
            Self::WouldBegin => "would get a new key",
            Self::Canceled => "canceled, the released key stays",
            Self::WouldCancel => "would be canceled",
            Self::None => "none under way",
        }
    }
}

pub(crate) async fn key(
    state_dir: &Path,
    command: KeyCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    if let KeyCommand::Reseal(consent) = command {
        return reseal(state_dir, consent, output).await;
    }
    let store = open_existing(state_dir)?;
    let id_of = async |machine: &MachineRef| {
        Anchor::directory(state_dir, store.clone()).id_of(machine).await
    };
    let machines = match command {
        KeyCommand::List | KeyCommand::Reseal(_) => under_way(&store, &all(&store).await?).await?,
        KeyCommand::Rotate(args) => {
            let machine = match &args.machine {
                Some(machine) => Some(id_of(&MachineRef { machine: machine.clone() }).await?),
                None => None,
            };
            rotate(&store, machine, args).await?
        }
        KeyCommand::Cancel(args) => vec![cancel(&store, id_of(&args.machine).await?, &args).await?],
    };
    let row = |one: &Rotating| vec![one.machine.to_string(), one.rotation.sentence().to_owned()];
    output.table(&machines, &Table::new(&["MACHINE", "ROTATION"], machines.iter().map(row)))?;
    Ok(OK)
}

async fn all(store: &Store) -> Result<Vec<Machine>, CodedError> {
    machines(store).await.map_err(coded(Code::StoreUnavailable, "list the machines"))
}

async fn rotate(
    store: &Store,
    machine: Option<MachineId>,
    args: RotateArgs,
) -> anyhow::Result<Vec<Rotating>> {
    let chosen = match machine {
        Some(machine) => vec![machine],
        None => next_of_fleet(store, args.at_most, args.older_than).await?,
    };
    let effect = format!("{} machines get a new disk key", chosen.len());
    if args.all && !chosen.is_empty() && !args.consent.dry_run.dry_run {
        consented(&[effect], args.consent)?;
    }
    let mut rotating = Vec::with_capacity(chosen.len());
    for machine in chosen {
        let rotation = if args.consent.dry_run.dry_run {
            would_begin(store, machine).await?
        } else {
            begin(store, machine, args.disk_keys).await?
        };
        rotating.push(Rotating { machine, rotation });
    }
    Ok(rotating)
}

/// As many machines as may begin now, without those whose rotation is under way.
async fn next_of_fleet(
    store: &Store,
    at_most: usize,
    older_than: Option<Duration>,
) -> anyhow::Result<Vec<MachineId>> {
    let machines = all(store).await?;
    let busy = under_way(store, &machines).await?;
    let young = older_than.map_or_else(|| Ok(BTreeSet::new()), |age| younger(store, age))?;
    let is_due = |one: &&Machine| one.state == MachineState::Active && !young.contains(&one.id);
    let mut next = Vec::new();
    for machine in machines.iter().filter(is_due) {
        if next.len() + busy.len() >= at_most {
            break;
        }
        let keys = store.rotation(&machine.id).await.map_err(unread(machine.id))?;
        if keys.is_some_and(|keys| keys.is_settled()) {
            next.push(machine.id);
        }
    }
    Ok(next)
}

/// Machines whose disk key is younger, as the end of the audit log says. A key of which it says nothing was
/// adopted from another trust anchor, and may be old.
fn younger(store: &Store, age: Duration) -> anyhow::Result<BTreeSet<MachineId>> {
    const PAGE: usize = 1000;
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    let since = SystemClock.now().plus_seconds(seconds.saturating_neg());
    let (mut young, mut before) = (BTreeSet::new(), u64::MAX);
    loop {
        let page = store.audit_latest(before, PAGE).map_err(super::audit::coded)?;
        let Some(last) = page.last() else { return Ok(young) };
        before = last.sequence;
        for event in page.into_iter().map(|entry| entry.event) {
            if event.at < since {
                return Ok(young);
            }
            if matches!(event.action, AuditAction::KeyGenerated | AuditAction::RotationPromoted) {
                young.extend(event.machine);
            }
        }
    }
}

async fn under_way(store: &Store, machines: &[Machine]) -> anyhow::Result<Vec<Rotating>> {
    let mut found = Vec::new();
    for machine in machines {
        let id = machine.id;
        let keys = store.rotation(&id).await.map_err(unread(id))?;
        let phase = keys.as_ref().and_then(Phase::of);
        found.extend(phase.map(|rotation| Rotating { machine: id, rotation }));
    }
    Ok(found)
}

async fn would_begin(store: &Store, id: MachineId) -> anyhow::Result<Phase> {
    let machine = MachineRegistry::find(store, &id).await.map_err(unread(id))?;
    let active = machine.is_some_and(|machine| machine.state == MachineState::Active);
    let keys = store.rotation(&id).await.map_err(unread(id))?;
    match keys.filter(|_| active) {
        Some(keys) => Ok(Phase::of(&keys).unwrap_or(Phase::WouldBegin)),
        None => Err(no_key(id).into()),
    }
}

async fn begin(store: &Store, id: MachineId, form: DiskKeys) -> anyhow::Result<Phase> {
    let generator = form.generator();
    let ports = ProvisionPorts::new(store, &*generator, &SystemClock, &SystemEntropy);
    match flow::begin_rotation(store, ports, id).await {
        Ok(BeginOutcome::Begun(_)) => Ok(Phase::Pending),
        Ok(BeginOutcome::UnderWay(keys)) => Ok(Phase::of(&keys).unwrap_or(Phase::Pending)),
        Err(error) if error.kind() == PortErrorKind::NotFound => Err(no_key(id).into()),
        Err(error) if error.kind() == PortErrorKind::Conflict => anyhow::bail!(
            "cannot rotate the disk key of machine {id}: this trust anchor takes part in a migration, and the \
             other anchor would keep the old key (`tec migrate status`)"
        ),
        Err(error) => {
            let what = format!("rotate the disk key of machine {id}");
            Err(coded(Code::StoreUnavailable, what)(error).into())
        }
    }
}

async fn cancel(store: &Store, machine: MachineId, args: &CancelArgs) -> anyhow::Result<Rotating> {
    let keys = store.rotation(&machine).await.map_err(unread(machine))?;
    let keys = keys.ok_or_else(|| no_key(machine))?;
    let (forget, effect) = match keys {
        Keys::Settled { .. } => return Ok(Rotating { machine, rotation: Phase::None }),
        Keys::Pending { .. } => (Forget::Pending, "the new disk key is forgotten"),
        Keys::Promoted { .. } if args.dangerously_forget_previous_key => {
            tracing::warn!(machine.id = %machine, "the previous disk key is forgotten");
            let effect = "the previous disk key is forgotten: a disk that was detached during the rotation \
                          opens only with a recovery key";
            (Forget::DangerouslyPrevious, effect)
        }
        Keys::Promoted { .. } => return Err(in_use(machine).into()),
    };
    if !consented(&[format!("machine {machine}: {effect}")], args.consent)? {
        return Ok(Rotating { machine, rotation: Phase::WouldCancel });
    }
    match flow::cancel_rotation(store, &SystemClock, machine, forget).await {
        Ok(CancelOutcome::Canceled(_)) => Ok(Rotating { machine, rotation: Phase::Canceled }),
        Ok(CancelOutcome::Unchanged(_)) => anyhow::bail!(
            "cannot cancel the rotation of machine {machine}: it confirmed a step in the meantime, and nothing \
             was changed (`tec key list`)"
        ),
        Err(error) => {
            let what = format!("cancel the rotation of machine {machine}");
            Err(coded(Code::StoreUnavailable, what)(error).into())
        }
    }
}

fn in_use(id: MachineId) -> CodedError {
    let what = format!(
        "cannot cancel the rotation of machine {id}: its new disk key is in use, and a disk that was detached \
         may need the previous one (finish with `node-agent key rotate` on the machine; if it does not come \
         back, pass --dangerously-forget-previous-key)"
    );
    CodedError::new(Code::RotationUnderWay, what)
}

fn no_key(id: MachineId) -> CodedError {
    let what =
        format!("machine {id} is not in service, or has no disk key (`tec machine show {id}`)");
    CodedError::new(Code::KeyMissing, what)
}

fn unread(id: MachineId) -> impl FnOnce(PortError) -> CodedError {
    coded(Code::StoreUnavailable, format!("look up the disk keys of machine {id}"))
}
