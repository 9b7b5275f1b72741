//! Reconciles an attestation key: the decision, the binding, and what follows from it.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use tec_core::ak::{
    AkCandidate, AkDecision, AkReason, AkRecord, AkState, ManualMatcher, SourceNetwork, may_wait,
};
use tec_core::code::Code;
use tec_core::flow::{AkOutcome, AkPorts, ClaimLimits, approve};
use tec_core::id::MachineId;
use tec_core::machine::MachineState;
use tec_core::migrate::Deed;
use tec_core::port::{Claims, PortError, PortErrorKind, chain};

use super::context::Context;
use super::queue::Next;
use super::report::owner_of;
use crate::api::{
    ApprovalSpec, AttestationKey, ConditionKind, Machine, Reason, approval_matcher, is_paused,
};
use crate::client::{AUDIT, port_error};
use crate::signal::Event;

/// Entry of the key's Secret (trusted-cluster-operator).
const PUBLIC_KEY: &str = "public_key";

/// What is reported about a key.
struct Verdict {
    reason: Reason,
    event: Event,
    message: String,
}

impl Verdict {
    fn new(reason: Reason, event: Event, message: impl Into<String>) -> Self {
        Self { reason, event, message: message.into() }
    }

    fn waiting(message: impl Into<String>) -> Self {
        Self::new(Reason::Waiting, Event::KeyWaiting, message)
    }

    fn rejected(message: impl Into<String>) -> Self {
        Self::new(Reason::Rejected, Event::KeyRejected, message)
    }
}

/// Reconciles one key.
pub(super) async fn reconcile(ctx: &Context, name: &str) -> Result<Next, PortError> {
    let Some(key) = ctx.caches.keys.get(name) else {
        return Ok(Next::Wait);
    };
    if key.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    let verdict = judge(ctx, &key).await?;
    let is_approved = verdict.reason == Reason::MachineCreated;
    if !is_approved {
        withdraw(ctx, &key).await?;
    }
    write(ctx, &key, verdict).await?;
    Ok(Next::Wait)
}

async fn judge(ctx: &Context, key: &AttestationKey) -> Result<Verdict, PortError> {
    if key.spec.revoked_at.is_some() {
        return Ok(Verdict::new(Reason::Revoked, Event::KeyRejected, "it was taken back"));
    }
    if key.spec.uuid.is_none() {
        return Ok(Verdict::waiting("it names no machine"));
    }
    let id = match key.machine_id() {
        Ok(id) => id,
        Err(error) => {
            return Ok(Verdict::new(Reason::Malformed, Event::KeyRejected, chain(&error)));
        }
    };
    let machine = counting(ctx, &id).await?;
    let record = match key.to_core(machine.as_ref()) {
        Ok(record) => record,
        Err(error) => {
            return Ok(Verdict::new(Reason::Malformed, Event::KeyRejected, chain(&error)));
        }
    };
    if record.state != AkState::Bound && !ctx.may(Deed::Admit) {
        return Ok(Verdict::waiting(ctx.role()));
    }
    let Some(machine) = machine else {
        return discard_or_wait(ctx, key, "its machine is not there").await;
    };
    if record.state == AkState::Bound {
        return settle(ctx, key, &machine).await;
    }
    if machine.bound_key().is_some_and(|bound| bound.name == key.name_any()) {
        let message = "it was edited after it was bound; restore it, or revoke it";
        return Ok(Verdict::new(Reason::KeyChanged, Event::KeyChanged, message));
    }
    if machine.state() == MachineState::Quarantined {
        return discard_or_wait(ctx, key, "its machine is quarantined").await;
    }
    if is_paused(&machine) {
        return discard_or_wait(ctx, key, "its machine is paused").await;
    }
    decide(ctx, key, &machine, record).await
}

/// The object of the machine. An object that a key was bound to takes precedence, whatever its name, so that
/// an account that may only create objects cannot obtain an existing disk key.
async fn counting(ctx: &Context, id: &MachineId) -> Result<Option<Machine>, PortError> {
    let same = ctx.caches.machines.indexed(&id.to_string());
    let live = same.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
    match live.min_by_key(|object| object.precedence()) {
        Some(object) if object.bound_key().is_some() => {
            let name = object.name_any();
            let found = ctx.objects::<Machine>().get_opt(&name).await;
            let found = found.map_err(|error| port_error(format!("look up {name}"), error))?;
            Ok(found.filter(|object| object.metadata.deletion_timestamp.is_none()))
        }
        _ => ctx.registry.machine_object(id).await,
    }
}

