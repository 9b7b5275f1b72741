//! The use cases over in-memory ports, with crashes and lost acknowledgements.
#![cfg(feature = "test-util")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's own tools may fail the test"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tec_core::ak::{
    AkCandidate, AkReason, AkRecord, AkState, ManualMatcher, SourceNetwork, TofuMatcher, TpmClock,
};
use tec_core::attest::{
    Appraisal, LogEvidence, LoggedEvent, PinnedPcrs, Tee, VerifiedEvidence, VerifyError,
};
use tec_core::boot::{BootInput, Pins, WholeImages};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::Endpoint;
use tec_core::explain::{Gate, StepState};
use tec_core::flow;
use tec_core::flow::{
    AdmitPorts, AkOutcome, AkPorts, Boots, ClaimLimits, ProvisionPorts, PublishError,
    RegisterError, RegisterPorts, ReleaseError, ReleasePorts, UnpinnedInputs,
};
use tec_core::id::{MachineId, ResourcePath};
use tec_core::ignition::ClevisPinGenerator;
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::luks::CompatLuksKey;
use tec_core::machine::MachineChange;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};
use tec_core::port::{
    AkRegistry, AttemptLog, AuditAction, ClockLog, DiskKeys, ImageRegistry, MachineRegistry,
    PlatformLog, PortError, PortErrorKind, PutOutcome, SecretStore, UnclaimedLimit,
};
use tec_core::rotation::{Forget, KeyMark, Keys};
use tec_core::testing::{Fault, Faulty, ManualClock, MemoryRegistry, SeededEntropy, sample};

type Ports = Faulty<MemoryRegistry>;

struct World {
    truth: Arc<MemoryRegistry>,
    clock: ManualClock,
    entropy: SeededEntropy,
    pins: ClevisPinGenerator,
}

impl World {
    fn new() -> Self {
        let kbs = Endpoint::new("https://kbs:8080".parse().unwrap(), "");
        Self {
            truth: Arc::new(MemoryRegistry::new()),
            clock: ManualClock::new(sample::time(10)),
            entropy: SeededEntropy::new(7),
            pins: ClevisPinGenerator::new(kbs),
        }
    }

    fn healthy(&self) -> Ports {
        Faulty::healthy(Arc::clone(&self.truth))
    }

    fn register<'a>(&'a self, ports: &'a Ports) -> RegisterPorts<'a> {
        RegisterPorts::new(ports, ports, &self.pins, &self.clock, &self.entropy)
    }

    async fn new_machine(&self) -> MachineId {
        let ports = self.healthy();
        let limit = UnclaimedLimit::Unlimited;
        flow::register(self.register(&ports), limit).await.unwrap().machine
    }

    fn ak<'a>(&'a self, ports: &'a Ports) -> AkPorts<'a> {
        AkPorts::new(ports, ports, &TofuMatcher, ports, &self.clock)
            .with_claims(ClaimLimits::default())
    }

    async fn submit(
        &self,
        ports: &Ports,
        machine: MachineId,
        key: u64,
    ) -> Result<AkOutcome, PortError> {
        let candidate = AkCandidate::from_node(sample::public_key(key), None);
        flow::approve(self.ak(ports), machine, candidate).await
    }

    async fn provision(&self, ports: &Ports, machine: MachineId) -> Result<PutOutcome, PortError> {
        let ports = ProvisionPorts::new(ports, &CompatLuksKey, &self.clock, &self.entropy);
        flow::provision(ports, machine).await
    }

    fn release<'a>(&'a self, ports: &'a Ports) -> ReleasePorts<'a> {
        ReleasePorts::new(ports, ports, &WholeImages, ports, ports, &self.clock)
    }

    /// A machine that is registered, bound to `key` and provisioned.
    async fn ready(&self, key: u64) -> MachineId {
        let ports = self.healthy();
        let machine = self.new_machine().await;
        let outcome = self.submit(&ports, machine, key).await.unwrap();
        assert_eq!(outcome, AkOutcome::Bound(AkReason::FirstUse));
        self.provision(&ports, machine).await.unwrap();
        machine
    }

    async fn publish(&self, image: &ApprovedImage) {
        let ports = self.healthy();
        publish(&ports, image, UnpinnedInputs::Accept).await.unwrap();
    }

    async fn admit(
        &self,
        boots: Option<Boots<'_>>,
        evidence: Result<VerifiedEvidence, VerifyError>,
    ) -> Result<Appraisal, PortError> {
        self.admit_over(&*self.truth, boots, evidence).await
    }

    /// Admits a machine, with a clock log that may fail.
    async fn admit_with(
        &self,
        clocks: &dyn ClockLog,
        evidence: VerifiedEvidence,
    ) -> Result<Appraisal, PortError> {
        self.admit_over(clocks, Some(self.boots()), Ok(evidence)).await
    }

