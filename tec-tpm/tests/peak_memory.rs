//! Peak memory of a prediction and of the judge of a long log, in a process of its own: this file has one test.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "all of this file is test code, its helper functions too"
)]

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use tec_core::ak::AkState;
use tec_core::attest::{Known, Tee, VerifiedEvidence, appraise};
use tec_core::boot::Pins;
use tec_core::digest::Sha256Digest;
use tec_core::machine::MachineState;
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrValues};
use tec_core::testing::sample;
use tec_tpm::combine::MixedStates;
use tec_tpm::compute::input::BootSource;
use tec_tpm::compute::testing::{PeBuilder, application};
use tec_tpm::compute::{BootPredictor, PlatformState, Register};
use tec_tpm::event_log::{EventKind, EventLogBuilder};
use tec_tpm::policy::evidence_with_policy;

/// Size of the initial file system in the image.
const SIZE: u32 = 2 << 30;
/// Maximum memory of the whole process.
const MOST: u64 = 16 << 20;
/// The same after a log of 13 MiB, which is itself in memory.
const MOST_OF_LOG: u64 = 64 << 20;

#[test]
fn peak_memory_does_not_follow_the_input() {
    a_unified_kernel_image_of_2_gib_is_predicted_within_16_mib();
    a_log_of_100_000_events_is_judged_within_64_mib();
}

fn a_log_of_100_000_events_is_judged_within_64_mib() {
    let mut log = EventLogBuilder::new();
    for number in 0..100_000_u32 {
        let pcr = PcrIndex::all().nth(number as usize % 16).unwrap();
        log.measure(pcr, EventKind::IPL, format!("grub_cmd: {number:>60}").as_bytes());
    }
    let bytes = log.build();
    let quoted = PcrValues::new([Sha256Digest::of("quoted"); PCR_COUNT]);
    let mut evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(1), quoted);
    (evidence.log, evidence.variables) = evidence_with_policy(&bytes, &evidence.pcrs);
    let (mut ak, mut machine) = (sample::ak(1, 1), sample::machine(1));
    (ak.state, machine.state) = (AkState::Bound, MachineState::Active);
    let images = [sample::image(1)];
    let known = Known::new(Some(&ak), Some(&machine), &images);
    let (id, at, states) = (sample::attempt_id(1), sample::time(10), MixedStates::default());
    let found = appraise(id, at, &Ok(evidence), known, Pins::Predicted, &states);
    assert!(found.attested.is_none());
    let peak = peak();
    assert!(peak < MOST_OF_LOG, "{peak} bytes");
}

fn a_unified_kernel_image_of_2_gib_is_predicted_within_16_mib() {
    let root = tempfile::tempdir().unwrap();
    write_sparse(&root.path().join("EFI/BOOT/BOOTX64.EFI"));

    let image = BootSource::new().open(root.path()).unwrap();
    let predictor = BootPredictor::new()
        .with_registers([PcrIndex::BOOT_MANAGER, PcrIndex::KERNEL_BOOT].into_iter().collect());
    let prediction = predictor.predict(&image, &PlatformState::new()).unwrap();
    for pcr in [PcrIndex::BOOT_MANAGER, PcrIndex::KERNEL_BOOT] {
        assert!(matches!(prediction.register(pcr), Register::Predicted(_)));
    }
    let peak = peak();
    assert!(peak < MOST, "{peak} bytes");
}

/// A unified kernel image whose last section is a hole.
fn write_sparse(path: &Path) {
    let mut file = PeBuilder::new()
        .section(".sdmagic", "#### LoaderInfo: systemd-stub 257.1 ####")
        .section(".osrel", "ID=test\n")
        .section(".linux", application("Linux"))
        .section(".initrd", [0; 512])
        .build();
    // VirtualSize and SizeOfRawData of the last section header (PE format, "Section Table").
    let header = file.windows(8).position(|w| w == b".initrd\0").unwrap();
    file[header + 8..header + 12].copy_from_slice(&SIZE.to_le_bytes());
    file[header + 16..header + 20].copy_from_slice(&SIZE.to_le_bytes());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut sparse = File::create(path).unwrap();
    sparse.write_all(&file).unwrap();
    let start = file.len() as u64 - 512;
    sparse.set_len(start + u64::from(SIZE)).unwrap();
}

/// Maximum memory that the process has had resident (proc(5), `VmHWM`), in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() * 1024
}
