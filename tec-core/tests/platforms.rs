//! Platform baselines from evidence to refusal and approval, over the store.
#![cfg(all(feature = "test-util", feature = "embedded"))]
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use tec_core::ak::{Fingerprint, TpmClock};
use tec_core::attest::{Appraisal, PinnedPcrs, VerifiedEvidence};
use tec_core::boot::WholeImages;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::explain::{Gate, StepState};
use tec_core::flow;
use tec_core::flow::{AdmitPorts, Boots};
use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_core::platform::{KeyDatabase, SecureBootState};
use tec_core::port::{
    AkRegistry as _, ImageRegistry as _, MachineRegistry as _, PlatformLog, UnclaimedLimit,
};
use tec_core::store::Store;
use tec_core::testing::{ManualClock, PlatformBoot, SeededEntropy, sample};
use tempfile::TempDir;

struct World {
    store: Store,
    clock: ManualClock,
    _dir: TempDir,
}

impl World {
    /// Machines 1 and 2 with the keys of the same numbers, and the image of every [`PlatformBoot`].
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let store = Store::open(&dir.path().join("state"), &SeededEntropy::new(1)).unwrap();
        for number in [1, 2] {
            let machine = sample::machine(number);
            store.create(&machine, UnclaimedLimit::Unlimited).await.unwrap();
            let key = sample::approved_ak(number, number);
            store.bind(&key, &sample::line()).await.unwrap();
        }
        let (kind, digest) =
            ("EV_EFI_BOOT_SERVICES_APPLICATION", Sha256Digest::of(PlatformBoot::KERNEL));
        let event = ImageEvent::new(kind, PcrIndex::BOOT_MANAGER, digest, "Pcr4Vmlinuz");
        let pcr = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, [event]);
        let expected = ExpectedPcrs::new(vec![pcr]);
        let image = ApprovedImage::new("good".parse().unwrap(), "dir", expected, sample::time(1));
        store.put(&image).await.unwrap();
        Self { store, clock: ManualClock::new(sample::time(10)), _dir: dir }
    }

    async fn admit(&self, evidence: VerifiedEvidence) -> Appraisal {
        self.admit_by(evidence, Some(&self.store)).await
    }

    async fn admit_by(
        &self,
        evidence: VerifiedEvidence,
        platforms: Option<&dyn PlatformLog>,
    ) -> Appraisal {
        let store = &self.store;
        let pins = PinnedPcrs::boot_manager().into();
        let boots = Boots { images: store, pins, states: &WholeImages };
        let ports = AdmitPorts::new(store, Some(boots), store, store, store, &self.clock)
            .with_platforms(platforms);
        let found = flow::admit(ports, sample::attempt_id(1), &Ok(evidence)).await;
        found.unwrap().appraisal
    }

    async fn is_admitted(&self, key: u64, boot: &PlatformBoot) {
        let appraisal = self.admit(boot.evidence(key)).await;
        assert!(appraisal.attested.is_some(), "{:?}", appraisal.attempt.ladder);
        let passed = appraisal.attempt.ladder.steps.iter().find(|s| s.gate == Gate::Platform);
        assert_eq!(passed.unwrap().state, StepState::Passed);
    }

    /// The outcome of the gate.
    async fn is_refused(&self, key: u64, boot: &PlatformBoot) -> String {
        let appraisal = self.admit(boot.evidence(key)).await;
        assert!(appraisal.attested.is_none());
        let ladder = &appraisal.attempt.ladder;
        assert_eq!(ladder.code, Some(Code::PlatformChanged));
        let failure = ladder.first_failure().unwrap();
        assert_eq!(failure.gate, Gate::Platform);
        failure.detail.clone()
    }
}

fn key(number: u64) -> Fingerprint {
    sample::public_key(number).fingerprint()
}

fn boot() -> PlatformBoot {
    PlatformBoot::new()
}

#[tokio::test]
async fn a_machine_goes_on_as_its_first_boot_was() {
    let world = World::new().await;
    let recorded = async || PlatformLog::find(&world.store, &key(1)).await.unwrap();
    assert_eq!(recorded().await, None);
    for boot in [boot(), boot(), boot().without_log(), boot().boot_order("network")] {
        world.is_admitted(1, &boot).await;
    }
    let record = recorded().await.unwrap();
    assert_eq!(record.baseline, boot().platform());
    assert_eq!(record.seen, boot().boot_order("network").platform());
}

#[tokio::test]
async fn changed_firmware_is_refused_named_and_approved_once_for_all() {
    let world = World::new().await;
    for number in [1, 2] {
        world.is_admitted(number, &boot()).await;
    }
    let new = boot().firmware("2.0");
    let detail = world.is_refused(1, &new).await;
    let id = sample::machine_id(1);
    for named in ["PCR 0 EV_S_CRTM_VERSION 1.0 -> 2.0: ", &format!("tec platform approve {id}")] {
        assert!(detail.contains(named), "{named} in {detail}");
    }
    world.is_refused(2, &new).await;
    let seen = PlatformLog::find(&world.store, &key(1)).await.unwrap().unwrap().seen;
    assert_eq!(seen, new.platform());
    world.store.approve(&key(1), &seen, &sample::line()).await.unwrap();
    world.is_admitted(2, &boot()).await;
    for number in [1, 2] {
        world.is_admitted(number, &new).await;
        world.is_refused(number, &boot()).await;
    }
}