/// Asks the matcher, and has the registry bind what it approves.
async fn decide(
    ctx: &Context,
    key: &AttestationKey,
    machine: &Machine,
    record: AkRecord,
) -> Result<Verdict, PortError> {
    let Some(cluster) = ctx.cluster() else {
        return discard_or_wait(ctx, key, "there is no cluster object").await;
    };
    let matcher = match approval_matcher(cluster.spec.approval.as_ref()) {
        // The policy must not overrule an admin's decision.
        _ if key.is_approved_by_admin() => Box::new(ManualMatcher),
        Ok(matcher) => matcher,
        Err(error) => return Ok(Verdict::waiting(error.to_string())),
    };
    let candidate = candidate(key, machine, &record);
    let bound = bound_record(ctx, machine).await?;
    let mut known = machine.to_core().ok();
    if let Some(known) = known.as_mut().filter(|_| has_older_disk_key(ctx, machine)) {
        known.state = MachineState::Active;
    }
    let decision = matcher.decide(&candidate, known.as_ref(), bound.as_ref(), Some(&record));
    match decision {
        AkDecision::Wait(reason) => return discard_or_wait(ctx, key, &why(reason)).await,
        AkDecision::Reject(reason) => return Ok(Verdict::rejected(reason.to_string())),
        AkDecision::Approve(AkReason::FirstUse)
            if !has_room(ctx, cluster.spec.approval.as_ref(), &candidate) =>
        {
            return discard_or_wait(ctx, key, &why(AkReason::Quarantined)).await;
        }
        AkDecision::Approve(_) => {}
    }
    let registry = ctx.registry.with_key_object(record.fingerprint(), key.name_any());
    let ports = AkPorts::new(&registry, &registry, &*matcher, &registry, ctx.clock())
        .with_claims(ClaimLimits::NONE);
    let outcome = approve(ports, record.machine, candidate).await.map_err(|error| {
        PortError::new(error.kind(), format!("approve {}", key.name_any())).because(error)
    })?;
    match outcome {
        AkOutcome::Bound(_) | AkOutcome::AlreadyBound => settle(ctx, key, machine).await,
        AkOutcome::Waiting(reason) | AkOutcome::AlreadyWaiting(reason) => {
            Ok(Verdict::waiting(reason.to_string()))
        }
        AkOutcome::Rejected(reason) => Ok(Verdict::rejected(reason.to_string())),
    }
}

/// What a key waits for, with the code if there is one.
fn why(reason: AkReason) -> String {
    match reason {
        AkReason::NeedsRebind => format!("{}: {reason}", Code::RegisterRebind),
        AkReason::Quarantined => format!("{}: {reason}", Code::RegisterQuarantined),
        _ => reason.to_string(),
    }
}

/// Whether the machine's disk key was created by an earlier operator, which recorded no binding, or for
/// another object with this ID: its disk may be sealed, so its next key is not a first use.
pub(super) fn has_older_disk_key(ctx: &Context, machine: &Machine) -> bool {
    let uid = machine.metadata.uid.as_deref();
    let is_of_it = |owners: &[OwnerReference]| {
        owners.is_empty() || owners.iter().any(|owner| Some(owner.uid.as_str()) == uid)
    };
    let secret = ctx.caches.secrets.get(&machine.spec.id);
    machine.bound_key().is_none()
        && secret.is_some_and(|secret| {
            !secret.annotations().contains_key(AUDIT) || !is_of_it(secret.owner_references())
        })
}

/// Whether first use may admit one more. Bindings that the watch does not show yet are not counted, so keys
/// bound within a few moments may exceed a limit.
fn has_room(ctx: &Context, approval: Option<&ApprovalSpec>, candidate: &AkCandidate) -> bool {
    let machines = ctx.caches.machines.all();
    let claimed = machines.iter().filter_map(|machine| {
        let from = machine.bound_key()?.claimed_from.as_ref()?;
        Some(from.parse().unwrap_or(SourceNetwork::UNKNOWN))
    });
    let source = candidate.source.unwrap_or(SourceNetwork::UNKNOWN);
    let claims = Claims::of(claimed, source);
    let limits = ClaimLimits::default();
    let said = |limit: Option<u32>, default| limit.map_or(default, u64::from);
    let total = said(approval.and_then(|said| said.max_claimed), limits.total);
    let each = approval.and_then(|said| said.max_claimed_per_source);
    claims.total < total && claims.of_source < said(each, limits.per_source)
}

/// A key approved by an admin or by an earlier operator needs no second decision by the policy, but the
/// machine must be free.
fn candidate(key: &AttestationKey, machine: &Machine, record: &AkRecord) -> AkCandidate {
    let was_approved = machine.bound_key().is_none() && is_said(key, Reason::MachineCreated);
    if was_approved || key.is_approved_by_admin() {
        AkCandidate::from_admin(record.public.clone(), record.ek)
    } else {
        AkCandidate::from_node(record.public.clone(), record.ek).from_network(record.source)
    }
}