    async fn admit_over(
        &self,
        clocks: &dyn ClockLog,
        boots: Option<Boots<'_>>,
        evidence: Result<VerifiedEvidence, VerifyError>,
    ) -> Result<Appraisal, PortError> {
        let found =
            flow::admit(self.admit_ports(clocks, boots), sample::attempt_id(1), &evidence).await;
        found.map(|found| found.appraisal)
    }

    fn admit_ports<'a>(
        &'a self,
        clocks: &'a dyn ClockLog,
        boots: Option<Boots<'a>>,
    ) -> AdmitPorts<'a> {
        AdmitPorts::new(&*self.truth, boots, clocks, &*self.truth, &*self.truth, &self.clock)
    }

    /// Admits a boot of machine 1, whose baseline is recorded.
    async fn held(&self, pins: Pins, evidence: VerifiedEvidence) -> Appraisal {
        let ports = self.admit_ports(&*self.truth, Some(Boots { pins, ..self.boots() }));
        let ports = ports.with_platforms(Some(&*self.truth));
        let found = flow::admit(ports, sample::attempt_id(1), &Ok(evidence)).await;
        found.unwrap().appraisal
    }

    fn boots(&self) -> Boots<'_> {
        Boots {
            images: &*self.truth,
            pins: PinnedPcrs::boot_manager().into(),
            states: &WholeImages,
        }
    }

    async fn appraise(&self, evidence: Result<VerifiedEvidence, VerifyError>) -> Appraisal {
        self.admit(Some(self.boots()), evidence).await.unwrap()
    }
}

const COMPONENTS: [&str; 3] = ["Pcr4Shim", "Pcr4Grub", "Pcr4Vmlinuz"];
const GOOD: [&str; 3] = ["shim", "grub", "kernel"];
const EVIL: [&str; 3] = ["shim", "grub", "evil"];

async fn publish(
    ports: &Ports,
    image: &ApprovedImage,
    inputs: UnpinnedInputs,
) -> Result<(), PublishError> {
    flow::publish_image(ports, ports, image, Pins::Predicted, inputs).await
}

fn image(name: &str, files: [&str; 3]) -> ApprovedImage {
    let events = files.iter().zip(COMPONENTS).map(|(content, id)| {
        let kind = "EV_EFI_BOOT_SERVICES_APPLICATION";
        ImageEvent::new(kind, PcrIndex::BOOT_MANAGER, Sha256Digest::of(content), id)
            .from_file(format!("boot/{id}"))
    });
    let pcr = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, events);
    let expected = ExpectedPcrs::new(vec![pcr]);
    ApprovedImage::new(name.parse().unwrap(), "dir", expected, sample::time(1))
}

fn boot(key: u64, files: [&str; 3]) -> VerifiedEvidence {
    let digests = files.map(Sha256Digest::of);
    let mut values = [Sha256Digest::ZERO; 24];
    values[4] = digests.iter().fold(Sha256Digest::ZERO, |pcr, event| pcr.extended(event));
    let mut evidence =
        VerifiedEvidence::new(Tee::Tpm, sample::public_key(key), PcrValues::new(values));
    let event = |(number, digest): (u32, &Sha256Digest)| {
        LoggedEvent::new(number, PcrIndex::BOOT_MANAGER, *digest, "EV", None)
    };
    evidence.log = LogEvidence::Parsed {
        events: (0..).zip(&digests).map(event).collect(),
        replayed: PcrIndex::all().collect(),
        cut: None,
    };
    evidence
}

/// Like [`boot`], on a TPM that was reset this many times.
fn reset(times: u32) -> VerifiedEvidence {
    let mut evidence = boot(1, GOOD);
    evidence.clock =
        Some(TpmClock { clock_ms: 1_000, reset_count: times, restart_count: 0, safe: true });
    evidence
}

#[tokio::test]
async fn what_is_refused_for_another_reason_says_nothing_about_the_tpm() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    world.ready(1).await;
    let mut other = reset(9);
    other.pcrs = boot(1, ["shim", "grub", "another kernel"]).pcrs;
    assert!(world.appraise(Ok(other)).await.attested.is_none());
    assert!(world.appraise(Ok(reset(8))).await.attested.is_some());
}

#[tokio::test]
async fn a_quote_whose_acceptance_nobody_heard_of_is_accepted_again() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    world.ready(1).await;
    for fault in [Fault::Before, Fault::LostAck] {
        let dying = Faulty::crash_at(Arc::clone(&world.truth), 0, fault);
        let lost = world.admit_with(&dying, reset(7)).await;
        assert_eq!(lost.unwrap_err().kind(), PortErrorKind::Unavailable);
        let again = world.appraise(Ok(reset(7))).await;
        assert!(again.attested.is_some(), "{fault:?}");
    }
}

