use serde_json::json;

use super::*;
use crate::event_log::{EventLog, EventLogBuilder};

const DISK: [u8; 16] = [0x11; 16];

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn variable(name: &str, value: &[u8]) -> Vec<u8> {
    let sizes = numbers(&[name.len() as u64, value.len() as u64]);
    [Guid::GLOBAL.as_bytes(), &sizes[..], &wide(name), value].concat()
}

fn gpt(partitions: &[(&str, u64, u64)]) -> Vec<u8> {
    let mut data = b"EFI PART".to_vec();
    data.resize(56, 0);
    data.extend(DISK);
    data.resize(92, 0);
    data.extend(numbers(&[partitions.len() as u64]));
    for (name, first, last) in partitions {
        let mut entry = [[0x22; 16], [0x33; 16]].concat();
        entry.extend(numbers(&[*first, *last, 0]));
        entry.extend(wide(name));
        entry.resize(128, 0);
        data.extend(entry);
    }
    data
}

#[test]
fn a_variable_is_read_whole_or_not_at_all() {
    let data = variable("SecureBoot", &[1]);
    let read = |data| Content::read(EventKind::EFI_VARIABLE_DRIVER_CONFIG, data);
    let Content::Variable { vendor, name, data: value } = read(&data) else {
        panic!("{:?}", read(&data));
    };
    assert_eq!((vendor, name.as_str(), value), (Guid::GLOBAL, "SecureBoot", &[1][..]));
    let longer = [data.clone(), vec![0]].concat();
    assert_eq!(read(&longer), Content::Opaque);
    for end in 0..data.len() {
        assert_eq!(read(&data[..end]), Content::Opaque);
    }
    let lying = [&Guid::GLOBAL.as_bytes()[..], &numbers(&[u64::MAX, u64::MAX])].concat();
    assert_eq!(read(&lying), Content::Opaque);
}

#[test]
fn a_partition_table_names_its_partitions() {
    let data = gpt(&[("ESP", 2048, 4095), ("root", 4096, 9999)]);
    let content = Content::read(EventKind::EFI_GPT_EVENT, &data);
    let Content::Partitions { disk, partitions } = &content else {
        panic!("{content:?}");
    };
    assert_eq!(*disk, Guid::from_bytes(DISK));
    assert_eq!((partitions[1].name.as_str(), partitions[1].last), ("root", 9999));
    assert_eq!(
        serde_json::to_value(&content).unwrap()["partitions"][0],
        json!({"kind": "22222222-2222-2222-2222-222222222222",
               "id": "33333333-3333-3333-3333-333333333333",
               "name": "ESP", "first": 2048, "last": 4095})
    );
    let cut = &data[..data.len() - 1];
    assert_eq!(Content::read(EventKind::EFI_GPT_EVENT2, cut), Content::Opaque);
}

#[test]
fn blobs_and_tables_are_read_in_both_their_forms() {
    let plain = numbers(&[0x82_0000, 0xe_0000]);
    let described = [b"\x04PEI\0".to_vec(), plain.clone()].concat();
    for (kind, data, name) in [
        (EventKind::EFI_PLATFORM_FIRMWARE_BLOB, &plain, None),
        (EventKind::EFI_PLATFORM_FIRMWARE_BLOB2, &described, Some("PEI".to_owned())),
        (EventKind::POST_CODE, &plain, None),
        (EventKind::S_CRTM_CONTENTS, &plain, None),
        (EventKind::POST_CODE2, &described, Some("PEI".to_owned())),
    ] {
        let (base, length) = (0x82_0000, 0xe_0000);
        assert_eq!(Content::read(kind, data), Content::Firmware { name, base, length });
    }
    let table = [&numbers(&[1])[..], Guid::GLOBAL.as_bytes(), &numbers(&[0xdead])].concat();
    let described = [b"\x06SMBIOS".to_vec(), table.clone()].concat();
    for (kind, data, name) in [
        (EventKind::EFI_HANDOFF_TABLES, &table, None),
        (EventKind::EFI_HANDOFF_TABLES2, &described, Some("SMBIOS".to_owned())),
    ] {
        let tables = vec![Guid::GLOBAL];
        assert_eq!(Content::read(kind, data), Content::Tables { name, tables });
    }
}

#[test]
fn events_that_extend_nothing_say_what_they_are() {
    let read = |data| Content::read(EventKind::NO_ACTION, data);
    assert_eq!(read(b"StartupLocality\0\x03"), Content::StartupLocality { locality: 3 });
    for data in [&b"SP800-155 Event3\x01"[..], b"Spec ID Event03\0\0\0"] {
        assert!(matches!(read(data), Content::Signature { .. }), "{data:?}");
    }
    assert_eq!(read(b"short"), Content::Opaque);
}

#[test]
fn details_tell_what_each_structure_holds() {
    let pcr = tec_core::pcr::PcrIndex::BOOT_MANAGER;
    let details = |events: &[(EventKind, Vec<u8>)]| -> Vec<Option<String>> {
        let mut log = EventLogBuilder::new();
        for (kind, data) in events {
            log.measure(pcr, *kind, data);
        }
        let bytes = log.raw(&[0xff]).build();
        let log = EventLog::parse(&bytes).unwrap();
        log.events().iter().skip(1).map(crate::event_log::Event::detail).collect()
    };
    let tag = [1_u32, 6].map(u32::to_le_bytes).concat();
    let found = details(&[
        (EventKind::EFI_GPT_EVENT, gpt(&[("ESP", 1, 2), ("", 3, 4)])),
        (EventKind::EFI_PLATFORM_FIRMWARE_BLOB, numbers(&[0x1000, 16])),
        (EventKind::EVENT_TAG, [tag, b"initrd".to_vec()].concat()),
        (EventKind::POST_CODE, b"sixteen letters!".to_vec()),
        (EventKind::SEPARATOR, vec![0; 4]),
        (EventKind::SEPARATOR, vec![1, 0, 0, 0]),
        (EventKind::SEPARATOR, b"WBCL".to_vec()),
        (EventKind::new(0x7777), b"text of an unknown type".to_vec()),
    ]);
    let found: Vec<_> = found.iter().map(|detail| detail.as_deref().unwrap_or("-")).collect();
    assert_eq!(
        found,
        [
            "ESP, 22222222-2222-2222-2222-222222222222",
            "16 bytes at 0x1000",
            "initrd",
            "sixteen letters!",
            "-",
            "error",
            "WBCL",
            "-",
        ]
    );
}