/// Whether the condition `Approved` gives this reason for the object in its current state.
fn is_said(key: &AttestationKey, reason: Reason) -> bool {
    let conditions = key.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|condition| condition.type_ == ConditionKind::Approved.as_str()).any(
        |condition| {
            condition.reason == reason.as_str()
                && condition.observed_generation == key.metadata.generation
        },
    )
}

/// The key that the machine is bound to, in the form that the matcher expects.
async fn bound_record(ctx: &Context, machine: &Machine) -> Result<Option<AkRecord>, PortError> {
    use tec_core::port::AkRegistry as _;
    match machine.machine_id() {
        Ok(id) if machine.bound_key().is_some() => ctx.registry.bound_to(&id).await,
        _ => Ok(None),
    }
}

/// Lets a key wait. If so many keys wait for the same machine that someone seems to be flooding the store,
/// the newest are removed.
async fn discard_or_wait(
    ctx: &Context,
    key: &AttestationKey,
    why: &str,
) -> Result<Verdict, PortError> {
    let id = key.spec.uuid.clone().unwrap_or_default();
    let rank = |key: &AttestationKey| (key.creation_timestamp(), key.name_any());
    let others = ctx.caches.keys.indexed(&id);
    let older = others
        .iter()
        .filter(|other| rank(other) < rank(key) && !is_said(other, Reason::MachineCreated));
    let older: Vec<_> = older.filter_map(|other| other.to_core(None).ok()).collect();
    if key.to_core(None).is_ok_and(|key| !may_wait(&key, older.iter())) {
        let this_one = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: key.resource_version(),
                uid: key.uid(),
            }),
            ..DeleteParams::default()
        };
        let deleted = ctx.objects::<AttestationKey>().delete(&key.name_any(), &this_one).await;
        deleted.map_err(|error| port_error(format!("remove {}", key.name_any()), error))?;
        return Ok(Verdict::rejected("too many keys wait for this machine"));
    }
    Ok(Verdict::waiting(why))
}

/// What a bound key gets: its machine as owner, and a Secret.
async fn settle(
    ctx: &Context,
    key: &AttestationKey,
    machine: &Machine,
) -> Result<Verdict, PortError> {
    ctx.claim(key, Some(machine), &["TrustedExecutionCluster"], None).await?;
    let name = key.name_any();
    if ctx.caches.secrets.get(&name).is_none() {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                owner_references: owner_of(key).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(
                PUBLIC_KEY.to_owned(),
                ByteString(key.spec.public_key.clone().into_bytes()),
            )])),
            ..Secret::default()
        };
        let made = ctx.objects::<Secret>().create(&PostParams::default(), &secret).await;
        match made {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(port_error(format!("create the Secret {name}"), error)),
        }
    }
    ctx.wake_machine(&machine.spec.id);
    Ok(Verdict::new(Reason::MachineCreated, Event::KeyBound, ""))
}

/// A key that does not count has no Secret; someone else's Secret with the same name stays.
async fn withdraw(ctx: &Context, key: &AttestationKey) -> Result<(), PortError> {
    if let Some(uuid) = &key.spec.uuid {
        ctx.wake_machine(uuid);
    }
    let name = key.name_any();
    let Some(secret) = ctx.caches.secrets.get(&name) else {
        return Ok(());
    };
    let is_ours =
        secret.owner_references().iter().any(|owner| Some(&owner.uid) == key.uid().as_ref());
    if !is_ours || secret.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    match ctx.objects::<Secret>().delete(&name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(port_error(format!("remove the Secret {name}"), error)),
    }
}

async fn write(ctx: &Context, key: &AttestationKey, verdict: Verdict) -> Result<(), PortError> {
    let is_news = !is_said(key, verdict.reason);
    if is_news {
        tracing::info!(ak.name = key.name_any(), reason = verdict.reason.as_str(), "verdict");
        ctx.event(key, verdict.event, &verdict.message).await;
    }
    // Adoption may just have changed the object; the watch reports its new state.
    let known = key.status.as_ref().map(|status| &status.conditions);
    let said = vec![(ConditionKind::Approved, verdict.reason, verdict.message)];
    let status = json!({ "observedGeneration": key.metadata.generation });
    match ctx.say(key, known, &said, status).await {
        // It was changed, so it is reconciled again.
        Err(error)
            if error.kind() == PortErrorKind::Conflict
                || error.kind() == PortErrorKind::NotFound =>
        {
            Ok(())
        }
        other => other,
    }
}