#[tokio::test]
async fn an_attested_machine_gets_its_own_key_and_no_other() {
    let world = World::new();
    let ports = world.healthy();
    world.publish(&image("good", GOOD)).await;
    let (one, two) = (world.ready(1).await, world.ready(2).await);
    let Appraisal { mut attempt, attested, .. } = world.appraise(Ok(boot(1, GOOD))).await;
    let attested = attested.unwrap();
    assert_eq!((attested.machine(), attested.booted().to_string()), (one, "good".to_owned()));

    let own = ResourcePath::luks_root(&one);
    let key = flow::release(world.release(&ports), &attested, &own, &mut attempt).await;
    let stored = SecretStore::find(&*world.truth, &own).await.unwrap().unwrap();
    assert!(key.unwrap().ct_eq(&stored));
    assert!(attempt.ladder.is_released());
    assert_eq!(attempt.booted.as_ref(), Some(attested.booted()));

    let foreign = ResourcePath::luks_root(&two);
    let refused = flow::release(world.release(&ports), &attested, &foreign, &mut attempt).await;
    assert!(matches!(refused, Err(ReleaseError::Refused(Code::ReleaseDenied))));
}

/// Like [`reset`], with these phases of the boot in PCR 11, of which no log tells.
fn in_phase(times: u32, words: &[&str]) -> VerifiedEvidence {
    let mut evidence = reset(times);
    let words = words.iter().map(Sha256Digest::of);
    let value = words.fold(Sha256Digest::ZERO, |value, word| value.extended(&word));
    evidence.pcrs = evidence.pcrs.with(PcrIndex::KERNEL_BOOT, value);
    if let LogEvidence::Parsed { replayed, .. } = &mut evidence.log {
        *replayed = PcrSet::from_iter([PcrIndex::BOOT_MANAGER]);
    }
    evidence
}

const RUNNING: [&str; 4] = ["enter-initrd", "leave-initrd", "sysinit", "ready"];

/// Code of the refusal of its own key to this boot.
async fn refused_key(world: &World, machine: MachineId, boot: VerifiedEvidence) -> Option<Code> {
    refused_key_to(world, machine, boot, None).await
}

/// The same, of a machine that shows a mark.
async fn refused_key_to(
    world: &World,
    machine: MachineId,
    boot: VerifiedEvidence,
    shown: Option<KeyMark>,
) -> Option<Code> {
    let ports = world.healthy();
    let Appraisal { mut attempt, attested, .. } = world.appraise(Ok(boot)).await;
    let attested = attested.unwrap();
    let own = ResourcePath::luks_root(&machine);
    let release = world.release(&ports).with_disk_keys(Some(&ports), shown);
    match flow::release(release, &attested, &own, &mut attempt).await {
        Err(ReleaseError::Refused(code)) => Some(code),
        released => released.map(|_| None).unwrap(),
    }
}

#[tokio::test]
async fn a_planted_root_gets_no_key_after_the_initramfs() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    let machine = world.ready(1).await;
    // It is being set up: no initramfs has asked yet.
    assert_eq!(refused_key(&world, machine, in_phase(1, &RUNNING)).await, None);
    let late = Some(Code::InitramfsEnded);
    for (times, early) in [(2, &RUNNING[..1]), (3, &[])] {
        assert_eq!(refused_key(&world, machine, in_phase(times, early)).await, None);
        for running in
            [&RUNNING[..2], &RUNNING, &RUNNING[1..2], &["leave-initrd", "sysinit"], &["x"]]
        {
            let refused = refused_key(&world, machine, in_phase(times, running)).await;
            assert_eq!(refused, late, "{running:?}");
        }
    }
    // A machine of which no initramfs asks, such as one with a data disk alone, goes on as it did.
    let other = world.ready(2).await;
    for (times, phases) in [(1, &[][..]), (2, &RUNNING[1..2]), (3, &[]), (4, &RUNNING[1..2])] {
        let mut boot = in_phase(times, phases);
        boot.ak = sample::public_key(2);
        assert_eq!(refused_key(&world, other, boot).await, None);
    }
    // What it says in a log does not matter.
    let mut boot = in_phase(4, &RUNNING[1..2]);
    boot.log = LogEvidence::Absent;
    assert_eq!(refused_key(&world, machine, boot).await, late);
}

