//! The doubles pass their own suites, and the faults behave as documented.

use std::sync::Arc;

use super::{Fault, Faulty, ManualClock, MemoryBroker, MemoryRegistry, SeededEntropy, sample};
use crate::ak::{
    AkCandidate, AkDecision, AkMatcher, AkReason, AkRecord, AllOf, EkBoundMatcher, ManualMatcher,
    TofuMatcher,
};
use crate::boot::WholeImages;
use crate::machine::Machine;
use crate::port::{AuditSink, Clock, Entropy, PortErrorKind, PutOutcome, SecretStore};

#[tokio::test]
async fn memory_doubles_conform() {
    let make = async || MemoryRegistry::new();
    super::machine_registry(make).await;
    super::ak_registry(make).await;
    super::image_registry(make).await;
    super::secret_store(make).await;
    super::disk_keys(make).await;
    super::platform_log(make).await;
    super::audit_sink(make, async |log: &MemoryRegistry| log.events()).await;
    super::audited_changes(make, async |log: &MemoryRegistry| log.events()).await;
    super::attempt_log(make).await;
    super::key_broker(async || MemoryBroker::new()).await;
    let number = std::cell::Cell::new(0);
    super::trust_anchor(async || {
        number.set(number.get() + 1);
        MemoryRegistry::anchor(number.get())
    })
    .await;
}

/// Machines in one store, secrets in another.
struct Apart {
    registry: MemoryRegistry,
    vault: MemoryRegistry,
}

impl super::AuditedPorts for Apart {
    fn machines(&self) -> &dyn crate::port::MachineRegistry {
        &self.registry
    }

    fn aks(&self) -> &dyn crate::port::AkRegistry {
        &self.registry
    }

    fn images(&self) -> &dyn crate::port::ImageRegistry {
        &self.registry
    }

    fn secrets(&self) -> &dyn SecretStore {
        &self.vault
    }
}

#[tokio::test]
async fn stores_of_several_types_conform_together() {
    let make = async || Apart { registry: MemoryRegistry::new(), vault: MemoryRegistry::new() };
    let read = async |apart: &Apart| {
        let mut lines = [apart.registry.events(), apart.vault.events()].concat();
        lines.sort_by(|a, b| a.subject.cmp(&b.subject));
        lines
    };
    super::audited_changes(make, read).await;
}

#[tokio::test]
async fn a_healthy_wrapper_conforms() {
    let make = async || Faulty::healthy(Arc::new(MemoryRegistry::new()));
    super::machine_registry(make).await;
    super::ak_registry(make).await;
    super::image_registry(make).await;
    super::secret_store(make).await;
    super::disk_keys(make).await;
    super::platform_log(make).await;
    let read = async |log: &Faulty<MemoryRegistry>| log.inner().events();
    super::audit_sink(make, read).await;
    super::audited_changes(make, read).await;
    super::attempt_log(make).await;
    super::key_broker(async || Faulty::healthy(Arc::new(MemoryBroker::new()))).await;
}

#[test]
fn whole_images_conform() {
    super::boot_states(&WholeImages);
}

#[test]
fn all_matchers_conform() {
    super::ak_matcher(&TofuMatcher);
    super::ak_matcher(&ManualMatcher);
    super::ak_matcher(&EkBoundMatcher::any_ek());
    super::ak_matcher(&EkBoundMatcher::allow_list([sample::public_key(9).fingerprint()]));
    super::ak_matcher(&AllOf::new(Vec::new()));
    super::ak_matcher(&AllOf::new(vec![Box::new(TofuMatcher), Box::new(ManualMatcher)]));
}

/// Decides what it was told to.
#[derive(Debug)]
struct Says(AkDecision);

impl AkMatcher for Says {
    fn decide(
        &self,
        _: &AkCandidate,
        _: Option<&Machine>,
        _: Option<&AkRecord>,
        _: Option<&AkRecord>,
    ) -> AkDecision {
        self.0
    }
}

