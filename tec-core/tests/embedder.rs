//! Incorrect stores, policies and generators of an embedder: none of them causes a key to be
//! released.
#![cfg(feature = "test-util")]
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use tec_core::ak::{AkCandidate, AkDecision, AkReason, AkState, MockAkMatcher};
use tec_core::attest::{PinnedPcrs, Tee, VerifiedEvidence};
use tec_core::boot::WholeImages;
use tec_core::digest::Sha256Digest;
use tec_core::flow;
use tec_core::flow::{
    AdmitPorts, AkOutcome, AkPorts, Boots, ProvisionPorts, RegisterError, RegisterPorts,
    ReleasePorts,
};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::ignition::{MockPinGenerator, RenderError};
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::luks::{
    CompatLuksKey, LuksKeyGenerator, LuksResource, MockLuksKeyGenerator, content_key,
};
use tec_core::machine::{Machine, MachineState};
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::port::{
    AkRegistry, ImageRegistry, MachineRegistry, MockAkRegistry, MockImageRegistry, MockSecretStore,
    PutOutcome, SecretStore, UnclaimedLimit,
};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::testing::{ManualClock, MemoryRegistry, SeededEntropy, sample};

/// Two machines with a key and a disk key each, and one approved image.
async fn world() -> MemoryRegistry {
    let truth = MemoryRegistry::new();
    for number in 1..=2 {
        let (machine, limit) = (sample::machine(number), UnclaimedLimit::Unlimited);
        truth.create(&machine, limit).await.unwrap();
        let key = sample::approved_ak(number, number);
        truth.bind(&key, &sample::line()).await.unwrap();
        let (path, secret) = (disk(number), sample::secret(number));
        let stored = truth.put_new(&path, &secret, &sample::line()).await;
        stored.unwrap();
    }
    truth.put(&image("kernel")).await.unwrap();
    truth
}

fn disk(machine: u64) -> ResourcePath {
    ResourcePath::luks_root(&sample::machine_id(machine))
}

fn image(kernel: &str) -> ApprovedImage {
    let (kind, digest) = ("EV_EFI_BOOT_SERVICES_APPLICATION", Sha256Digest::of(kernel));
    let event = ImageEvent::new(kind, PcrIndex::BOOT_MANAGER, digest, "Pcr4Vmlinuz");
    let pcr = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, [event]);
    let expected = ExpectedPcrs::new(vec![pcr]);
    ApprovedImage::new("good".parse().unwrap(), "dir", expected, sample::time(1))
}

fn active(machine: u64) -> Machine {
    let mut machine = sample::machine(machine);
    machine.state = MachineState::Active;
    machine
}

/// The quote of the TPM with this key after booting the approved image.
fn evidence(key: u64) -> VerifiedEvidence {
    let booted = Sha256Digest::ZERO.extended(&Sha256Digest::of("kernel"));
    let values = std::array::from_fn(|pcr| if pcr == 4 { booted } else { Sha256Digest::ZERO });
    VerifiedEvidence::new(Tee::Tpm, sample::public_key(key), PcrValues::new(values))
}

/// The stores of an embedder; every store that is not replaced by an incorrect one is genuine.
struct Stores<'a> {
    truth: &'a MemoryRegistry,
    aks: &'a dyn AkRegistry,
    released_by: &'a dyn ImageRegistry,
}

impl<'a> Stores<'a> {
    fn right(truth: &'a MemoryRegistry) -> Self {
        Self { truth, aks: truth, released_by: truth }
    }

    /// The disk key of machine 1, if the holder of `key` gets it.
    async fn unlock(&self, key: u64) -> Option<SecretBytes> {
        let clock = &ManualClock::new(sample::time(10));
        let boots = Boots {
            images: self.truth,
            pins: PinnedPcrs::boot_manager().into(),
            states: &WholeImages,
        };
        let ports =
            AdmitPorts::new(self.aks, Some(boots), self.truth, self.truth, self.truth, clock);
        let admitted = flow::admit(ports, sample::attempt_id(1), &Ok(evidence(key))).await;
        let mut appraisal = admitted.unwrap().appraisal;
        let attested = appraisal.attested?;
        let ports = ReleasePorts::new(
            self.aks,
            self.released_by,
            &WholeImages,
            self.truth,
            self.truth,
            clock,
        );
        let attempt = &mut appraisal.attempt;
        let released = flow::release(ports, &attested, &disk(1), attempt).await;
        released.ok()
    }
}

#[tokio::test]
async fn right_stores_release_to_the_machine_alone() {
    let truth = world().await;
    let stores = Stores::right(&truth);
    let released = stores.unlock(1).await.unwrap();
    assert!(released.ct_eq(&sample::secret(1)));
    assert!(stores.unlock(2).await.is_none());
    assert!(stores.unlock(66).await.is_none());
}