#[tokio::test]
async fn a_planted_root_gets_no_key_with_a_new_attestation_key_either() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    let (ports, machine) = (world.healthy(), world.ready(1).await);
    for (times, phases) in [(1, &RUNNING[..1]), (2, &RUNNING[..1])] {
        assert_eq!(refused_key(&world, machine, in_phase(times, phases)).await, None);
    }
    let (first, second) = (sample::public_key(1).fingerprint(), sample::public_key(2));
    flow::revoke_ak(&ports, &world.clock, first).await.unwrap();
    world.submit(&ports, machine, 2).await.unwrap();
    let by_admin = AkCandidate::from_admin(second.clone(), None);
    flow::approve(world.ak(&ports), machine, by_admin).await.unwrap();
    for (phases, code) in [(&RUNNING[..], Some(Code::InitramfsEnded)), (&RUNNING[..1], None)] {
        let mut boot = in_phase(3, phases);
        boot.ak = second.clone();
        assert_eq!(refused_key(&world, machine, boot).await, code);
    }
}

#[tokio::test]
async fn a_running_system_that_shows_a_key_of_its_own_gets_its_keys() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    let machine = world.ready(1).await;
    for set_up in [&RUNNING[..1], &RUNNING] {
        assert_eq!(refused_key(&world, machine, in_phase(1, set_up)).await, None, "the first boot");
    }
    let late = Some(Code::InitramfsEnded);
    assert_eq!(refused_key(&world, machine, in_phase(2, &RUNNING)).await, late);
    let ports = world.healthy();
    let provision = ProvisionPorts::new(&ports, &CompatLuksKey, &world.clock, &world.entropy);
    let other = world.ready(2).await;
    flow::begin_rotation(&ports, provision, machine).await.unwrap();
    let keys =
        async |machine: MachineId| DiskKeys::rotation(&ports, &machine).await.unwrap().unwrap();
    let Keys::Pending { current, pending } = keys(machine).await else { panic!("not begun") };
    let foreign = *keys(other).await.current();
    let refused = async |shown| refused_key_to(&world, machine, in_phase(2, &RUNNING), shown).await;
    assert_eq!(refused(None).await, late, "a root that was planted in the meantime");
    assert_eq!(refused(Some(foreign)).await, late);
    assert_eq!(refused(Some(current)).await, None);
    assert_eq!(refused(Some(pending)).await, None);
    flow::cancel_rotation(&ports, &world.clock, machine, Forget::Pending).await.unwrap();
    assert_eq!(refused(Some(pending)).await, late);
}

#[tokio::test]
async fn a_changed_kernel_is_refused_and_named() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    world.ready(1).await;
    let appraisal = world.appraise(Ok(boot(1, EVIL))).await;
    assert!(appraisal.attested.is_none());
    let ladder = &appraisal.attempt.ladder;
    assert_eq!(ladder.code, Some(Code::PcrMismatch));
    let mismatch = ladder.mismatch.as_ref().unwrap();
    assert_eq!(mismatch.closest.as_ref().unwrap().to_string(), "good");
    let differing: Vec<_> =
        mismatch.events.iter().filter_map(|finding| finding.expected.as_ref()).collect();
    assert_eq!(differing.len(), 1);
    assert_eq!(differing[0].component, "Pcr4Vmlinuz");
    assert_eq!(differing[0].file.as_deref(), Some("boot/Pcr4Vmlinuz"));
    assert!(mismatch.summary().contains("kernel (boot/Pcr4Vmlinuz)"));
}

#[tokio::test]
async fn without_a_log_the_values_decide_and_a_revoked_image_is_recognized() {
    let world = World::new();
    let ports = world.healthy();
    let old = image("old", GOOD);
    world.publish(&old).await;
    world.ready(1).await;
    let without_log = || {
        let mut evidence = boot(1, GOOD);
        evidence.log = LogEvidence::Absent;
        Ok(evidence)
    };
    assert!(world.appraise(without_log()).await.attested.is_some());
    flow::revoke_image(&ports, &world.clock, &old.name).await.unwrap();
    let appraisal = world.appraise(without_log()).await;
    assert!(appraisal.attested.is_none());
    let mismatch = appraisal.attempt.ladder.mismatch.unwrap();
    assert!(mismatch.ended.unwrap().contains("old was revoked"));
}

#[tokio::test]
async fn each_gate_fails_with_its_own_code() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    world.ready(1).await;
    let ak = sample::public_key(1).fingerprint();
    let [broken_log, lying_log] = bad_logs(EVIL);
    let quote = VerifyError::Quote { reason: "nonce", claimed_ak: Some(ak) };
    let malformed = VerifyError::Malformed("tpm_quote".into());
    let cases = [
        (Err(malformed), Code::EvidenceMalformed),
        (Ok(boot(99, GOOD)), Code::AkNotBound),
        (Err(quote), Code::QuoteInvalid),
        (Err(VerifyError::Selection { reason: "two", ak }), Code::SelectionWrong),
        (Ok(broken_log), Code::EventLogMismatch),
        (Ok(lying_log), Code::EventLogMismatch),
    ];
    for (evidence, code) in cases {
        let appraisal = world.appraise(evidence).await;
        assert_eq!(appraisal.attempt.ladder.code, Some(code));
        assert!(appraisal.attested.is_none(), "{code}");
    }
}

