//! Reconciles a machine: its disk key, created once, and what is published about it to the Trustees.

use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::json;
use tec_core::ak::{AkState, PublicKey};
use tec_core::flow::{ProvisionPorts, provision};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::luks::content_key;
use tec_core::machine::MachineState;
use tec_core::migrate::Deed;
use tec_core::port::{PortError, PutOutcome, SecretStore as _};
use tec_core::secret::SecretBytes;

use super::attempt::News;
use super::context::Context;
use super::queue::Next;
use super::report::{Said, owner_of, resumed};
use super::trust::Published;
use crate::api::{ConditionKind, Machine, Reason, is_paused};
use crate::signal::Event;

/// Lets the operator remove the key from Trustees before the object is gone (trusted-cluster-operator).
const FINALIZER: &str = "finalizer.machine.trusted-execution-clusters.io";
/// How long a machine being removed waits for unreachable Trustees, in seconds. Its key is removed from them
/// once they are reachable.
const LONGEST_FAREWELL: i64 = 60;
const FAREWELL_POLL: Duration = Duration::from_secs(2);

/// Reconciles one machine.
pub(super) async fn reconcile(ctx: &Context, name: &str) -> Result<Next, PortError> {
    let Some(machine) = ctx.caches.machines.get(name) else {
        forget(ctx, name);
        return Ok(Next::Wait);
    };
    if is_paused(&*machine) {
        return pause(ctx, &machine).await;
    }
    if machine.metadata.deletion_timestamp.is_some() {
        return remove(ctx, &machine).await;
    }
    let id = match canonical_id(&machine) {
        Ok(id) => id,
        Err(message) => {
            forget(ctx, name);
            return refuse(ctx, &machine, Reason::Malformed, message).await;
        }
    };
    if let Some(other) = older(ctx, &machine) {
        let message = format!("{other} has the same id and is older; only that one counts");
        ctx.event(&*machine, Event::DuplicateId, &message).await;
        return refuse(ctx, &machine, Reason::Duplicate, message).await;
    }
    ctx.memory().ids.insert(name.to_owned(), id);
    match machine.state() {
        MachineState::Unclaimed | MachineState::Active => {}
        MachineState::Quarantined => return quarantine(ctx, &machine, &id).await,
        MachineState::Retired => {
            forget(ctx, name);
            return refuse(ctx, &machine, Reason::Retired, String::new()).await;
        }
        // Also a state that is newer than this code.
        _ => {
            forget(ctx, name);
            return refuse(ctx, &machine, Reason::Revoked, String::new()).await;
        }
    }
    if !ctx.may(Deed::Release) {
        forget(ctx, name);
        return refuse(ctx, &machine, Reason::NoAuthority, ctx.role()).await;
    }
    if ctx.claim(&*machine, ctx.cluster().as_deref(), &[], Some(FINALIZER)).await? {
        return Ok(Next::Again);
    }
    serve(ctx, &machine, &id).await
}

/// Creates, binds and removes nothing. Trustees keep what they hold, even after a restart, when nothing is
/// known about it. A machine that is taken out of service still loses its attestation key.
async fn pause(ctx: &Context, machine: &Machine) -> Result<Next, PortError> {
    if !ctx.may(Deed::Release) {
        forget(ctx, &machine.name_any());
    } else if let Some(id) = canonical_id(machine).ok().filter(|_| older(ctx, machine).is_none()) {
        ctx.memory().ids.insert(machine.name_any(), id);
        keep(ctx, machine, &id)?;
    }
    let known = machine.status.as_ref().map(|status| &status.conditions);
    ctx.say_paused(machine, known).await?;
    Ok(Next::Wait)
}

/// The key of a quarantined machine is removed from Trustees until the machine is released. If only they have
/// the key, they keep it, and lose only the attestation key that it is released to.
async fn quarantine(ctx: &Context, machine: &Machine, id: &MachineId) -> Result<Next, PortError> {
    let made = machine.status.as_ref().is_some_and(|status| status.key_secret.is_some());
    if made && !ctx.registry.exists(&ResourcePath::luks_root(id)).await? {
        keep(ctx, machine, id)?;
    } else {
        forget(ctx, &machine.name_any());
    }
    let message = machine.spec.quarantine_reason.clone().unwrap_or_default();
    refuse(ctx, machine, Reason::Quarantined, message).await
}

