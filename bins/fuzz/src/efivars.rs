//! Files of efivarfs, and what they say about Secure Boot.

use tec_tpm::compute::{Guid, MemoryImage, PlatformError, PlatformState, SecureBoot};

use crate::bytes::{le16, u16_at};
use crate::{Seed, outcome};

/// Length of `-` and a GUID as text.
const GUID_SUFFIX: usize = 37;
/// Bytes of attributes before the data.
const ATTRIBUTES: usize = 4;

/// A file is a variable exactly if its name and size say so; a folder contains what its files contain,
/// whatever their order; and Secure Boot is on exactly if the variables say so.
///
/// An input is a list of files: a name, a line feed, the size in 16 bits, the content.
pub(crate) fn efivars(data: &[u8]) {
    let files = files(data);
    let mut state = PlatformState::new();
    let mut folder = MemoryImage::new();
    let mut named: Vec<(String, Guid)> = Vec::new();
    for (name, content) in &files {
        let before = state.clone();
        let result = state.insert_efivarfs(name, content);
        let Some(variable) = variable(name).filter(|_| content.len() >= ATTRIBUTES) else {
            assert!(result.is_err());
            assert_eq!(before, state);
            continue;
        };
        assert!(result.is_ok());
        assert_eq!(state.variable(&variable.0, variable.1), content.get(ATTRIBUTES..));
        // Two spellings of a GUID are one variable, but two files.
        if !named.contains(&variable) && !variable.0.contains('/') {
            folder.insert(format!("vars/{}-{}", variable.0, variable.1), *content);
            named.push(variable);
        }
    }
    if named.len() == files.len() {
        let read = PlatformState::from_efivars(&folder, "vars").expect("good files");
        assert_eq!(read, state);
    }
    check_secure_boot(&state);
}

fn files(mut rest: &[u8]) -> Vec<(&str, &[u8])> {
    let mut files = Vec::new();
    let mut next = || {
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let name = std::str::from_utf8(rest.get(..end)?).ok()?;
        let size = u16_at(rest, end + 1)?;
        let content = rest.get(end + 3..)?;
        let (content, more) = content.split_at(size.min(content.len()));
        rest = more;
        Some((name, content))
    };
    while let Some(file) = next() {
        files.push(file);
    }
    files
}

/// The name without the folder, parsed from its end.
fn variable(path: &str) -> Option<(String, Guid)> {
    let name = path.split('/').next_back()?;
    let begin = name.len().checked_sub(GUID_SUFFIX).filter(|b| *b > 0)?;
    let (name, suffix) = name.split_at_checked(begin)?;
    let groups: Vec<&str> = suffix.split('-').collect();
    let hexadecimal = |group: &&str| group.bytes().all(|b| b.is_ascii_hexdigit());
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let fits = lengths == [0, 8, 4, 4, 4, 12] && groups.iter().all(hexadecimal);
    let guid = suffix.get(1..)?.parse().ok();
    assert_eq!(guid.is_some() && suffix.starts_with('-'), fits);
    guid.filter(|_| fits).map(|guid| (name.to_owned(), guid))
}

fn check_secure_boot(state: &PlatformState) {
    let says = |name, vendor| match state.variable(name, vendor) {
        None => Ok(None),
        Some([0]) => Ok(Some(SecureBoot::Off)),
        Some([1]) => Ok(Some(SecureBoot::On)),
        Some(other) => Err(other.len()),
    };
    let has_key = state.variable("PK", Guid::GLOBAL).is_some_and(|key| !key.is_empty());
    let expected = match says("SecureBoot", Guid::GLOBAL) {
        Ok(None) if has_key => says("SecureBootEnable", Guid::SECURE_BOOT_ENABLE)
            .map(|enabled| enabled.unwrap_or(SecureBoot::On)),
        Ok(said) => Ok(said.unwrap_or(SecureBoot::Off)),
        Err(size) => Err(size),
    };
    match (state.secure_boot(), expected) {
        (Ok(state), Ok(expected)) => assert_eq!(state, expected),
        (Err(PlatformError::Switch { size, .. }), Err(expected)) => assert_eq!(size, expected),
        (state, expected) => panic!("{state:?} is not {expected:?}"),
    }
}

/// An input with these files.
fn folder(files: &[(&str, &[u8])]) -> Vec<u8> {
    let file = |(name, content): &(&str, &[u8])| {
        let mut file = format!("{name}\n").into_bytes();
        file.extend(le16(content.len()));
        file.extend(*content);
        file
    };
    files.iter().flat_map(file).collect()
}

fn read(data: &[u8]) -> Result<(), String> {
    let mut state = PlatformState::new();
    for (name, content) in files(data) {
        outcome(state.insert_efivarfs(name, content))?;
    }
    outcome(state.secure_boot())
}

const PK: &str = "PK-8be4df61-93ca-11d2-aa0d-00e098032b8c";
const STATE: &str = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
const SWITCH: &str = "SecureBootEnable-f0a30bc7-af08-4556-99c4-001009c93a44";

pub(crate) fn seeds() -> Vec<Seed> {
    let key: (&str, &[u8]) = (PK, b"\x27\0\0\0key");
    let seeds = vec![
        Seed::new("on", folder(&[key, (STATE, b"\x06\0\0\0\x01")])),
        Seed::new("off", folder(&[(STATE, b"\x06\0\0\0\0")])),
        Seed::new("keys_only", folder(&[key])),
        Seed::new("keys_and_switch", folder(&[(SWITCH, b"\x03\0\0\0\0"), key])),
        Seed::new("in_a_folder", folder(&[(&format!("efivars/x/{PK}"), b"\x27\0\0\0")])),
        Seed::new("written_twice", folder(&[key, (&PK.to_uppercase(), b"\0\0\0\0x"), key])),
    ];
    [seeds, hostile()].concat()
}

fn hostile() -> Vec<Seed> {
    let lying = |name, files: &[(&str, &[u8])]| Seed::new(name, folder(files)).refused(read);
    vec![
        lying("shorter_than_its_attributes", &[(PK, &[0x27, 0, 0])]),
        lying("empty_file", &[(PK, b"\x27\0\0\0key"), (STATE, &[])]),
        lying("without_a_vendor", &[("PK", &[0; 5])]),
        lying("without_a_name", &[("-8be4df61-93ca-11d2-aa0d-00e098032b8c", &[0; 5])]),
        lying("vendor_with_a_sign", &[("PK-+be4df61-93ca-11d2-aa0d-00e098032b8c", &[0; 5])]),
        lying(
            "vendor_that_begins_within_a_character",
            &[("é8be4df61-93ca-11d2-aa0d-00e098032b8c", &[0; 5])],
        ),
        lying("state_of_two_bytes", &[(STATE, &[6, 0, 0, 0, 1, 0])]),
        lying(
            "switch_that_is_neither_0_nor_1",
            &[(PK, b"\x27\0\0\0key"), (SWITCH, &[3, 0, 0, 0, 2])],
        ),
    ]
}
