//! GRUB's modules: which ones an image has built in, and which others a module needs.

use std::collections::BTreeSet;

/// What the section `mods` begins with; then come 4 bytes, and as 8 bytes each the offset of the first
/// entry and the size of all. Observed: 2.06, 2.12 of Debian.
const MAGIC: &[u8] = b"mimg";
/// Type 4 and size 4 before the content of an entry.
const ENTRY: usize = 8;
/// Type of an entry that is a module.
const MODULE: u32 = 0;

/// Type of the entry with GRUB's own folder.
const PREFIX: u32 = 3;

/// What a GRUB image has in its section `mods`.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) names: BTreeSet<String>,
    /// The folder of its files, as a path without a slash at its beginning; empty if it names none.
    pub(super) prefix: String,
}

/// The modules in a section `mods`.
pub(super) fn built_in(section: &[u8]) -> Modules {
    let mut found = Modules::default();
    let list = if section.starts_with(MAGIC) { section } else { &[] };
    let (Some(first), Some(size)) = (long(list, 8), long(list, 16)) else {
        return found;
    };
    let mut rest = list.get(first..size.min(list.len())).unwrap_or_default();
    while let (Some(kind), Some(size)) = (word(rest, 0), word(rest, 4)) {
        let Some(content) = rest.get(ENTRY..size as usize) else {
            break;
        };
        if kind == MODULE {
            found.names.extend(part(content, b".modname").and_then(|name| texts(name).next()));
        } else if kind == PREFIX {
            let prefix = texts(content).next().unwrap_or_default();
            prefix.trim_start_matches('/').clone_into(&mut found.prefix);
        }
        rest = rest.get(size as usize..).unwrap_or_default();
    }
    found
}

/// The modules that a module needs.
pub(super) fn needs(module: &[u8]) -> Vec<String> {
    texts(part(module, b".moddeps").unwrap_or_default()).collect()
}

/// Texts that end with a NUL.
fn texts(bytes: &[u8]) -> impl Iterator<Item = String> {
    let texts = bytes.split(|byte| *byte == 0).filter(|text| !text.is_empty());
    texts.map(|text| text.escape_ascii().to_string())
}

/// A section of an ELF file with 64 bits (System V ABI, "ELF Header", "Section Header": offset of the
/// headers at 40, their number at 60, that of the names at 62; of each, 64 bytes long, the name at 0, the
/// offset at 24 and the size at 32).
fn part<'m>(module: &'m [u8], wanted: &[u8]) -> Option<&'m [u8]> {
    let headers = module.get(long(module, 40)?..)?;
    let counts = word(module, 60)?;
    let (count, names) = (counts & 0xffff, counts >> 16);
    let content = |header: &[u8]| {
        let (offset, size) = (long(header, 24)?, long(header, 32)?);
        module.get(offset..offset.checked_add(size)?)
    };
    let mut headers = headers.chunks_exact(64).take(count as usize);
    let names = content(headers.clone().nth(names as usize)?)?;
    let found = headers.find(|header| {
        let name = word(header, 0).and_then(|at| names.get(at as usize..));
        name.and_then(|name| name.split(|byte| *byte == 0).next()) == Some(wanted)
    });
    content(found?)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A module that needs no other.
    pub(in crate::compute) fn named(name: &str) -> Vec<u8> {
        module(&[(".modname", name.as_bytes())])
    }

    /// An ELF file with these sections, and one with their names.
    fn module(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut names = vec![0];
        let mut file = vec![0; 64];
        let mut headers = Vec::new();
        let mut push = |name: usize, at: usize, size: usize| {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&u32::try_from(name).unwrap().to_le_bytes());
            header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            headers.extend(header);
        };
        for (name, content) in sections {
            push(names.len(), file.len(), content.len());
            names.extend([name.as_bytes(), &[0]].concat());
            file.extend(*content);
        }
        push(0, file.len(), names.len());
        file.extend(names);
        let count = u16::try_from(sections.len()).unwrap();
        let start = file.len() as u64;
        file[40..48].copy_from_slice(&start.to_le_bytes());
        file[60..62].copy_from_slice(&(count + 1).to_le_bytes());
        file[62..64].copy_from_slice(&count.to_le_bytes());
        file.extend(headers);
        file
    }

    /// A section `mods`.
    pub(in crate::compute) fn list(modules: &[Vec<u8>], prefix: &str) -> Vec<u8> {
        let mut entries = Vec::new();
        let prefix = (PREFIX, prefix.as_bytes());
        for (kind, content) in modules.iter().map(|m| (MODULE, m.as_slice())).chain([prefix]) {
            entries.extend(kind.to_le_bytes());
            entries.extend(u32::try_from(content.len() + 8).unwrap().to_le_bytes());
            entries.extend(content);
        }
        let sizes = [24_u64.to_le_bytes(), (24 + entries.len() as u64).to_le_bytes()].concat();
        [b"mimg\0\0\0\0".as_slice(), &sizes, &entries].concat()
    }

    #[test]
    fn built_in_modules_and_needs_are_read() {
        let bli = module(&[(".modname", b"bli\0"), (".moddeps", b"part_gpt\0extcmd\0")]);
        assert_eq!(needs(&bli), ["part_gpt", "extcmd"]);
        let modules = [bli, module(&[(".text", b""), (".modname", b"gzio\0")])];
        let modules = list(&modules, "/EFI/fedora\0\0");
        let expected = ["bli", "gzio"].map(str::to_owned);
        let found = built_in(&modules);
        assert_eq!((found.names, found.prefix.as_str()), (expected.into(), "EFI/fedora"));
        for end in 0..modules.len() {
            assert!(built_in(&modules[..end]).names.len() <= 2);
        }
        assert!(built_in(b"").names.is_empty());
        assert!(needs(b"no module").is_empty());
    }

    #[test]
    #[ignore = "needs recorded-boots: set TEC_FIXTURES"]
    fn the_modules_of_a_real_image_are_those_that_grub_lists() {
        let files = std::path::PathBuf::from(std::env::var_os("TEC_FIXTURES").unwrap());
        let image = files.join("qemu/bookworm-sb-on/esp/EFI/BOOT/grubx64.efi");
        let image = std::fs::read(image).unwrap();
        let beginning = [MAGIC, &[0; 4], &24_u64.to_le_bytes()].concat();
        let section = image.windows(beginning.len()).position(|window| window == beginning);
        let real = built_in(&image[section.unwrap()..]).names;
        let boots = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boots");
        let listed = boots.join("bookworm-grub-it/grub/builtin-modules.txt");
        let listed = std::fs::read_to_string(listed).unwrap();
        assert_eq!(real, listed.split_whitespace().map(str::to_owned).collect());
    }
}
