//! The decision whether an attestation key may be bound to a machine.

#![cfg_attr(
    any(test, feature = "test-util"),
    expect(clippy::ref_option_ref, reason = "what mockall makes of optional references")
)]

use std::fmt;

use super::{AkRecord, AkState, Fingerprint, PublicKey, SourceNetwork};
use crate::machine::Machine;

/// A key to be bound.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AkCandidate {
    /// The key.
    pub public: PublicKey,
    /// Endorsement key that credential activation proved to be in the same TPM.
    pub proven_ek: Option<Fingerprint>,
    /// Whether an admin requests the binding.
    pub approved_by_admin: ByAdmin,
    /// Network that the key was submitted from.
    pub source: Option<SourceNetwork>,
}

/// Who requests a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByAdmin {
    /// The node itself.
    No,
    /// An admin, after checking.
    Yes,
}

impl AkCandidate {
    /// A key submitted by the node itself.
    pub fn from_node(public: PublicKey, proven_ek: Option<Fingerprint>) -> Self {
        Self { public, proven_ek, approved_by_admin: ByAdmin::No, source: None }
    }

    /// A key approved by an admin.
    pub fn from_admin(public: PublicKey, proven_ek: Option<Fingerprint>) -> Self {
        Self { public, proven_ek, approved_by_admin: ByAdmin::Yes, source: None }
    }

    /// Sets the network that the key was submitted from.
    pub fn from_network(self, source: Option<SourceNetwork>) -> Self {
        Self { source, ..self }
    }
}

/// The reason for a matcher's decision; in [`AllOf`], later ones take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AkReason {
    /// The machine had no key: trust on first use.
    FirstUse,
    /// The same key is already bound to this machine.
    SameKeyAgain,
    /// An endorsement key vouches for the key.
    EkProven,
    /// An admin approved it.
    AdminApproved,
    /// Waits for an admin's approval.
    NeedsAdmin,
    /// Waits for credential activation.
    NeedsEkProof,
    /// The machine had another key before, so the new one waits for an admin.
    NeedsRebind,
    /// The limit of machines claimed on first use is reached, so the key waits for an admin.
    Quarantined,
    /// There is no such machine, or it is not in service: quarantined, revoked or retired.
    MachineNotWaiting,
    /// The machine is bound to another key.
    MachineHasOtherKey,
    /// The key is bound to another machine.
    KeyHasOtherMachine,
    /// The key was revoked; revocation is permanent.
    KeyRevoked,
    /// The answer of a custom matcher, as shown to nodes and admins.
    Policy(&'static str),
}

impl fmt::Display for AkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstUse => "first key of this machine",
            Self::SameKeyAgain => "already bound to this machine",
            Self::EkProven => "proven by an endorsement key",
            Self::AdminApproved => "approved by an admin",
            Self::NeedsAdmin => "waits for an admin",
            Self::NeedsEkProof => "waits for proof by an endorsement key",
            Self::NeedsRebind => "the machine had another key before: waits for an admin",
            Self::Quarantined => "the limit of first use is reached: waits for an admin",
            Self::MachineNotWaiting => "no such machine in service",
            Self::MachineHasOtherKey => "the machine is bound to another key",
            Self::KeyHasOtherMachine => "the key is bound to another machine",
            Self::KeyRevoked => "the key was revoked",
            Self::Policy(text) => text,
        })
    }
}

/// A matcher's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AkDecision {
    /// Bind it.
    Approve(AkReason),
    /// Store it, unbound.
    Wait(AkReason),
    /// Refuse it.
    Reject(AkReason),
}

/// Decides whether an attestation key may be bound to a machine.
///
/// *Contract*: pure and total; reads only its arguments; equal arguments give equal answers.
/// `machine` is the machine that the key was submitted for, `of_machine` the key bound to it, and
/// `same_key` the registry's record of the submitted key. *Implemented by* [`TofuMatcher`],
/// [`EkBoundMatcher`], [`ManualMatcher`], [`AllOf`]. *Conformance suite*:
/// [`testing::ak_matcher`](crate::testing::ak_matcher).
///
/// # Security
/// Never approves when the machine is bound to another key, when the key is bound to another
/// machine, or when the key was revoked. The registry's compare-and-swap enforces the same rules
/// again. First use happens once in the life of a machine: a machine that ever had a key accepts
/// another one only with an admin's approval, or with the endorsement key proven for its last key.
#[cfg_attr(any(test, feature = "test-util"), mockall::automock)]
pub trait AkMatcher: fmt::Debug + Send + Sync {
    /// Decides on a key.
    fn decide<'a>(
        &self,
        candidate: &AkCandidate,
        machine: Option<&'a Machine>,
        of_machine: Option<&'a AkRecord>,
        same_key: Option<&'a AkRecord>,
    ) -> AkDecision;
}

/// The decision of every matcher before it applies its own rule: `Some` is final.
fn common_rule(
    candidate: &AkCandidate,
    machine: Option<&Machine>,
    of_machine: Option<&AkRecord>,
    same_key: Option<&AkRecord>,
) -> Option<AkDecision> {
    let Some(machine) = machine.filter(|machine| machine.state.takes_keys()) else {
        return Some(AkDecision::Reject(AkReason::MachineNotWaiting));
    };
    if let Some(known) = same_key {
        if known.state == AkState::Revoked {
            return Some(AkDecision::Reject(AkReason::KeyRevoked));
        }
        if known.machine != machine.id {
            return Some(AkDecision::Reject(AkReason::KeyHasOtherMachine));
        }
    }
    match of_machine.filter(|bound| bound.state == AkState::Bound) {
        Some(bound) if bound.public == candidate.public => {
            Some(AkDecision::Approve(AkReason::SameKeyAgain))
        }
        Some(_) => Some(AkDecision::Reject(AkReason::MachineHasOtherKey)),
        None => None,
    }
}