#[tokio::test]
async fn a_store_that_finds_one_key_for_every_fingerprint_releases_nothing_to_a_stranger() {
    let truth = world().await;
    let found = AkRegistry::bound_to(&truth, &sample::machine_id(1)).await;
    let record = found.unwrap().unwrap();
    let mut aks = MockAkRegistry::new();
    aks.expect_find_with_machine().returning(move |_| Ok(Some((record.clone(), Some(active(1))))));
    let stores = Stores { aks: &aks, ..Stores::right(&truth) };
    assert!(stores.unlock(66).await.is_none());
    assert!(stores.unlock(1).await.is_some(), "its own key");
}

#[tokio::test]
async fn a_store_that_finds_one_machine_for_every_id_releases_nothing_to_a_revoked_one() {
    let truth = world().await;
    let (id, line) = (sample::machine_id(1), sample::line());
    MachineRegistry::revoke(&truth, &id, &line).await.unwrap();
    let found = AkRegistry::find(&truth, &sample::public_key(1).fingerprint()).await;
    let record = found.unwrap().unwrap();
    let mut aks = MockAkRegistry::new();
    aks.expect_find_with_machine().returning(move |_| Ok(Some((record.clone(), Some(active(2))))));
    let stores = Stores { aks: &aks, ..Stores::right(&truth) };
    assert!(stores.unlock(1).await.is_none());
}

#[tokio::test]
async fn a_store_that_loses_or_swaps_the_image_before_the_release_releases_nothing() {
    let truth = world().await;
    for left in [vec![], vec![image("another kernel")]] {
        let mut images = MockImageRegistry::new();
        images.expect_list().returning(move || Ok(left.clone()));
        let stores = Stores { released_by: &images, ..Stores::right(&truth) };
        assert!(stores.unlock(1).await.is_none());
    }
}

/// Approves everything, with this reason.
fn approves_all(reason: AkReason) -> MockAkMatcher {
    let mut matcher = MockAkMatcher::new();
    matcher.expect_decide().returning(move |_, _, _, _| AkDecision::Approve(reason));
    matcher
}

#[tokio::test]
async fn a_policy_that_approves_every_key_gives_no_machine_a_second_one() {
    let truth = world().await;
    for reason in [AkReason::FirstUse, AkReason::SameKeyAgain] {
        let (matcher, clock) = (approves_all(reason), ManualClock::new(sample::time(10)));
        let ports = AkPorts::new(&truth, &truth, &matcher, &truth, &clock);
        let candidate = AkCandidate::from_node(sample::public_key(66), None);
        let outcome = flow::approve(ports, sample::machine_id(1), candidate).await.unwrap();
        assert!(!matches!(outcome, AkOutcome::Bound(_)), "{reason:?}");
        let bound = truth.bound_to(&sample::machine_id(1)).await.unwrap();
        let bound = bound.unwrap();
        assert_eq!(bound.fingerprint(), sample::public_key(1).fingerprint());
        assert_eq!(bound.state, AkState::Bound);
        assert!(Stores::right(&truth).unlock(66).await.is_none());
    }
}

/// Generates the same key for every machine.
fn one_key() -> MockLuksKeyGenerator {
    let mut generator = MockLuksKeyGenerator::new();
    let key = || LuksResource::of_key(&SecretArray::new([7; 32]));
    generator.expect_generate().returning(move |_| key());
    generator
}

#[tokio::test]
async fn a_generator_and_a_store_that_forgot_replace_no_key_and_release_none() {
    let truth = world().await;
    let mut forgetful = MockSecretStore::new();
    forgetful.expect_exists().returning(|_| Ok(false));
    let kept = sample::secret(1);
    forgetful.expect_put_new().returning(move |_, secret, _| {
        assert!(content_key(secret).is_ok(), "what is stored is a disk key");
        assert!(!kept.ct_eq(secret));
        Ok(PutOutcome::Existed)
    });
    let generators: [&dyn LuksKeyGenerator; 2] = [&one_key(), &CompatLuksKey];
    for generator in generators {
        for secrets in [&forgetful as &dyn SecretStore, &truth] {
            let (clock, entropy) = (ManualClock::new(sample::time(10)), SeededEntropy::new(7));
            let ports = ProvisionPorts::new(secrets, generator, &clock, &entropy);
            let outcome = flow::provision(ports, sample::machine_id(1)).await;
            assert_eq!(outcome.unwrap(), PutOutcome::Existed);
        }
    }
    let released = Stores::right(&truth).unlock(1).await.unwrap();
    assert!(released.ct_eq(&sample::secret(1)), "the first key stays");
    assert!(Stores::right(&truth).unlock(66).await.is_none());
}

#[tokio::test]
async fn a_pin_that_cannot_be_written_leaves_no_machine_behind() {
    let store = MemoryRegistry::new();
    let mut pins = MockPinGenerator::new();
    let failed = |machine: &MachineId| RenderError::new(machine, "no template");
    pins.expect_render_ignition().returning(move |machine| Err(failed(machine)));
    let (clock, entropy) = (ManualClock::new(sample::time(10)), SeededEntropy::new(7));
    let ports = RegisterPorts::new(&store, &store, &pins, &clock, &entropy);
    let refused = flow::register(ports, UnclaimedLimit::Unlimited).await;
    assert!(matches!(refused, Err(RegisterError::Render(_))));
    assert!(MachineRegistry::list(&store, None, 10).await.unwrap().is_empty());
}