#[test]
fn the_order_of_several_matchers_changes_no_reason() {
    use AkDecision::{Approve, Reject, Wait};
    use AkReason::{
        AdminApproved, FirstUse, KeyRevoked, MachineNotWaiting, NeedsAdmin, NeedsEkProof,
        NeedsRebind, Policy,
    };
    let candidate = AkCandidate::from_node(sample::public_key(1), None);
    for (expected, other) in [
        (Approve(FirstUse), Approve(AdminApproved)),
        (Approve(FirstUse), Approve(Policy("better than first use"))),
        (Wait(NeedsEkProof), Wait(NeedsAdmin)),
        (Wait(NeedsEkProof), Wait(Policy("mine"))),
        (Wait(NeedsRebind), Wait(NeedsAdmin)),
        (Wait(Policy("mine")), Wait(FirstUse)),
        (Reject(MachineNotWaiting), Reject(Policy("mine"))),
        (Reject(Policy("mine")), Reject(KeyRevoked)),
        (Reject(KeyRevoked), Wait(NeedsEkProof)),
        (Wait(NeedsAdmin), Approve(FirstUse)),
    ] {
        for order in [[expected, other], [other, expected]] {
            let matchers = order.map(|says| Box::new(Says(says)) as Box<dyn AkMatcher>);
            let decision = AllOf::new(matchers.into()).decide(&candidate, None, None, None);
            assert_eq!(decision, expected, "{order:?}");
        }
    }
}

#[tokio::test]
async fn a_fault_before_the_call_leaves_nothing_behind() {
    let inner = Arc::new(MemoryRegistry::new());
    let faulty = Faulty::new(inner.clone(), |_| Fault::Before);
    let error = faulty.append(&sample::audit_event(1)).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Unavailable);
    assert!(inner.events().is_empty());
}

#[tokio::test]
async fn a_lost_acknowledgement_leaves_the_effect_behind() {
    let inner = Arc::new(MemoryRegistry::new());
    let faulty = Faulty::new(inner.clone(), |call| match call.operation {
        "SecretStore::put_new" if call.number == 0 => Fault::LostAck,
        _ => Fault::None,
    });
    let put = || async {
        faulty.put_new(&sample::secret_path(1), &sample::secret(1), &sample::line()).await
    };
    assert_eq!(put().await.unwrap_err().kind(), PortErrorKind::Unavailable);
    assert_eq!(inner.secret_paths(), [sample::secret_path(1)]);
    assert_eq!(put().await.unwrap(), PutOutcome::Existed);
    assert_eq!(faulty.calls(), 2);
}

#[tokio::test]
async fn after_a_crash_every_call_fails() {
    let inner = Arc::new(MemoryRegistry::new());
    let faulty = Faulty::crash_at(inner.clone(), 1, Fault::LostAck);
    assert!(faulty.append(&sample::audit_event(1)).await.is_ok());
    assert!(faulty.append(&sample::audit_event(2)).await.is_err());
    assert!(faulty.append(&sample::audit_event(3)).await.is_err());
    assert_eq!(inner.events(), [sample::audit_event(1), sample::audit_event(2)]);
}

#[tokio::test]
async fn seeded_faults_repeat_and_come_in_both_sorts() {
    let run = async |seed| {
        let faulty = Faulty::seeded(Arc::new(MemoryRegistry::new()), seed, 300);
        let mut failed = Vec::new();
        for number in 0..200 {
            failed.push(faulty.append(&sample::audit_event(number)).await.is_err());
        }
        (failed, faulty.inner().events().len())
    };
    let (failed, kept) = run(1).await;
    assert_eq!(run(1).await, (failed.clone(), kept));
    assert_ne!(run(2).await.0, failed);
    let failures = failed.iter().filter(|failed| **failed).count();
    assert!((20..=120).contains(&failures), "{failures}");
    assert!(kept > 200 - failures && kept < 200, "{kept}");
}

#[test]
fn the_clock_stands_still_until_told() {
    let clock = ManualClock::new(sample::time(5));
    assert_eq!(clock.now(), clock.now());
    clock.advance_seconds(10);
    assert_eq!(clock.now(), sample::time(15));
    clock.set(sample::time(1));
    assert_eq!(clock.now(), sample::time(1));
}

#[test]
fn equal_seeds_give_equal_bytes() {
    let draw = |seed| {
        let entropy = SeededEntropy::new(seed);
        let mut bytes = [[0; 16]; 2];
        entropy.fill(&mut bytes[0]);
        entropy.fill(&mut bytes[1]);
        bytes
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    assert_ne!(draw(1)[0], draw(1)[1]);
}