/// The decision for a machine that had a key before: another one needs an admin's approval, or the
/// endorsement key of the last one. `Some` is final.
fn rebind_rule(candidate: &AkCandidate, machine: Option<&Machine>) -> Option<AkDecision> {
    let machine = machine.filter(|machine| machine.was_bound())?;
    let earlier = machine.binding.and_then(|binding| binding.ek);
    let is_same_tpm = earlier.is_some() && earlier == candidate.proven_ek;
    let is_granted = is_same_tpm || candidate.approved_by_admin == ByAdmin::Yes;
    (!is_granted).then_some(AkDecision::Wait(AkReason::NeedsRebind))
}

/// Trust on first use: binds the first key of a machine, and refuses all others.
#[derive(Clone, Copy, Debug, Default)]
pub struct TofuMatcher;

impl AkMatcher for TofuMatcher {
    fn decide(
        &self,
        candidate: &AkCandidate,
        machine: Option<&Machine>,
        of_machine: Option<&AkRecord>,
        same_key: Option<&AkRecord>,
    ) -> AkDecision {
        let reason = match candidate.approved_by_admin {
            ByAdmin::Yes => AkReason::AdminApproved,
            ByAdmin::No if machine.is_some_and(Machine::was_bound) => AkReason::EkProven,
            ByAdmin::No => AkReason::FirstUse,
        };
        common_rule(candidate, machine, of_machine, same_key)
            .or_else(|| rebind_rule(candidate, machine))
            .unwrap_or(AkDecision::Approve(reason))
    }
}

/// Trust on first use, but only with an endorsement key proven by credential activation; with an
/// allow-list, only with a listed one. A machine that had a key accepts another one with the same
/// endorsement key or with an admin's approval.
#[derive(Clone, Debug, Default)]
pub struct EkBoundMatcher {
    allowed: Option<std::collections::BTreeSet<Fingerprint>>,
}

impl EkBoundMatcher {
    /// Accepts any proven endorsement key.
    pub fn any_ek() -> Self {
        Self { allowed: None }
    }

    /// Accepts only these endorsement keys.
    pub fn allow_list(eks: impl IntoIterator<Item = Fingerprint>) -> Self {
        Self { allowed: Some(eks.into_iter().collect()) }
    }
}

impl AkMatcher for EkBoundMatcher {
    fn decide(
        &self,
        candidate: &AkCandidate,
        machine: Option<&Machine>,
        of_machine: Option<&AkRecord>,
        same_key: Option<&AkRecord>,
    ) -> AkDecision {
        if let Some(decision) = common_rule(candidate, machine, of_machine, same_key) {
            return decision;
        }
        match (candidate.proven_ek, &self.allowed) {
            (None, _) => AkDecision::Wait(AkReason::NeedsEkProof),
            (Some(ek), Some(allowed)) if !allowed.contains(&ek) => {
                AkDecision::Wait(AkReason::NeedsAdmin)
            }
            (Some(_), _) => {
                rebind_rule(candidate, machine).unwrap_or(AkDecision::Approve(AkReason::EkProven))
            }
        }
    }
}

/// Every key waits until an admin approves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ManualMatcher;

impl AkMatcher for ManualMatcher {
    fn decide(
        &self,
        candidate: &AkCandidate,
        machine: Option<&Machine>,
        of_machine: Option<&AkRecord>,
        same_key: Option<&AkRecord>,
    ) -> AkDecision {
        common_rule(candidate, machine, of_machine, same_key).unwrap_or(
            match candidate.approved_by_admin {
                ByAdmin::Yes => AkDecision::Approve(AkReason::AdminApproved),
                ByAdmin::No => AkDecision::Wait(AkReason::NeedsAdmin),
            },
        )
    }
}

/// Approves only what every inner matcher approves; a rejection takes precedence over a wait. The order of the
/// matchers does not matter: of several reasons, one takes precedence for what follows from it, and otherwise
/// the last one in the order of [`AkReason`].
#[derive(Debug)]
pub struct AllOf(Vec<Box<dyn AkMatcher>>);

impl AllOf {
    /// Combines matchers. An empty list approves nothing.
    pub fn new(matchers: Vec<Box<dyn AkMatcher>>) -> Self {
        Self(matchers)
    }
}

impl AkMatcher for AllOf {
    fn decide(
        &self,
        candidate: &AkCandidate,
        machine: Option<&Machine>,
        of_machine: Option<&AkRecord>,
        same_key: Option<&AkRecord>,
    ) -> AkDecision {
        let strictness = |decision: &AkDecision| {
            let (class, first, reason) = match *decision {
                // Its limits apply.
                AkDecision::Approve(reason) => (0, AkReason::FirstUse, reason),
                // The node can give the proof immediately, and without it nothing is stored.
                AkDecision::Wait(reason) => (1, AkReason::NeedsEkProof, reason),
                // Nothing is logged about machines that do not exist.
                AkDecision::Reject(reason) => (2, AkReason::MachineNotWaiting, reason),
            };
            (class, reason == first, reason)
        };
        self.0
            .iter()
            .map(|matcher| matcher.decide(candidate, machine, of_machine, same_key))
            .max_by_key(strictness)
            .unwrap_or(AkDecision::Wait(AkReason::NeedsAdmin))
    }
}
