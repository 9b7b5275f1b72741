//! What is built into shim: its keys, and its revocation levels.

use tec_tpm::compute::testing::parsers;
use tec_tpm::compute::{Guid, PlatformState, SecureBoot};

use crate::bytes::{cut, put, u32_at};
use crate::{Seed, outcome};

/// The level to which shim resets when Secure Boot is off (shim, `SbatLevel_Variable.txt`).
const ORIGINAL: &[u8] = b"sbat,1,2021030218\n";

/// Each part is where its size and offset say. A level is the original one, one of the section, or the stored
/// one; and once it is in force, the next boot leaves it unchanged.
///
/// The input is both sections, `.vendor_cert` and `.sbatlevel`.
pub(crate) fn vendor_cert(data: &[u8]) {
    match parsers::vendor_keys(data) {
        Ok((allowed, revoked)) => {
            assert_eq!(part(data, 0, 8), Some(allowed));
            assert_eq!(part(data, 4, 12), Some(revoked));
        }
        Err(_) => assert!(part(data, 0, 8).is_none() || part(data, 4, 12).is_none()),
    }
    for secure_boot in [SecureBoot::On, SecureBoot::Off] {
        for policy in 0..4 {
            check_level(data, secure_boot, policy);
        }
    }
}

/// Sizes of the two parts, then their offsets (shim, cert.S).
fn part(section: &[u8], size_at: usize, offset_at: usize) -> Option<&[u8]> {
    let (size, offset) = (u32_at(section, size_at)?, u32_at(section, offset_at)?);
    section.get(offset..offset + size)
}

fn check_level(section: &[u8], secure_boot: SecureBoot, policy: u8) {
    let machine = PlatformState::new().with_variable("SbatPolicy", Guid::SHIM, 3, [policy]);
    let Ok(level) = parsers::sbat_level(section, &machine, secure_boot) else {
        return;
    };
    assert!(level.starts_with(b"sbat,"));
    assert!(level == ORIGINAL || section.windows(level.len()).any(|part| part == level));
    let next = machine.clone().with_variable("SbatLevel", Guid::SHIM, 3, level.clone());
    let again = parsers::sbat_level(section, &next, secure_boot);
    assert_eq!(again.as_ref(), Ok(&level));

    let newest = b"sbat,1,9999999999\n";
    let raised = machine.with_variable("SbatLevel", Guid::SHIM, 3, *newest);
    let kept = parsers::sbat_level(section, &raised, secure_boot).expect("only the stored differs");
    let resets = secure_boot == SecureBoot::Off && !(1..=2).contains(&policy);
    assert!(kept == newest || kept == level, "a level is stored or brought");
    assert!(!resets || kept == ORIGINAL);
}

fn read_keys(data: &[u8]) -> Result<(), String> {
    outcome(parsers::vendor_keys(data))
}

fn read_level(data: &[u8]) -> Result<(), String> {
    let machine = PlatformState::new();
    outcome(parsers::sbat_level(data, &machine, SecureBoot::On))
}

/// The section `.vendor_cert` with these parts.
pub(crate) fn keys(allowed: &[u8], revoked: &[u8]) -> Vec<u8> {
    let size = |part: &[u8]| crate::bytes::le32(part.len());
    let begin = crate::bytes::le32(16 + allowed.len());
    let header = [size(allowed), size(revoked), [16, 0, 0, 0], begin].concat();
    [header, allowed.to_vec(), revoked.to_vec()].concat()
}

/// The section `.sbatlevel`: a version, the offsets of two levels less 4, the levels.
pub(crate) const LEVELS: &[u8] =
    b"\0\0\0\0\x08\0\0\0\x1c\0\0\0sbat,1,2024000000\nx\0sbat,1,2026000000\n\0";

pub(crate) fn seeds() -> Vec<Seed> {
    let seeds = vec![
        Seed::new("certificate", keys(b"\x30\x03abc", b"revoked")),
        Seed::new("no_keys", keys(b"", b"")),
        Seed::new("levels", LEVELS),
    ];
    [seeds, hostile()].concat()
}

fn hostile() -> Vec<Seed> {
    let good = || keys(b"\x30\x03abc", b"revoked");
    let keys = |name, content| Seed::new(name, content).refused(read_keys);
    let levels = |name, content| Seed::new(name, content).refused(read_level);
    let with = |at, bytes: &[u8]| put(LEVELS.to_vec(), at, bytes);
    vec![
        keys("keys_header_is_cut_off", cut(good(), 11)),
        keys("keys_of_four_gigabytes", put(good(), 0, &[0xff; 4])),
        keys("keys_past_the_end", put(good(), 8, &[0xff; 4])),
        keys("keys_whose_end_wraps", put(put(good(), 0, &[0xff; 4]), 8, &[0xff; 4])),
        keys("revoked_keys_are_cut_off", cut(good(), 27)),
        levels("levels_are_cut_off", cut(LEVELS.to_vec(), 7)),
        levels("level_past_the_end", with(4, &[0xff; 4])),
        levels("level_that_is_no_text", with(4, &[9, 0, 0, 0])),
        levels("level_in_its_own_header", with(4, &[0, 0, 0, 0])),
    ]
}
