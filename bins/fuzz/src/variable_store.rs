//! EDK II variable stores, compared with a simple reader without its own limits.

use tec_tpm::compute::{Guid, PlatformState};

use crate::bytes::{cut, le32, put, u16_at, u32_at};
use crate::{Seed, outcome};

/// Offsets in an image (EDK II, `Guid/VariableFormat.h`): the signature of the volume, the length of its
/// header, and sizes of the headers after it.
const SIGNATURE: usize = 40;
const HEADER_LENGTH: usize = 48;
const STORE_HEADER: usize = 28;
const RECORD_HEADER: usize = 60;
/// `EFI_AUTHENTICATED_VARIABLE_GUID`.
const AUTHENTICATED: &str = "aaf32c78-947b-439a-a180-2e144ec37792";
/// States of a record: live, live until its successor is written, deleted.
const ADDED: u8 = 0x3f;
const IN_TRANSITION: u8 = 0x3e;
const DELETED: u8 = 0x3d;

/// The machine's state is the one found by a simpler reader; what follows the store, and what its erased rest
/// contains after an invalid record, has no effect.
pub(crate) fn variable_store(data: &[u8]) {
    let read = PlatformState::from_variable_store(data).ok();
    assert_eq!(read, plainly(data));
    if let Some(state) = read {
        let longer = [data, &[0xaa, 0x55, ADDED, 0]].concat();
        assert_eq!(PlatformState::from_variable_store(&longer).ok(), Some(state));
    }
}

/// State, name, vendor, attributes and data of a record.
type Record<'i> = (u8, String, Guid, u32, &'i [u8]);

fn plainly(image: &[u8]) -> Option<PlatformState> {
    if image.get(SIGNATURE..SIGNATURE + 4)? != b"_FVH" {
        return None;
    }
    let start = u16_at(image, HEADER_LENGTH)?;
    if guid_at(image, start)? != AUTHENTICATED.parse().expect("a GUID") {
        return None;
    }
    let store = image.get(..start + u32_at(image, start + 16)?)?;
    store.get(start..start + STORE_HEADER)?;
    let mut records: Vec<Record<'_>> = Vec::new();
    // Records are aligned relative to the image, wherever the store starts.
    let mut at = (start + STORE_HEADER).next_multiple_of(4);
    while let Some(record) = store.get(at..).filter(|r| r.len() >= RECORD_HEADER) {
        if !record.starts_with(&[0xaa, 0x55]) {
            break;
        }
        let data_at = RECORD_HEADER + u32_at(record, 36)?;
        let end = data_at + u32_at(record, 40)?;
        let name = record.get(RECORD_HEADER..data_at)?;
        let data = record.get(data_at..end)?;
        let state = *record.get(2)?;
        if [ADDED, IN_TRANSITION].contains(&state) {
            let attributes = u32::from_le_bytes(*record.get(4..)?.first_chunk()?);
            records.push((state, text(name)?, guid_at(record, 44)?, attributes, data));
        }
        at = (at + end).next_multiple_of(4);
    }
    let live = records.iter().filter(|(state, name, vendor, ..)| {
        let mut all = records.iter();
        *state == ADDED || !all.any(|r| r.0 == ADDED && (&r.1, &r.2) == (name, vendor))
    });
    let state = live.fold(PlatformState::new(), |state, (_, name, vendor, attributes, data)| {
        state.with_variable(name, *vendor, *attributes, *data)
    });
    Some(state)
}

fn guid_at(data: &[u8], at: usize) -> Option<Guid> {
    Some(Guid::from_bytes(*data.get(at..)?.first_chunk()?))
}

fn text(name: &[u8]) -> Option<String> {
    let units: Vec<u16> = name
        .chunks(2)
        .map(|pair| Some(u16::from_le_bytes(*pair.first_chunk()?)))
        .collect::<Option<_>>()?;
    let end = units.iter().position(|unit| *unit == 0);
    String::from_utf16(units.get(..end.unwrap_or(units.len()))?).ok()
}

/// An image with room for a few variables: a header of 72 bytes, a store at 72, records from 100.
pub(crate) fn store(records: &[(u8, &str, &[u8])]) -> Vec<u8> {
    const SIZE: usize = 600;
    let guid: Guid = AUTHENTICATED.parse().expect("a GUID");
    let mut image = put(put(vec![0; 72], SIGNATURE, b"_FVH"), HEADER_LENGTH, &[72]);
    image.extend(guid.as_bytes());
    image.extend(le32(SIZE));
    image.extend([0x5a, 0xfe, 0, 0, 0, 0, 0, 0]);
    for (state, name, data) in records {
        image.resize(image.len().next_multiple_of(4), 0xff);
        let units = name.encode_utf16().chain([0]);
        let name: Vec<u8> = units.flat_map(u16::to_le_bytes).collect();
        image.extend([0xaa, 0x55, *state, 0, 7, 0, 0, 0]);
        image.extend([0; 28]);
        image.extend(le32(name.len()));
        image.extend(le32(data.len()));
        image.extend(Guid::GLOBAL.as_bytes());
        image.extend(name);
        image.extend(*data);
    }
    image.resize(72 + SIZE, 0xff);
    image
}

/// The store starts one byte later, its records at the next multiple of 4.
fn at_an_odd_offset() -> Vec<u8> {
    let mut image = store(&[(ADDED, "PK", b"key"), (ADDED, "KEK", b"key")]);
    image.splice(100..100, [0; 3]);
    image.splice(72..72, [0]);
    put(image, HEADER_LENGTH, &[73])
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(PlatformState::from_variable_store(data))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let updated = store(&[
        (ADDED, "PK", b"key"),
        (DELETED, "Old", b"deleted"),
        (IN_TRANSITION, "PK", b"older"),
        (IN_TRANSITION, "KEK", b"last"),
        (ADDED, "SecureBoot", &[1]),
    ]);
    let seeds = vec![
        Seed::new("empty", store(&[])),
        Seed::new("at_an_odd_offset", at_an_odd_offset()),
        Seed::new("updated", updated),
        Seed::new("empty_variable", store(&[(ADDED, "", &[]), (ADDED, "a", &[])])),
    ];
    [seeds, hostile()].concat()
}

fn hostile() -> Vec<Seed> {
    let good = || store(&[(ADDED, "PK", b"key")]);
    let with = |at: usize, bytes: &[u8]| put(good(), at, bytes);
    let lying = |name, content: Vec<u8>| Seed::new(name, content).refused(read);
    // Offsets of fields: the size of the store, and of the one record at 100.
    let (store_size, name_size, data_size, name) = (88, 136, 140, 160);
    vec![
        lying("volume_is_cut_off", cut(good(), 43)),
        lying("no_volume", with(SIGNATURE, b"_FVG")),
        lying("header_past_the_end", with(HEADER_LENGTH, &[0xff; 2])),
        lying("store_of_another_kind", with(72, &[0; 16])),
        lying("store_of_zero_bytes", with(store_size, &[0; 4])),
        lying("store_of_four_gigabytes", with(store_size, &[0xff; 4])),
        lying("store_is_cut_off", cut(good(), 671)),
        lying("name_of_four_gigabytes", with(name_size, &[0xff; 4])),
        lying("data_of_four_gigabytes", with(data_size, &[0xff; 4])),
        lying("sizes_whose_sum_wraps", with(name_size, &[0xff; 8])),
        lying("data_over_the_end_of_the_store", with(data_size, &[0xff, 1, 0, 0])),
        lying("name_of_an_odd_size", with(name_size, &[5])),
        lying("name_of_half_a_pair", with(name, &[0, 0xd8])),
    ]
}
