//! Signature lists: compared with a second reader, and written again.

use tec_tpm::compute::Guid;
use tec_tpm::compute::testing::parsers;

use crate::bytes::{cut, le32, put, u32_at};
use crate::{Seed, outcome};

/// Type, then three sizes (UEFI 2.10, 32.4.1).
const HEADER: usize = 28;
/// Owner of an entry.
const OWNER: usize = 16;
/// Maximum number of entries, as in the error.
const MAX_ENTRIES: usize = 1 << 16;
/// `EFI_CERT_SHA256_GUID` and `EFI_CERT_X509_GUID`.
pub(crate) const SHA256: &str = "c1c41626-504c-4092-aca9-41f936934328";
pub(crate) const X509: &str = "a5c059a1-94e4-4aa7-87b5-ab155c2bf072";

/// The entries are those found by a simpler reader, at the same places; written one by one, they are read
/// again; and what follows a variable's lists are more lists.
pub(crate) fn signature_list(data: &[u8]) {
    let Ok(entries) = parsers::signature_lists(data) else {
        assert_eq!(plainly(data), None);
        return;
    };
    let found: Vec<_> = entries.iter().map(|e| (e.kind, e.position, e.whole)).collect();
    assert_eq!(plainly(data).as_ref(), Some(&found));
    assert!(entries.iter().all(|e| e.whole.get(OWNER..) == Some(e.value)));

    let mut again: Vec<u8> = Vec::with_capacity(2 * data.len());
    for entry in &entries {
        again.extend(list(entry.kind, 0, &[entry.whole]));
    }
    again.extend(data);
    let Ok(longer) = parsers::signature_lists(&again) else {
        assert!(2 * entries.len() > MAX_ENTRIES);
        return;
    };
    let (written, appended) = longer.split_at(entries.len());
    for ((one, two), written) in entries.iter().zip(appended).zip(written) {
        assert_eq!(one, two);
        assert_eq!((one.kind, one.whole), (written.kind, written.whole));
        assert_eq!(written.position, 0);
    }
}

/// Type, offset in the list, bytes.
type Found<'d> = (Guid, usize, &'d [u8]);

fn plainly(mut rest: &[u8]) -> Option<Vec<Found<'_>>> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let kind = Guid::from_bytes(*rest.first_chunk()?);
        let (size, header, entry) = (u32_at(rest, 16)?, u32_at(rest, 20)?, u32_at(rest, 24)?);
        let (list, next) = rest.split_at_checked(size)?;
        let content = list.get(HEADER + header..)?;
        if entry <= OWNER || content.len() % entry != 0 {
            return None;
        }
        let entries = content.chunks(entry).enumerate();
        found.extend(entries.map(|(position, whole)| (kind, position, whole)));
        rest = next;
    }
    (found.len() <= MAX_ENTRIES).then_some(found)
}

/// A list of equally sized entries.
fn list(kind: Guid, header: usize, entries: &[&[u8]]) -> Vec<u8> {
    let entry = entries.first().map_or(OWNER + 1, |entry| entry.len());
    let mut list = kind.as_bytes().to_vec();
    list.extend(le32(HEADER + header + entries.len() * entry));
    list.extend(le32(header));
    list.extend(le32(entry));
    list.resize(HEADER + header, 0x68);
    list.extend(entries.concat());
    list
}

/// A list of one entry with an owner.
pub(crate) fn one(kind: &str, value: &[u8]) -> Vec<u8> {
    let kind = kind.parse().expect("a GUID");
    list(kind, 0, &[&[&[0x6f; OWNER], value].concat()])
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(parsers::signature_lists(data))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let digest = one(SHA256, &[0x11; 32]);
    let sha256: Guid = SHA256.parse().expect("a GUID");
    let three = [&[0x31; 48][..], &[0x32; 48], &[0x33; 48]];
    let seeds = vec![
        Seed::new("nothing", Vec::new()),
        Seed::new("digest", digest.clone()),
        Seed::new("three_digests", list(sha256, 0, &three)),
        Seed::new("vendor_header", list(sha256, 7, &three)),
        Seed::new("no_entries", list(sha256, 0, &[])),
        Seed::new("two_lists", [one(X509, b"certificate"), digest].concat()),
    ];
    [seeds, hostile()].concat()
}

/// One list of 76 bytes, with one entry of 48 bytes, whose sizes are wrong.
fn hostile() -> Vec<Seed> {
    let good = || one(SHA256, &[0x11; 32]);
    let with = |at: usize, size: u32| put(good(), at, &size.to_le_bytes());
    let (list, header, entry) = (16, 20, 24);
    let lying = |name, content: Vec<u8>| Seed::new(name, content).refused(read);
    vec![
        lying("header_is_cut_off", cut(good(), 27)),
        lying("list_of_zero_bytes", with(list, 0)),
        lying("list_one_byte_too_long", with(list, 77)),
        lying("list_of_four_gigabytes", with(list, u32::MAX)),
        lying("header_of_four_gigabytes", with(header, u32::MAX)),
        lying("header_longer_than_the_list", with(header, 49)),
        lying("entries_of_zero_bytes", with(entry, 0)),
        lying("entries_without_a_value", with(entry, 16)),
        lying("entries_of_four_gigabytes", with(entry, u32::MAX)),
        lying("entries_that_do_not_fill_the_list", with(entry, 47)),
        lying("second_list_is_cut_off", [good(), vec![0; 5]].concat()),
        lying("second_list_lies", [good(), with(list, 200)].concat()),
    ]
}