/// Provides everything that a machine that counts gets.
async fn serve(ctx: &Context, machine: &Machine, id: &MachineId) -> Result<Next, PortError> {
    let known = machine.status.as_ref().and_then(|status| status.key_secret.as_deref());
    if known.is_none() && !ctx.may(Deed::Admit) {
        return refuse(ctx, machine, Reason::NoAuthority, ctx.role()).await;
    }
    if known.is_none() {
        make_key(ctx, machine, id).await?;
        // The existence of the key is recorded before the key is given to anyone.
        return Ok(Next::Again);
    }
    let path = ResourcePath::luks_root(id);
    let mut key = None;
    if !ctx.parts.trust.knows_key(id) {
        key = match read_ahead(ctx, id) {
            Some(key) => Some(key),
            None => ctx.registry.find(&path).await?,
        };
        match &key {
            None => return lost(ctx, machine, id).await,
            Some(secret) if content_key(secret).is_err() => {
                keep(ctx, machine, id)?;
                let message = format!(
                    "the Secret {id} holds no disk key; restore it from a backup, or remove the \
                     machine"
                );
                return refuse(ctx, machine, Reason::Malformed, message).await;
            }
            Some(_) => {}
        }
    } else if ctx.caches.secrets.get(&id.to_string()).is_none()
        && !ctx.registry.exists(&path).await?
    {
        return lost(ctx, machine, id).await;
    }
    let ak = bound_key(ctx, machine);
    if ctx.parts.trust.set_machine(id, ak.as_ref(), key)? {
        ctx.publish.notify_one();
    }
    let published = ctx.parts.trust.published(id);
    let is_told = machine.status.as_ref().is_some_and(|status| !status.published_to.is_empty());
    {
        let mut memory = ctx.memory();
        // Before the first round nobody knows what Trustees hold: earlier reports about it stay.
        let is_early = is_told && !memory.had_round;
        if is_early || !published.is_complete {
            memory.unpublished.insert(machine.name_any());
        }
        if is_early {
            return Ok(Next::Wait);
        }
    }
    tell(ctx, machine, ak.is_some(), &published).await?;
    Ok(Next::Wait)
}

/// The key that was read at startup, if its Secret is unchanged.
fn read_ahead(ctx: &Context, id: &MachineId) -> Option<SecretBytes> {
    let read = ctx.memory().read_ahead.remove(id)?;
    let secret = ctx.caches.secrets.get(&id.to_string())?;
    (read.version.is_some() && secret.metadata.resource_version == read.version).then_some(read.key)
}

/// Creates the disk key, unless there is one, and records that it exists.
async fn make_key(ctx: &Context, machine: &Machine, id: &MachineId) -> Result<(), PortError> {
    let registry = match owner_of(machine) {
        Some(owner) => ctx.registry.owned_by(owner),
        None => ctx.registry.clone(),
    };
    let ports = ProvisionPorts::new(&registry, &*ctx.parts.keys, ctx.clock(), ctx.entropy());
    let outcome = provision(ports, *id).await?;
    // First: the status may have to be written again, and then the key exists already.
    if outcome == PutOutcome::Stored {
        tracing::info!(machine.id = %id, "the disk key was made");
        ctx.event(machine, Event::KeyCreated, "").await;
    }
    let status = json!({ "keySecret": id.to_string() });
    ctx.write_status(machine, None, status).await
}

/// Handles a lost Secret. What Trustees hold stays; no other key is created, since the disk accepts only the
/// old one.
async fn lost(ctx: &Context, machine: &Machine, id: &MachineId) -> Result<Next, PortError> {
    keep(ctx, machine, id)?;
    let message = format!(
        "the Secret {id} of the disk key is gone, no other one is made, and Trustees keep what they \
         hold: restore it from a backup, or remove the machine"
    );
    tracing::error!(machine.id = %id, "the Secret of its disk key is gone; restore it from a backup");
    ctx.event(machine, Event::KeyLost, &message).await;
    refuse(ctx, machine, Reason::KeyLost, message).await
}

/// Makes Trustees keep a disk key that is unknown here.
pub(super) fn keep(ctx: &Context, machine: &Machine, id: &MachineId) -> Result<(), PortError> {
    let ak = bound_key(ctx, machine);
    if ctx.parts.trust.keep_machine(id, ak.as_ref())? {
        ctx.publish.notify_one();
    }
    Ok(())
}

/// The attestation key that is bound to the machine, if its object still matches and the machine is in
/// service and not being removed.
fn bound_key(ctx: &Context, machine: &Machine) -> Option<PublicKey> {
    if !machine.state().takes_keys() || machine.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let object = ctx.caches.keys.get(&machine.bound_key()?.name)?;
    let record = object.to_core(Some(machine)).ok()?;
    let is_live = object.metadata.deletion_timestamp.is_none();
    (record.state == AkState::Bound && is_live).then_some(record.public)
}