/// A boot with a log that does not parse, and with one that does not replay.
fn bad_logs(programs: [&str; 3]) -> [VerifiedEvidence; 2] {
    let (mut broken, mut lying) = (boot(1, programs), boot(1, programs));
    broken.log = LogEvidence::Broken { reason: "offset 3".to_owned() };
    if let LogEvidence::Parsed { replayed, .. } = &mut lying.log {
        *replayed = [PcrIndex::MOK].into_iter().collect();
    }
    [broken, lying]
}

#[tokio::test]
async fn a_bad_log_is_never_worse_than_none() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    world.ready(1).await;
    for evidence in bad_logs(GOOD) {
        let appraisal = world.appraise(Ok(evidence)).await;
        assert!(appraisal.attested.is_some(), "the values are those of an image");
        let ladder = appraisal.attempt.ladder;
        let log = ladder.steps.iter().find(|step| step.gate == Gate::EventLog).unwrap();
        assert_eq!(log.state, StepState::Skipped);
        assert!(log.detail.starts_with("the log does not "), "it says why: {}", log.detail);
    }
}

#[tokio::test]
async fn every_attempt_is_on_record_and_refusals_of_registered_keys_in_the_audit_log() {
    let world = World::new();
    world.publish(&image("good", GOOD)).await;
    let machine = world.ready(1).await;
    let refused = |world: &World| {
        let events = world.truth.events().into_iter();
        let refused = events.filter(|event| event.action == AuditAction::KeyRefused);
        refused.map(|event| (event.machine, event.subject)).collect::<Vec<_>>()
    };
    let malformed = VerifyError::Malformed("x".into());
    for evidence in [Ok(boot(1, GOOD)), Ok(boot(99, EVIL)), Err(malformed)] {
        let made = world.appraise(evidence).await.attempt;
        let kept = AttemptLog::find(&*world.truth, &made.id).await.unwrap();
        assert_eq!(kept, Some(made));
        assert_eq!(refused(&world), []);
    }
    let id = world.appraise(Ok(boot(1, EVIL))).await.attempt.id;
    let line = format!("{} attempt {id}", Code::PcrMismatch);
    assert_eq!(refused(&world), [(Some(machine), line)]);
}

#[tokio::test]
async fn where_somebody_else_decides_about_the_registers_the_other_gates_stand() {
    let world = World::new();
    let machine = world.ready(1).await;
    let admitted = world.admit(None, Ok(boot(1, GOOD))).await.unwrap();
    assert!(admitted.attested.is_none(), "nothing is proven");
    assert!(admitted.attempt.measured.is_empty(), "nothing is there to be approved");
    let ladder = admitted.attempt.ladder;
    assert_eq!((ladder.code, ladder.first_failure()), (None, None));
    let registers = ladder.steps.iter().find(|step| step.gate == Gate::Pcrs);
    assert_eq!(registers.unwrap().state, StepState::Skipped);

    let ladder = world.admit(None, Ok(boot(99, GOOD))).await.unwrap();
    assert_eq!(ladder.attempt.ladder.code, Some(Code::AkNotBound));
    for evidence in bad_logs(GOOD) {
        let ladder = world.admit(None, Ok(evidence)).await.unwrap().attempt.ladder;
        assert_eq!((ladder.code, ladder.first_failure()), (None, None));
    }
    let line = sample::line();
    let machines: &dyn MachineRegistry = &*world.truth;
    machines.change(&machine, MachineChange::Quarantine, &line).await.unwrap();
    let bad_logs = bad_logs(GOOD);
    for evidence in [&bad_logs[0], &bad_logs[1], &boot(1, GOOD)] {
        let ladder = world.admit(None, Ok(evidence.clone())).await.unwrap().attempt.ladder;
        assert_eq!(ladder.code, Some(Code::MachineQuarantined));
    }
}

