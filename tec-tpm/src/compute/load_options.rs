//! What a boot entry passes to the program that it starts (UEFI 2.10, 3.1.3: `EFI_LOAD_OPTION`).

use super::platform::PlatformState;
use super::varstore::text;
use crate::guid::Guid;

/// `LOAD_OPTION_ACTIVE`.
const ACTIVE: u32 = 1;
/// UEFI 2.10, 10.3.5.4: type and subtype of the path of a file.
const FILE_PATH: [u8; 2] = [4, 4];
/// UEFI 2.10, 10.3.1: type of the end of a path.
const END: u8 = 0x7f;

/// The optional data of the boot entry that starts a file of the image: the first active one whose
/// path is that of the file. None if there is no such entry: then firmware starts the file without
/// options.
pub(super) fn of_file(platform: &PlatformState, file: &str) -> Option<Vec<u8>> {
    let entry = entries(platform).find(|entry| entry.starts(file))?;
    Some(entry.options.to_vec()).filter(|options| !options.is_empty())
}

/// The files that active boot entries name, in order.
pub(super) fn files(platform: &PlatformState) -> impl Iterator<Item = String> {
    entries(platform).map(|entry| entry.path)
}

/// Active entries that name files, in the order of `BootNext` and `BootOrder`.
fn entries(platform: &PlatformState) -> impl Iterator<Item = Entry<'_>> {
    let variable = |name: &str| platform.variable(name, Guid::GLOBAL).unwrap_or_default();
    let numbers = [variable("BootNext"), variable("BootOrder")].concat();
    let (numbers, _) = numbers.as_chunks::<2>();
    let numbers: Vec<u16> = numbers.iter().map(|n| u16::from_le_bytes(*n)).collect();
    numbers
        .into_iter()
        .filter_map(move |number| Entry::parse(variable(&format!("Boot{number:04X}"))))
}

struct Entry<'v> {
    path: String,
    options: &'v [u8],
}

impl<'v> Entry<'v> {
    /// Attributes 4, size of the path list 2, description, path list, optional data. None unless
    /// the entry is active and names a file.
    fn parse(variable: &'v [u8]) -> Option<Self> {
        let (attributes, rest) = variable.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        if u32::from_le_bytes(*attributes) & ACTIVE == 0 {
            return None;
        }
        let (units, _) = rest.as_chunks::<2>();
        let description = units.iter().position(|unit| *unit == [0, 0])?;
        let rest = rest.get((description + 1) * 2..)?;
        let (paths, options) = rest.split_at_checked(u16::from_le_bytes(*size).into())?;
        Some(Self { path: file_path(paths)?, options })
    }

    fn starts(&self, file: &str) -> bool {
        let Some(before) = file.len().checked_sub(self.path.len()) else {
            return false;
        };
        file.get(before..).is_some_and(|end| {
            let own = end.eq_ignore_ascii_case(&self.path);
            own && (before == 0 || file.as_bytes().get(before - 1) == Some(&b'/'))
        })
    }
}

/// The file that a device path names, with `/` as separator and no leading `/`.
fn file_path(mut nodes: &[u8]) -> Option<String> {
    loop {
        let (&[kind, subtype, l0, l1], _) = nodes.split_first_chunk()?;
        if kind == END {
            return None;
        }
        let size = usize::from(u16::from_le_bytes([l0, l1]));
        let content = nodes.get(4..size)?;
        if [kind, subtype] == FILE_PATH {
            let path = text(content)?.replace('\\', "/");
            return Some(path.trim_start_matches('/').to_owned()).filter(|path| !path.is_empty());
        }
        nodes = nodes.get(size..)?;
    }
}

/// Whether shim reads the options as the name of the program to start (shim, load-options.c,
/// `parse_load_options`).
pub(super) fn count_for_shim(options: &[u8]) -> bool {
    options.len().is_multiple_of(2) && options.get(..2).is_some_and(|first| first != [0, 0])
}

/// How systemd-stub interprets the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StubOptions {
    /// There are no options, or they are not text.
    None,
    /// The number of a profile (0 if not given) and the text after it.
    Text { profile: u32, line: String },
    /// Text that is not UTF-16.
    Garbled,
}

/// How stubs from 257 on interpret the options (systemd, stub.c, `process_arguments`).
pub(super) fn for_stub(options: Option<&[u8]>) -> StubOptions {
    match for_stub_252(options) {
        StubOptions::Text { line, .. } if line.chars().any(|c| c <= '\x1f') => StubOptions::None,
        StubOptions::Text { line, .. } => match profile_and_rest(&line) {
            Some((profile, rest)) => StubOptions::Text { profile, line: rest.to_owned() },
            None => StubOptions::Text { profile: 0, line },
        },
        other => other,
    }
}