async fn tell(
    ctx: &Context,
    machine: &Machine,
    is_bound: bool,
    published: &Published,
) -> Result<(), PortError> {
    let targets = published.targets.join(", ");
    let (reason, ready) = match (is_bound, published.is_complete) {
        (false, true) => (Reason::Published, Reason::NoAttestationKey),
        (false, false) => (Reason::Publishing, Reason::NoAttestationKey),
        (true, true) => (Reason::Published, Reason::Attestable),
        (true, false) => (Reason::Publishing, Reason::Publishing),
    };
    let said = vec![
        (ConditionKind::KeyPublished, reason, targets),
        (ConditionKind::Ready, ready, String::new()),
    ];
    write(ctx, machine, &said, Some(&published.targets)).await
}

async fn refuse(
    ctx: &Context,
    machine: &Machine,
    reason: Reason,
    message: String,
) -> Result<Next, PortError> {
    let said = vec![(ConditionKind::Ready, reason, message)];
    write(ctx, machine, &said, None).await?;
    Ok(Next::Wait)
}

async fn write(
    ctx: &Context,
    machine: &Machine,
    said: &Said,
    targets: Option<&Vec<String>>,
) -> Result<(), PortError> {
    let known = machine.status.as_ref().map(|status| &status.conditions);
    let (mut said, news) = (said.clone(), News::of(ctx, machine));
    said.extend(news.said());
    said.extend(resumed(known));
    let mut status = json!({ "observedGeneration": machine.metadata.generation });
    if let Some(members) = status.as_object_mut() {
        if let Some(boot) = news.boot {
            members.insert("lastBoot".to_owned(), json!(boot.at));
            members.extend(boot.image.map(|image| ("image".to_owned(), json!(image))));
        }
        members.extend(news.last.map(|last| ("lastAttestation".to_owned(), last.patch())));
        members.extend(targets.map(|targets| ("publishedTo".to_owned(), json!(targets))));
    }
    ctx.say(machine, known, &said, status).await
}

/// The ID in the spelling used in names of Secrets and in paths.
fn canonical_id(machine: &Machine) -> Result<MachineId, String> {
    let id = machine.machine_id().map_err(|error| tec_core::port::chain(&error))?;
    if id.to_string() == machine.spec.id {
        Ok(id)
    } else {
        Err(format!("the id has to be written as {id}"))
    }
}

/// Another object with the same ID that counts instead.
pub(super) fn older(ctx: &Context, machine: &Machine) -> Option<String> {
    let mine = machine.precedence();
    let same = ctx.caches.machines.indexed(&machine.spec.id);
    let live = same.iter().filter(|other| other.metadata.deletion_timestamp.is_none());
    live.filter(|other| other.precedence() < mine).map(|other| other.name_any()).next()
}

/// Removes from the Trustees what they hold for the machine, unless another object has the same ID.
fn forget(ctx: &Context, name: &str) {
    let mut memory = ctx.memory();
    memory.unpublished.remove(name);
    let Some(id) = memory.ids.remove(name) else {
        return;
    };
    drop(memory);
    let is_other = |machine: &Machine| {
        machine.name_any() != name && machine.metadata.deletion_timestamp.is_none()
    };
    let same = ctx.caches.machines.indexed(&id.to_string());
    if !same.iter().any(|machine| is_other(machine)) && ctx.parts.trust.forget_machine(&id) {
        tracing::info!(machine.id = %id, "its key is taken away from the Trustees");
        ctx.publish.notify_one();
    }
}

/// The object is removed once the key is gone from the Trustees, or after a minute.
async fn remove(ctx: &Context, machine: &Machine) -> Result<Next, PortError> {
    if !machine.finalizers().iter().any(|known| known == FINALIZER) {
        return Ok(Next::Wait);
    }
    let since = machine.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second());
    let waited = ctx.now().unix_seconds().saturating_sub(since.unwrap_or(i64::MIN));
    let id = machine.machine_id().ok();
    if let Some(id) = id.filter(|_| older(ctx, machine).is_none()) {
        // Even after a restart, when nothing about it is remembered.
        ctx.memory().ids.insert(machine.name_any(), id);
        forget(ctx, &machine.name_any());
        let is_gone = ctx.parts.trust.published(&id).is_complete;
        if !is_gone && waited < LONGEST_FAREWELL {
            return Ok(Next::After(FAREWELL_POLL));
        }
        if !is_gone {
            tracing::warn!(machine.id = %id, "it goes although a Trustee may still hold its key");
        }
    }
    ctx.unclaim(machine, FINALIZER).await?;
    Ok(Next::Wait)
}
