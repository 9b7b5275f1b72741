//! Approval: binds an attestation key to its machine, once.

use crate::ak::{
    AkCandidate, AkDecision, AkMatcher, AkReason, AkRecord, ApprovedAk, Fingerprint, SourceNetwork,
};
use crate::id::MachineId;
use crate::port::{
    AkRegistry, AuditAction, AuditEvent, AuditSink, BindOutcome, Clock, CreateOutcome,
    MachineRegistry, PortError,
};

/// Ports for an approval.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AkPorts<'a> {
    /// The machines.
    pub machines: &'a dyn MachineRegistry,
    /// The keys.
    pub aks: &'a dyn AkRegistry,
    /// Makes the decision.
    pub matcher: &'a dyn AkMatcher,
    /// Where refusals are recorded.
    pub audit: &'a dyn AuditSink,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// Limits for trust on first use.
    pub claims: ClaimLimits,
}

impl<'a> AkPorts<'a> {
    /// Bundles the ports, with the default [`ClaimLimits`].
    pub fn new(
        machines: &'a dyn MachineRegistry,
        aks: &'a dyn AkRegistry,
        matcher: &'a dyn AkMatcher,
        audit: &'a dyn AuditSink,
        clock: &'a dyn Clock,
    ) -> Self {
        Self { machines, aks, matcher, audit, clock, claims: ClaimLimits::default() }
    }

    /// Limits the machines that trust on first use admits.
    pub fn with_claims(self, claims: ClaimLimits) -> Self {
        Self { claims, ..self }
    }
}

/// Limits on the machines admitted by trust on first use: a stranger with a software key claims a
/// machine permanently, with a row, a disk key and audit lines. Beyond the limit, keys wait for an
/// admin.
///
/// Keys submitted at the same moment may together exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimLimits {
    /// Maximum number in total.
    pub total: u64,
    /// Maximum number from one source network.
    pub per_source: u64,
}

impl ClaimLimits {
    /// No limits: for callers that admit no machine on first use, or count by themselves.
    pub const NONE: Self = Self { total: u64::MAX, per_source: u64::MAX };
}

impl Default for ClaimLimits {
    /// 10,000 in total, 1,000 from one network.
    fn default() -> Self {
        Self { total: 10_000, per_source: 1_000 }
    }
}

/// Result of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AkOutcome {
    /// The key is bound now.
    Bound(AkReason),
    /// The key was bound to this machine before.
    AlreadyBound,
    /// The key is stored, and waits for what the reason requires or, if the reason grants the
    /// binding, for the component that binds keys.
    Waiting(AkReason),
    /// The key was stored before, and still waits or has been bound in the meantime.
    AlreadyWaiting(AkReason),
    /// The key was refused.
    Rejected(AkReason),
}

/// Decides on a key that is to be bound to a machine, and carries out the decision.
///
/// # Security
/// The decision is based on what was read; the registry's compare-and-swap makes it hold against
/// concurrent decisions.
pub async fn approve(
    ports: AkPorts<'_>,
    machine: MachineId,
    candidate: AkCandidate,
) -> Result<AkOutcome, PortError> {
    let key = candidate.public.fingerprint();
    let known_machine = ports.machines.find(&machine).await?;
    let of_machine = ports.aks.bound_to(&machine).await?;
    let same_key = ports.aks.find(&key).await?;
    let decision = ports.matcher.decide(
        &candidate,
        known_machine.as_ref(),
        of_machine.as_ref(),
        same_key.as_ref(),
    );
    let mut record =
        AkRecord::pending(candidate.public, machine, candidate.proven_ek, ports.clock.now());
    record.source = candidate.source;
    let decision = quarantine(ports, decision, &mut record).await?;
    carry_out(ports, decision, record).await
}

