use crate::ak::{AkCandidate, AkDecision, AkMatcher, AkRecord, AkState, ByAdmin};
use crate::machine::{LastBinding, Machine, MachineState};
use crate::testing::sample;

/// Checks the security contract of an [`AkMatcher`] over every combination of inputs: candidate
/// from node or admin with and without endorsement key, machine unknown or in any state, its bound key
/// absent, the same or different, and the key unknown or in any state with either machine.
///
/// # Panics
/// If the contract is broken.
pub fn ak_matcher(matcher: &dyn AkMatcher) {
    for candidate in candidates() {
        for machine in machines() {
            for of_machine in keys_of_machine() {
                for same_key in records_of_key() {
                    check(
                        matcher,
                        &candidate,
                        machine.as_ref(),
                        of_machine.as_ref(),
                        same_key.as_ref(),
                    );
                }
            }
        }
    }
}

/// The candidate is key 1, for machine 1.
fn candidates() -> Vec<AkCandidate> {
    let key = || sample::public_key(1);
    [None, Some(sample::public_key(9).fingerprint())]
        .into_iter()
        .flat_map(|ek| [AkCandidate::from_node(key(), ek), AkCandidate::from_admin(key(), ek)])
        .collect()
}

fn machines() -> Vec<Option<Machine>> {
    let in_state = |state| {
        let mut machine = sample::machine(1);
        machine.state = state;
        Some(machine)
    };
    vec![
        None,
        in_state(MachineState::Unclaimed),
        in_state(MachineState::Active),
        in_state(MachineState::Quarantined),
        in_state(MachineState::Revoked),
        in_state(MachineState::Retired),
        Some(bound_before(None)),
        Some(bound_before(Some(8))),
        Some(bound_before(Some(9))),
    ]
}

/// A machine that had key 2, with an endorsement key.
fn bound_before(ek: Option<u64>) -> Machine {
    let fingerprint = |key| sample::public_key(key).fingerprint();
    let mut machine = sample::machine(1);
    machine.state = MachineState::Active;
    machine.binding = Some(LastBinding::new(fingerprint(2), ek.map(fingerprint)));
    machine
}

fn in_states(record: &AkRecord) -> impl Iterator<Item = Option<AkRecord>> {
    [AkState::Pending, AkState::Bound, AkState::Revoked]
        .map(|state| Some(AkRecord { state, ..record.clone() }))
        .into_iter()
}

fn keys_of_machine() -> Vec<Option<AkRecord>> {
    let mut bound = [sample::ak(1, 1), sample::ak(2, 1)].map(Some);
    for record in bound.iter_mut().flatten() {
        record.state = AkState::Bound;
    }
    std::iter::once(None).chain(bound).collect()
}

fn records_of_key() -> Vec<Option<AkRecord>> {
    let own = sample::ak(1, 1);
    let elsewhere = sample::ak(1, 2);
    std::iter::once(None).chain(in_states(&own)).chain(in_states(&elsewhere)).collect()
}

fn check(
    matcher: &dyn AkMatcher,
    candidate: &AkCandidate,
    machine: Option<&Machine>,
    of_machine: Option<&AkRecord>,
    same_key: Option<&AkRecord>,
) {
    let decision = matcher.decide(candidate, machine, of_machine, same_key);
    let again = matcher.decide(candidate, machine, of_machine, same_key);
    let told = format!("{matcher:?} told {candidate:?}, {machine:?}, {of_machine:?}, {same_key:?}");
    assert_eq!(decision, again, "equal arguments give equal answers: {told}");
    if !matches!(decision, AkDecision::Approve(_)) {
        return;
    }
    assert!(
        machine.is_some_and(|machine| machine.state.takes_keys()),
        "approved for a machine that is not there or not in service: {told}"
    );
    assert!(
        of_machine.is_none_or(|bound| bound.public == candidate.public),
        "approved for a machine with another key: {told}"
    );
    let had_key = machine.filter(|machine| machine.was_bound() && of_machine.is_none());
    if let Some(machine) = had_key {
        let earlier = machine.binding.and_then(|last| last.ek);
        assert!(
            candidate.approved_by_admin == ByAdmin::Yes
                || (earlier.is_some() && earlier == candidate.proven_ek),
            "approved a further key without admin and endorsement key of before: {told}"
        );
    }
    if let Some(known) = same_key {
        assert_ne!(known.state, AkState::Revoked, "approved a revoked key: {told}");
        assert!(
            known.state != AkState::Bound || Some(known.machine) == machine.map(|m| m.id),
            "approved a key that is bound to another machine: {told}"
        );
    }
}