#[tokio::test]
async fn a_second_key_for_a_machine_is_rejected_and_waits_once_the_first_is_revoked() {
    let world = World::new();
    let ports = world.healthy();
    let machine = world.ready(1).await;
    let again = world.submit(&ports, machine, 1).await.unwrap();
    assert_eq!(again, AkOutcome::AlreadyBound);
    let other = world.submit(&ports, machine, 2).await.unwrap();
    assert_eq!(other, AkOutcome::Rejected(AkReason::MachineHasOtherKey));
    let first = sample::public_key(1).fingerprint();
    flow::revoke_ak(&ports, &world.clock, first).await.unwrap();
    let other = world.submit(&ports, machine, 2).await.unwrap();
    assert_eq!(other, AkOutcome::Waiting(AkReason::NeedsRebind));
    let candidate = AkCandidate::from_admin(sample::public_key(2), None);
    let other = flow::approve(world.ak(&ports), machine, candidate).await.unwrap();
    assert_eq!(other, AkOutcome::Bound(AkReason::AdminApproved));
    let revoked = world.submit(&ports, machine, 1).await.unwrap();
    assert_eq!(revoked, AkOutcome::Rejected(AkReason::KeyRevoked));
}

#[tokio::test]
async fn first_use_lets_in_so_many_from_one_network_and_in_all() {
    let world = World::new();
    let ports = world.healthy();
    let claims = ClaimLimits { total: 3, per_source: 2 };
    let limited = world.ak(&ports).with_claims(claims);
    let waits = AkOutcome::Waiting(AkReason::Quarantined);
    let bound = AkOutcome::Bound(AkReason::FirstUse);
    let mut machines = Vec::new();
    for (key, network, expected) in
        [(1, 1, bound), (2, 1, bound), (3, 1, waits), (4, 2, bound), (5, 3, waits)]
    {
        let machine = world.new_machine().await;
        machines.push(machine);
        let source = SourceNetwork::of([192, 0, 2, network].into());
        let candidate = AkCandidate::from_node(sample::public_key(key), None);
        let candidate = candidate.from_network(Some(source));
        let outcome = flow::approve(limited, machine, candidate).await.unwrap();
        assert_eq!(outcome, expected, "key {key}");
    }
    // An admin may admit more, and those do not count.
    let candidate = AkCandidate::from_admin(sample::public_key(3), None);
    let outcome = flow::approve(limited, machines[2], candidate).await.unwrap();
    assert_eq!(outcome, AkOutcome::Bound(AkReason::AdminApproved));
    let anywhere = SourceNetwork::UNKNOWN;
    let known = AkRegistry::claims(&*world.truth, &anywhere).await.unwrap();
    assert_eq!((known.total, known.of_source), (3, 0));
}

#[tokio::test]
async fn a_waiting_key_is_bound_when_an_admin_approves() {
    let world = World::new();
    let ports = world.healthy();
    let machine = world.new_machine().await;
    let mut manual = world.ak(&ports);
    manual.matcher = &ManualMatcher;
    let key = || sample::public_key(1);
    let from_node = AkCandidate::from_node(key(), None);
    let reason = AkReason::NeedsAdmin;
    for expected in [AkOutcome::Waiting(reason), AkOutcome::AlreadyWaiting(reason)] {
        let outcome = flow::approve(manual, machine, from_node.clone()).await.unwrap();
        assert_eq!(outcome, expected);
    }
    let is_submission = |action| action == AuditAction::AkSubmitted;
    assert_eq!(world.truth.events().iter().filter(|e| is_submission(e.action)).count(), 1);
    let from_admin = AkCandidate::from_admin(key(), None);
    let outcome = flow::approve(manual, machine, from_admin).await.unwrap();
    assert_eq!(outcome, AkOutcome::Bound(AkReason::AdminApproved));
}

#[tokio::test]
async fn the_cap_on_unclaimed_machines_holds_for_nodes_only() {
    let world = World::new();
    let ports = world.healthy();
    let limit = UnclaimedLimit::AtMost(2);
    for _ in 0..2 {
        flow::register(world.register(&ports), limit).await.unwrap();
    }
    match flow::register(world.register(&ports), limit).await {
        Err(RegisterError::Store(error)) => assert_eq!(error.kind(), PortErrorKind::Denied),
        other => panic!("{other:?}"),
    }
    assert!(flow::register_by_admin(world.register(&ports), None).await.is_ok());
}

