//! Peak memory of a prediction, in a process of its own: this file has one test.

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

use tec_core::pcr::PcrIndex;
use tec_tpm::compute::input::BootSource;
use tec_tpm::compute::testing::{PeBuilder, application};
use tec_tpm::compute::{BootPredictor, PlatformState, Register};

/// Size of the initial file system in the image.
const SIZE: u32 = 2 << 30;
/// Maximum memory of the whole process.
const MOST: u64 = 16 << 20;

#[test]
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
