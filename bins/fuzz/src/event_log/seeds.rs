//! Valid logs.

use sha1::{Digest as _, Sha1};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::event_log::{Bank, EventKind, EventLogBuilder};

use crate::Seed;

pub(crate) fn seeds() -> Vec<Seed> {
    let pcr = |index| PcrIndex::new(index).expect("a register");
    let mut boot = EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256, Bank::Sha384]);
    boot.startup_locality(3)
        .measure(pcr(0), EventKind::S_CRTM_VERSION, b"1\0.\x000\0\0\0")
        .measure(pcr(0), EventKind::EFI_PLATFORM_FIRMWARE_BLOB2, b"\x03FV0\0\0\0\0")
        .variable(
            PcrIndex::SECURE_BOOT,
            EventKind::EFI_VARIABLE_DRIVER_CONFIG,
            [0x61; 16],
            "SecureBoot",
            &[1],
        )
        .separator(PcrIndex::BOOT_MANAGER)
        .image(Sha256Digest::of("shim"), "\\EFI\\debian\\shimx64.efi")
        .measure(pcr(9), EventKind::EVENT_TAG, b"\0\0\0\0\x06\0\0\0initrd")
        .measure(pcr(8), EventKind::IPL, b"grub_cmd: linux /vmlinuz");
    let mut small = EventLogBuilder::new();
    small.measure(PcrIndex::BOOT_MANAGER, EventKind::EFI_ACTION, b"Calling EFI Application");
    let padded = |byte| [small.build(), vec![byte; 40]].concat();
    vec![
        Seed::new("boot", boot.build()),
        Seed::new("small", small.build()),
        Seed::new("padded_with_zeros", padded(0)),
        Seed::new("padded_with_ones", padded(0xff)),
        Seed::new("all_banks", EventLogBuilder::with_banks(&Bank::ALL).separator(pcr(5)).build()),
        Seed::new("unknown_algorithm", unknown_algorithm()),
        Seed::new("sha1_form", sha1_form()),
        Seed::new("structures", structures()),
    ]
}

/// One event in the older format.
pub(super) fn sha1_event(register: u32, kind: EventKind, data: &[u8]) -> Vec<u8> {
    let mut event = [register.to_le_bytes(), kind.number().to_le_bytes()].concat();
    event.extend(Sha1::digest(data));
    event.extend(u32::try_from(data.len()).unwrap_or(0).to_le_bytes());
    event.extend(data);
    event
}

fn sha1_form() -> Vec<u8> {
    [
        sha1_event(0, EventKind::NO_ACTION, b"StartupLocality\0\x03"),
        sha1_event(4, EventKind::EFI_ACTION, b"Calling EFI Application"),
        sha1_event(u32::MAX, EventKind::NO_ACTION, b"SP800-155 Event"),
        sha1_event(7, EventKind::SEPARATOR, &[0; 4]),
    ]
    .concat()
}

/// SHA-256 and SM3-256 (TCG Algorithm Registry: 0x0012), which is skipped.
fn unknown_algorithm() -> Vec<u8> {
    let mut header = b"Spec ID Event03\0".to_vec();
    header.extend([0, 0, 0, 0, 0, 2, 2, 2]);
    header.extend([2, 0, 0, 0, 0x0b, 0, 32, 0, 0x12, 0, 32, 0, 3, b'x', b'y', b'z']);
    let mut log = sha1_event(0, EventKind::NO_ACTION, &header);
    log.extend([4, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0]);
    log.extend([0x12, 0].into_iter().chain([0x53; 32]));
    log.extend([0x0b, 0].into_iter().chain([0x26; 32]));
    log.extend([4, 0, 0, 0, 0, 0, 0, 0]);
    log
}

/// One event of each structure that event data may have.
fn structures() -> Vec<u8> {
    let numbers = |numbers: &[u64]| -> Vec<u8> {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        bytes.collect()
    };
    let mut gpt = [&b"EFI PART"[..], &[0x11; 84], &numbers(&[1])].concat();
    gpt.extend([&[0x22; 32][..], &numbers(&[34, 99, 0]), b"E\0S\0P\0", &[0; 66]].concat());
    let blob = [&b"\x03PEI"[..], &numbers(&[0x1000, 16])].concat();
    let tables = [&numbers(&[1])[..], &[0x61; 16], &numbers(&[0xf000])].concat();
    let value = b"\x01\0\0\0";
    let boot = [&[0x61; 16][..], &numbers(&[1, 4]), b"B\0", value].concat();
    let mut log = EventLogBuilder::new();
    log.no_action(b"SP800-155 Event\0\x01")
        .measure(PcrIndex::BOOT_MANAGER, EventKind::EFI_GPT_EVENT, &gpt)
        .measure(PcrIndex::BOOT_MANAGER, EventKind::POST_CODE2, &blob)
        .measure(PcrIndex::BOOT_MANAGER, EventKind::EFI_HANDOFF_TABLES, &tables)
        .measure_other(PcrIndex::BOOT_MANAGER, EventKind::EFI_VARIABLE_BOOT, value, &boot)
        .measure_other(PcrIndex::BOOT_MANAGER, EventKind::IPL, b"boot", b"grub_cmd: boot\0")
        .measure_other(
            PcrIndex::KERNEL_BOOT,
            EventKind::IPL,
            b".linux\0",
            b".\0l\0i\0n\0u\0x\0\0\0",
        )
        .measure(PcrIndex::BOOT_MANAGER, EventKind::SEPARATOR, &[1, 0, 0, 0]);
    log.build()
}