#[tokio::test]
async fn an_image_whose_events_do_not_fold_is_not_approved() {
    let world = World::new();
    let ports = world.healthy();
    let mut lie = image("lie", GOOD);
    lie.expected.pcrs[0].value = Sha256Digest::ZERO;
    let refused = publish(&ports, &lie, UnpinnedInputs::Accept).await;
    assert!(matches!(refused, Err(PublishError::Inconsistent { .. })));
    let mut empty = image("empty", GOOD);
    empty.expected.pcrs.clear();
    let refused = publish(&ports, &empty, UnpinnedInputs::Accept).await;
    assert!(matches!(refused, Err(PublishError::Empty(_))));
    assert!(ImageRegistry::list(&ports).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_image_of_whose_boot_parts_are_not_checked_is_approved_only_if_that_is_accepted() {
    let world = World::new();
    let ports = world.healthy();
    let image = image("loose", GOOD);
    match publish(&ports, &image, UnpinnedInputs::Refuse).await {
        Err(PublishError::Unpinned { unpinned, .. }) => {
            assert!(unpinned.iter().any(|input| input == BootInput::Initramfs));
        }
        other => panic!("{other:?}"),
    }
    assert!(ImageRegistry::list(&ports).await.unwrap().is_empty());
    publish(&ports, &image, UnpinnedInputs::Accept).await.unwrap();
    let machine = world.ready(1).await;
    let admitted = world.appraise(Ok(boot(1, GOOD))).await;
    assert!(admitted.attested.is_some_and(|attested| attested.machine() == machine));
    assert!(admitted.attempt.unpinned.iter().any(|input| input == BootInput::Initramfs));
}

/// A boot with an initramfs and a command line that no image states.
fn measured_boot(files: [&str; 3], command_line: &str, initramfs: &str) -> VerifiedEvidence {
    let mut evidence = boot(1, files);
    for (pcr, text) in [(PcrIndex::BOOT_COMMANDS, command_line), (PcrIndex::BOOT_FILES, initramfs)]
    {
        let digest = Sha256Digest::of(text);
        evidence.pcrs = evidence.pcrs.with(pcr, Sha256Digest::ZERO.extended(&digest));
        if let LogEvidence::Parsed { events, .. } = &mut evidence.log {
            events.push(LoggedEvent::new(9, pcr, digest, "EV_IPL", Some(text.to_owned())));
        }
    }
    evidence
}

/// An image that holds a machine to its first boot.
fn held_image(name: &str, components: [&str; 3]) -> ApprovedImage {
    let mut image = image(name, components);
    image.expected.first_boot = true;
    image
}

/// The detail of the gate that compares with the baseline.
fn platform_step(appraisal: &Appraisal) -> &str {
    let mut steps = appraisal.attempt.ladder.steps.iter();
    &steps.find(|step| step.gate == Gate::Platform).unwrap().detail
}

#[tokio::test]
async fn what_an_image_leaves_open_is_as_in_its_first_boot_or_approved() {
    let world = World::new();
    world.publish(&held_image("debian", GOOD)).await;
    world.publish(&held_image("update", ["shim", "grub", "kernel 2"])).await;
    let machine = world.ready(1).await;
    let good = || measured_boot(GOOD, "quiet", "initramfs");
    let held = async |evidence| world.held(Pins::Predicted, evidence).await;

    let first = held(good()).await;
    assert!(first.attested.is_some());
    let told = "PCR 8, 9, 12, 13, 14 from this first boot of the image on";
    assert!(platform_step(&first).ends_with(told), "{}", platform_step(&first));
    assert!(!first.attempt.unpinned.is_empty(), "whatever it was");
    let again = held(good()).await;
    assert!(again.attested.is_some());
    let told = "PCR 8, 9, 12, 13, 14 as in the first boot of this image";
    assert!(platform_step(&again).ends_with(told), "{}", platform_step(&again));
    assert!(again.attempt.unpinned.is_empty());

    let edited = || measured_boot(GOOD, "quiet", "edited");
    for (evidence, named) in [
        (measured_boot(GOOD, "init=/bin/sh", "initramfs"), "PCR 8 EV_IPL quiet -> init=/bin/sh: "),
        (edited(), "PCR 9 EV_IPL initramfs -> edited: "),
    ] {
        let refused = held(evidence).await;
        assert!(refused.attested.is_none());
        assert_eq!(refused.attempt.ladder.code, Some(Code::PlatformChanged));
        assert!(platform_step(&refused).starts_with(named), "{}", platform_step(&refused));
    }
    // Another image of the machine has a first boot of its own, and changes nothing.
    let update = |initramfs| measured_boot(["shim", "grub", "kernel 2"], "quiet", initramfs);
    assert!(held(update("initramfs 2")).await.attested.is_some());
    assert!(held(update("edited")).await.attested.is_none());
    assert!(held(good()).await.attested.is_some());
    assert!(held(edited()).await.attested.is_none());

    let (key, truth) = (sample::public_key(1).fingerprint(), &*world.truth);
    let seen = PlatformLog::find(truth, &key).await.unwrap().unwrap().seen;
    let approved = flow::approve_platform(truth, &world.clock, (machine, &key), &seen).await;
    assert_eq!(approved.unwrap(), [machine]);
    assert!(held(edited()).await.attested.is_some());
    assert!(held(good()).await.attested.is_none());
}

#[tokio::test]
async fn content_that_is_approved_under_the_same_name_has_its_own_first_boot() {
    let world = World::new();
    world.publish(&held_image("debian", GOOD)).await;
    world.ready(1).await;
    let held = async |evidence| world.held(Pins::Predicted, evidence).await.attested.is_some();
    assert!(held(measured_boot(GOOD, "quiet", "initramfs")).await);
    let next = ["shim", "grub", "kernel 2"];
    world.publish(&held_image("debian", next)).await;
    assert!(held(measured_boot(next, "quiet", "initramfs 2")).await);
    // The same content under another name has not.
    world.publish(&held_image("twin", next)).await;
    assert!(!held(measured_boot(next, "quiet", "edited")).await);
}

#[tokio::test]
async fn with_registers_that_an_admin_named_nothing_else_counts() {
    let world = World::new();
    world.publish(&held_image("debian", GOOD)).await;
    world.publish(&image("other", ["shim", "grub", "kernel 2"])).await;
    world.ready(1).await;
    let pins = Pins::Exactly(PinnedPcrs::boot_manager());
    for initramfs in ["initramfs", "other", "initramfs"] {
        let admitted = world.held(pins, measured_boot(GOOD, "quiet", initramfs)).await;
        assert!(admitted.attested.is_some());
        assert_eq!(platform_step(&admitted).matches("PCR").count(), 0);
        assert!(!admitted.attempt.unpinned.is_empty());
        // An image that is approved without it holds no machine.
        let other = measured_boot(["shim", "grub", "kernel 2"], "quiet", initramfs);
        assert!(world.held(Pins::Predicted, other).await.attested.is_some());
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Submit { machine: usize, key: u64 },
    Provision { machine: usize },
    RevokeKey { key: u64 },
}

fn action() -> impl Strategy<Value = (Action, Option<(u64, bool)>)> {
    let action = prop_oneof![
        4 => (0..3usize, 0..4u64).prop_map(|(machine, key)| Action::Submit { machine, key }),
        3 => (0..3usize).prop_map(|machine| Action::Provision { machine }),
        1 => (0..4u64).prop_map(|key| Action::RevokeKey { key }),
    ];
    // The call at which the process dies, and whether that call still happened.
    (action, proptest::option::of((0..6u64, any::<bool>())))
}

async fn act(world: &World, ports: &Ports, machines: &[MachineId], action: Action) {
    // Errors are the point of the exercise; the checks are about what was done anyway.
    match action {
        Action::Submit { machine, key } => {
            let _ = world.submit(ports, machines[machine], key).await;
        }
        Action::Provision { machine } => {
            let _ = world.provision(ports, machines[machine]).await;
        }
        Action::RevokeKey { key } => {
            let key = sample::public_key(key).fingerprint();
            let _ = flow::revoke_ak(ports, &world.clock, key).await;
        }
    }
}

/// Checks that no machine has two bound keys, no key has two machines, and no disk key ever changes.
async fn check_invariants(
    world: &World,
    machines: &[MachineId],
    seen: &mut BTreeMap<MachineId, Vec<u8>>,
) {
    let aks = AkRegistry::list(&*world.truth, None).await.unwrap();
    for machine in machines {
        let is_bound = |ak: &&AkRecord| ak.machine == *machine && ak.state == AkState::Bound;
        assert!(aks.iter().filter(is_bound).count() <= 1);
        let path = ResourcePath::luks_root(machine);
        let key = SecretStore::find(&*world.truth, &path).await.unwrap();
        let key = key.map(|key| key.expose("compare in a test").to_vec());
        match (seen.get(machine), key) {
            (Some(before), now) => assert_eq!(Some(before), now.as_ref()),
            (None, Some(now)) => drop(seen.insert(*machine, now)),
            (None, None) => {}
        }
    }
    let mut fingerprints: Vec<_> = aks.iter().map(AkRecord::fingerprint).collect();
    fingerprints.sort();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), aks.len());
}

proptest! {
    /// Any sequence of actions, each killed at any port call with or without its effect, and then
    /// rerun.
    #[test]
    fn flows_converge_after_a_crash_at_any_call(
        actions in proptest::collection::vec(action(), 1..24)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let world = World::new();
            let mut machines = Vec::new();
            for _ in 0..3 {
                machines.push(world.new_machine().await);
            }
            let mut seen = BTreeMap::new();
            for (action, crash) in actions {
                if let Some((number, happened)) = crash {
                    let fault = if happened { Fault::LostAck } else { Fault::Before };
                    let dying = Faulty::crash_at(Arc::clone(&world.truth), number, fault);
                    act(&world, &dying, &machines, action).await;
                    check_invariants(&world, &machines, &mut seen).await;
                }
                act(&world, &world.healthy(), &machines, action).await;
                check_invariants(&world, &machines, &mut seen).await;
                if let Action::Provision { machine } = action {
                    prop_assert!(seen.contains_key(&machines[machine]));
                }
            }
            Ok(())
        })?;
    }
}