#[tokio::test]
async fn programs_of_the_firmware_are_those_of_the_first_boot_or_approved() {
    let world = World::new().await;
    let (setup, implant) = (boot().program("setup screen"), boot().program("implant"));
    let first = world.admit(setup.evidence(1)).await;
    assert!(first.attested.is_some());
    let mut steps = first.attempt.ladder.steps.iter();
    let told = &steps.find(|step| step.gate == Gate::Platform).unwrap().detail;
    assert!(told.contains(&Sha256Digest::of("setup screen").to_string()), "{told}");
    world.is_admitted(1, &setup).await;
    world.is_admitted(2, &boot()).await;
    for (key, changed) in [(1, &implant), (1, &boot()), (2, &implant)] {
        let detail = world.is_refused(key, changed).await;
        assert!(detail.contains("PCR 4 EV_EFI_BOOT_SERVICES_APPLICATION"), "{detail}");
    }
    let seen = PlatformLog::find(&world.store, &key(2)).await.unwrap().unwrap().seen;
    world.store.approve(&key(2), &seen, &sample::line()).await.unwrap();
    world.is_admitted(2, &implant).await;
    world.is_refused(1, &implant).await;
}

#[tokio::test]
async fn without_a_baseline_nobody_vouches_for_a_program_of_the_firmware() {
    let world = World::new().await;
    assert!(world.admit_by(boot().evidence(1), None).await.attested.is_some());
    let refused = world.admit_by(boot().program("implant").evidence(1), None).await;
    assert!(refused.attested.is_none());
    assert_eq!(refused.attempt.ladder.code, Some(Code::PlatformChanged));
}

#[tokio::test]
async fn an_update_of_dbx_is_admitted_and_its_rollback_refused() {
    let world = World::new().await;
    let updated = boot().keys(KeyDatabase::Dbx, &[4, 40]);
    for boot in [&boot(), &updated, &updated] {
        world.is_admitted(1, boot).await;
    }
    let detail = world.is_refused(1, &boot()).await;
    assert!(detail.contains("dbx, 0 added, 1 removed"), "{detail}");
    let detail = world.is_refused(1, &updated.secure_boot(SecureBootState::Off)).await;
    assert!(detail.contains("SecureBoot, on -> off"), "{detail}");
}

#[tokio::test]
async fn what_is_refused_for_another_reason_leaves_no_baseline() {
    let world = World::new().await;
    let clock =
        |reset_count| TpmClock { clock_ms: 1_000, reset_count, restart_count: 0, safe: true };
    let with_clock = |boot: PlatformBoot, resets| {
        let mut evidence = boot.evidence(1);
        evidence.clock = Some(clock(resets));
        evidence
    };
    let mut other = boot().evidence(1);
    other.pcrs = VerifiedEvidence::new(other.tee, other.ak.clone(), zeros()).pcrs;
    assert!(world.admit(other).await.attested.is_none());
    assert_eq!(PlatformLog::find(&world.store, &key(1)).await.unwrap(), None);

    assert!(world.admit(with_clock(boot(), 7)).await.attested.is_some());
    // An older state of the TPM may not move the baseline.
    let updated = boot().keys(KeyDatabase::Db, &[3, 30]);
    let refused = world.admit(with_clock(updated, 6)).await;
    assert_eq!(refused.attempt.ladder.code, Some(Code::TpmSetBack));
    let record = PlatformLog::find(&world.store, &key(1)).await.unwrap().unwrap();
    assert_eq!(record.baseline, boot().platform());
}

fn zeros() -> tec_core::pcr::PcrValues {
    tec_core::pcr::PcrValues::new([Sha256Digest::ZERO; tec_core::pcr::PCR_COUNT])
}

#[tokio::test]
async fn of_two_first_boots_at_the_same_time_one_is_the_baseline() {
    let world = World::new().await;
    let (one, other) = (boot(), boot().option_rom("another card"));
    let (one, other) = tokio::join!(world.admit(one.evidence(1)), world.admit(other.evidence(1)));
    let admitted = [one, other].iter().filter(|appraisal| appraisal.attested.is_some()).count();
    assert_eq!(admitted, 1);
}

#[tokio::test]
async fn a_removed_machine_takes_its_platforms_along() {
    let world = World::new().await;
    world.is_admitted(1, &boot()).await;
    world.is_refused(1, &boot().firmware("2.0")).await;
    let id = sample::machine_id(1);
    let (store, clock) = (&world.store, &world.clock);
    flow::remove_machine(store, store, store, clock, id).await.unwrap();
    assert_eq!(PlatformLog::list(store).await.unwrap(), []);
}