/// How stub 252, which does not support profiles, interprets the options: only the first character
/// determines whether they are text.
pub(super) fn for_stub_252(options: Option<&[u8]>) -> StubOptions {
    let Some(options) = options.filter(|options| options.len() >= 2) else {
        return StubOptions::None;
    };
    match text(options) {
        Some(line) if line.starts_with(|c| c > '\x1f') => StubOptions::Text { profile: 0, line },
        Some(_) => StubOptions::None,
        None => StubOptions::Garbled,
    }
}

/// `@`, a number, and one space or the end.
fn profile_and_rest(line: &str) -> Option<(u32, &str)> {
    let rest = line.strip_prefix('@')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = rest.split_at_checked(digits)?;
    let number = number.parse().ok()?;
    if rest.is_empty() {
        return Some((number, ""));
    }
    Some((number, rest.strip_prefix(' ')?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    fn entry(attributes: u32, path: &str, options: &[u8]) -> Vec<u8> {
        let path = wide(&format!("{path}\0"));
        let mut nodes = vec![1, 1, 6, 0, 9, 9];
        nodes.extend([4, 4]);
        nodes.extend(u16::try_from(path.len() + 4).unwrap().to_le_bytes());
        nodes.extend(path);
        nodes.extend([0x7f, 0xff, 4, 0]);
        let mut entry = attributes.to_le_bytes().to_vec();
        entry.extend(u16::try_from(nodes.len()).unwrap().to_le_bytes());
        entry.extend(wide("name\0"));
        entry.extend(nodes);
        entry.extend(options);
        entry
    }

    fn machine(order: &[u8], entries: &[(&str, Vec<u8>)]) -> PlatformState {
        let order = PlatformState::new().with_variable("BootOrder", Guid::GLOBAL, 7, order);
        entries.iter().fold(order, |state, (name, entry)| {
            state.with_variable(*name, Guid::GLOBAL, 7, entry.clone())
        })
    }

    #[test]
    fn the_first_active_entry_of_the_order_that_names_the_file_counts() {
        let uki = "\\EFI\\Linux\\uki.efi";
        let machine = machine(
            &[1, 0, 2, 0, 10, 0, 3, 0],
            &[
                ("Boot0001", entry(1, "\\EFI\\other.efi", b"other")),
                ("Boot0002", entry(0, uki, b"inactive")),
                ("Boot0003", entry(1, uki, b"late")),
                ("Boot000A", entry(1, uki, b"mine")),
            ],
        );
        let found = |file| of_file(&machine, file);
        assert_eq!(found("EFI/Linux/UKI.efi"), Some(b"mine".to_vec()));
        assert_eq!(found("boot/efi/EFI/Linux/uki.efi"), Some(b"mine".to_vec()));
        assert_eq!(found("xEFI/Linux/uki.efi"), None);
        assert_eq!(found("uki.efi"), None);
        let next = machine.clone();
        let next = next.with_variable("BootNext", Guid::GLOBAL, 7, [3, 0]);
        assert_eq!(of_file(&next, "EFI/Linux/uki.efi"), Some(b"late".to_vec()));
    }

    #[test]
    fn entries_that_are_cut_off_are_passed_over() {
        let whole = entry(1, "\\a.efi", b"");
        for end in 0..whole.len() {
            let machine = machine(&[1, 0], &[("Boot0001", whole[..end].to_vec())]);
            assert_eq!(of_file(&machine, "a.efi"), None);
        }
    }

    #[test]
    fn the_stub_takes_a_profile_and_text_from_its_options() {
        let of = |text: &str| for_stub(Some(&wide(text)));
        let text = |profile, line: &str| StubOptions::Text { profile, line: line.to_owned() };
        assert_eq!(of("a=1 b\0rest\n"), text(0, "a=1 b"));
        assert_eq!(of("@2"), text(2, ""));
        assert_eq!(of("@2  a"), text(2, " a"));
        assert_eq!(of("@2a"), text(0, "@2a"));
        assert_eq!(of("@"), text(0, "@"));
        assert_eq!(of("@99999999999 a"), text(0, "@99999999999 a"));
        assert_eq!(of("a\tb"), StubOptions::None);
        assert_eq!(for_stub(Some(b"a")), StubOptions::None);
        assert_eq!(for_stub(None), StubOptions::None);
        assert_eq!(for_stub(Some(&[0, 0xd8])), StubOptions::Garbled);
        let old = for_stub_252(Some(&wide("@2 a\t")));
        assert_eq!(old, text(0, "@2 a\t"));
        assert_eq!(for_stub_252(Some(&wide("\ta"))), StubOptions::None);
    }

    #[test]
    fn shim_passes_over_what_is_no_text() {
        assert!(count_for_shim(&wide("\\fwupd.efi")));
        for options in [&b"abc"[..], &[0, 0, 1, 1], &[]] {
            assert!(!count_for_shim(options));
        }
    }
}