/// Makes a key wait instead of binding it on first use if a limit is reached. Keys bound any other
/// way have no source.
async fn quarantine(
    ports: AkPorts<'_>,
    decision: AkDecision,
    record: &mut AkRecord,
) -> Result<AkDecision, PortError> {
    match decision {
        AkDecision::Approve(AkReason::FirstUse) => {}
        AkDecision::Approve(_) => {
            record.source = None;
            return Ok(decision);
        }
        _ => return Ok(decision),
    }
    let source = *record.source.get_or_insert(SourceNetwork::UNKNOWN);
    if ports.claims == ClaimLimits::NONE {
        return Ok(decision);
    }
    let claims = ports.aks.claims(&source).await?;
    let has_room = claims.total < ports.claims.total && claims.of_source < ports.claims.per_source;
    Ok(if has_room { decision } else { AkDecision::Wait(AkReason::Quarantined) })
}

async fn carry_out(
    ports: AkPorts<'_>,
    decision: AkDecision,
    record: AkRecord,
) -> Result<AkOutcome, PortError> {
    match decision {
        AkDecision::Approve(AkReason::SameKeyAgain) => Ok(AkOutcome::AlreadyBound),
        AkDecision::Approve(reason) => bind(ports, decision, reason, record).await,
        // Nothing is stored for a key that a TPM has yet to vouch for: strangers could fill the
        // machine's waiting slots.
        AkDecision::Wait(reason @ AkReason::NeedsEkProof) => Ok(AkOutcome::Waiting(reason)),
        AkDecision::Wait(reason) => {
            let line = line(ports, AuditAction::AkSubmitted, &record);
            Ok(match ports.aks.submit(&record, &line).await? {
                CreateOutcome::Created => AkOutcome::Waiting(reason),
                CreateOutcome::Existed => AkOutcome::AlreadyWaiting(reason),
            })
        }
        AkDecision::Reject(reason) => reject(ports, reason, &record).await,
    }
}

async fn bind(
    ports: AkPorts<'_>,
    decision: AkDecision,
    reason: AkReason,
    record: AkRecord,
) -> Result<AkOutcome, PortError> {
    let Some(approved) = ApprovedAk::from_decision(decision, record.clone()) else {
        return Ok(AkOutcome::Rejected(reason));
    };
    let line = line(ports, AuditAction::AkBound, &record);
    match ports.aks.bind(&approved, &line).await? {
        BindOutcome::Bound => Ok(AkOutcome::Bound(reason)),
        BindOutcome::AlreadyBound => Ok(AkOutcome::AlreadyBound),
        BindOutcome::MachineTaken => reject(ports, AkReason::MachineHasOtherKey, &record).await,
        BindOutcome::KeyTaken => reject(ports, AkReason::KeyHasOtherMachine, &record).await,
        BindOutcome::NoMachine => reject(ports, AkReason::MachineNotWaiting, &record).await,
    }
}

async fn reject(
    ports: AkPorts<'_>,
    reason: AkReason,
    record: &AkRecord,
) -> Result<AkOutcome, PortError> {
    // A key for a machine that does not exist concerns nobody, and strangers could fill the log.
    if reason != AkReason::MachineNotWaiting {
        let line = line(ports, AuditAction::AkRejected, record);
        ports.audit.append(&line).await?;
    }
    Ok(AkOutcome::Rejected(reason))
}

fn line(ports: AkPorts<'_>, action: AuditAction, record: &AkRecord) -> AuditEvent {
    let subject = record.fingerprint().to_string();
    AuditEvent::new(ports.clock.now(), action, Some(record.machine), subject)
}

/// Revokes a key. Its machine may then bind another one, if an admin approves it or the same
/// endorsement key vouches for it.
pub async fn revoke_ak(
    aks: &dyn AkRegistry,
    clock: &dyn Clock,
    key: Fingerprint,
) -> Result<(), PortError> {
    let machine = aks.find(&key).await?.map(|record| record.machine);
    let (now, action) = (clock.now(), AuditAction::AkRevoked);
    let line = AuditEvent::new(now, action, machine, key.to_string());
    aks.revoke(&key, &line).await
}
