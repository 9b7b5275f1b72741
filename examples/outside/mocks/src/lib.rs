//! Two small pieces over the ports and policies of tec-core, tested with mocks of both.

use tec_core::ak::{AkCandidate, AkDecision, AkMatcher, AkState};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::port::{
    AkRegistry, AuditAction, AuditEvent, Clock, MachineRegistry, PortError, PortErrorKind,
    SecretStore,
};

/// The machines whose waiting keys a policy would bind.
pub async fn would_bind(
    machines: &dyn MachineRegistry,
    aks: &dyn AkRegistry,
    policy: &dyn AkMatcher,
) -> Result<Vec<MachineId>, PortError> {
    let mut found = Vec::new();
    let waiting = aks.list(None).await?;
    for key in waiting.into_iter().filter(|key| key.state == AkState::Pending) {
        let machine = machines.find(&key.machine).await?;
        let bound = aks.bound_to(&key.machine).await?;
        let candidate = AkCandidate::from_node(key.public.clone(), key.ek);
        let decision = policy.decide(&candidate, machine.as_ref(), bound.as_ref(), Some(&key));
        if matches!(decision, AkDecision::Approve(_)) {
            found.push(key.machine);
        }
    }
    Ok(found)
}

/// Revokes the machine, then removes its disk key, in this order: a revoked machine gets no key, even while
/// its key still exists. Repeating the call is harmless.
///
/// # Errors
/// The key still exists.
pub async fn retire(
    machines: &dyn MachineRegistry,
    secrets: &dyn SecretStore,
    clock: &dyn Clock,
    machine: MachineId,
) -> Result<(), PortError> {
    let action = AuditAction::MachineRevoked;
    let line = AuditEvent::new(clock.now(), action, Some(machine), "retired");
    match machines.revoke(&machine, &line).await {
        Err(error) if error.kind() != PortErrorKind::NotFound => return Err(error),
        _ => {}
    }
    secrets.remove(&ResourcePath::luks_root(&machine)).await
}

#[cfg(test)]
mod tests {
    use mockall::Sequence;
    use mockall::predicate::{always, eq};
    use tec_core::ak::{AkReason, MockAkMatcher};
    use tec_core::port::{MockAkRegistry, MockMachineRegistry, MockSecretStore};
    use tec_core::testing::{ManualClock, sample};

    use super::*;

    async fn run(
        machines: &MockMachineRegistry,
        secrets: &MockSecretStore,
    ) -> Result<(), PortError> {
        let clock = ManualClock::new(sample::time(1));
        retire(machines, secrets, &clock, sample::machine_id(1)).await
    }

    #[tokio::test]
    async fn the_machine_is_revoked_before_its_key_goes() {
        let (mut machines, mut secrets) = (MockMachineRegistry::new(), MockSecretStore::new());
        let (mut order, id) = (Sequence::new(), sample::machine_id(1));
        let revoked = machines.expect_revoke().with(eq(id), always()).once();
        revoked.in_sequence(&mut order).returning(|_, _| Ok(()));
        let removed = secrets.expect_remove().with(eq(ResourcePath::luks_root(&id))).once();
        removed.in_sequence(&mut order).returning(|_| Ok(()));
        run(&machines, &secrets).await.unwrap();
    }

    #[tokio::test]
    async fn a_registry_that_cannot_be_reached_keeps_the_key() {
        let (mut machines, secrets) = (MockMachineRegistry::new(), MockSecretStore::new());
        let down = || PortError::new(PortErrorKind::Unavailable, "revoke the machine");
        machines.expect_revoke().returning(move |_, _| Err(down()));
        // An unexpected call fails the test.
        assert!(run(&machines, &secrets).await.unwrap_err().is_retryable());
    }

    #[tokio::test]
    async fn only_keys_that_the_policy_approves_are_told() {
        let (mut machines, mut aks) = (MockMachineRegistry::new(), MockAkRegistry::new());
        machines.expect_find().returning(|_| Ok(None));
        aks.expect_bound_to().returning(|_| Ok(None));
        aks.expect_list().returning(|_| Ok([1, 2].map(|one| sample::ak(one, one)).into()));
        let mut policy = MockAkMatcher::new();
        policy.expect_decide().returning(|candidate, _, _, _| {
            let reason = AkReason::Policy("the list of purchases");
            match candidate.public == sample::public_key(2) {
                true => AkDecision::Approve(reason),
                false => AkDecision::Wait(reason),
            }
        });
        let told = would_bind(&machines, &aks, &policy).await.unwrap();
        assert_eq!(told, [sample::machine_id(2)]);
    }
}
