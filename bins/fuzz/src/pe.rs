//! PE files: the streaming digest compared with one computed over the whole file in memory.

mod hostile;

use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::reference::PcrComputer as _;
use tec_tpm::compute::testing::{PeBuilder, application, debian_chain, grub};
use tec_tpm::compute::{
    ChainComputer, PeFile, Sbat, SecureBoot, SignatureError, SignaturePresence, SignedDigest,
};

use crate::slow::Slow;
use crate::{Seed, bytes};

const KEEP: [&str; 2] = [".sbat", ".text"];
/// Largest section that is kept in memory, as documented.
const MAX_KEPT: usize = 64 << 10;
/// Maximum number of entries of a certificate table that are read.
const MAX_SIGNATURES: usize = 16;

/// However a file is split into reads, its digest is that of the specification's own procedure, and neither
/// the checksum nor signatures change it.
pub(crate) fn pe(data: &[u8]) {
    let read = PeFile::read(data, &KEEP);
    let slowly = PeFile::read(Slow::new(data, 251), &KEEP);
    let Ok(file) = read else {
        let (one, other) = (read.err(), slowly.err());
        assert_eq!(one.map(|e| e.to_string()), other.map(|e| e.to_string()));
        return;
    };
    let slowly = slowly.expect("the same file, read in pieces");
    assert_eq!(slowly.authenticode(), file.authenticode());
    assert_eq!(slowly.size(), file.size());
    assert!(KEEP.iter().all(|name| slowly.section(name) == file.section(name)));
    assert_eq!(file.size(), data.len() as u64);
    assert_eq!(file.authenticode(), authenticode(data));
    check_blind_spots(data, &file);
    check_sections(data, &file);
    check_signatures(&file);
    check_chain(data, &file);
}

/// Offsets needed by the procedure. The file was accepted, so all of them are within it.
struct Layout {
    optional: usize,
    certificate_entry: usize,
}

impl Layout {
    fn of(data: &[u8]) -> Self {
        let optional = u32_at(data, 0x3c) + 24;
        let is_plus = u16_at(data, optional) == 0x20b;
        let directories = optional + if is_plus { 112 } else { 96 };
        Self { optional, certificate_entry: directories + 4 * 8 }
    }
}

fn u16_at(data: &[u8], at: usize) -> usize {
    bytes::u16_at(data, at).expect("a field of an accepted file")
}

fn u32_at(data: &[u8], at: usize) -> usize {
    bytes::u32_at(data, at).expect("a field of an accepted file")
}

/// "Windows Authenticode Portable Executable Signature Format", "Calculating the PE Image Hash",
/// step by step over the whole file.
fn authenticode(data: &[u8]) -> Sha256Digest {
    let layout = Layout::of(data);
    let (optional, entry) = (layout.optional, layout.certificate_entry);
    let part = |from: usize, to: usize| data.get(from..to).expect("a part of an accepted file");
    let headers = u32_at(data, optional + 60);
    let mut hasher = Sha256::new();
    hasher.update(part(0, optional + 64));
    hasher.update(part(optional + 68, entry));
    hasher.update(part(entry + 8, headers));
    let mut hashed = headers;
    let table = optional + u16_at(data, optional - 4);
    let mut sections: Vec<(usize, usize)> = (0..u16_at(data, optional - 18))
        .map(|number| table + number * 40)
        .map(|header| (u32_at(data, header + 20), u32_at(data, header + 16)))
        .filter(|(_, size)| *size > 0)
        .collect();
    sections.sort_unstable();
    for (start, size) in sections {
        hasher.update(part(start, start + size));
        hashed += size;
    }
    let certificates = u32_at(data, entry + 4);
    if data.len() > hashed + certificates {
        hasher.update(part(hashed, data.len() - certificates));
    }
    Sha256Digest::new(hasher.finalize().into())
}

fn check_blind_spots(data: &[u8], file: &PeFile) {
    let layout = Layout::of(data);
    let mut other = data.to_vec();
    for byte in other.iter_mut().skip(layout.optional + 64).take(4) {
        *byte = !*byte;
    }
    let certificates = u32_at(data, layout.certificate_entry + 4);
    let signed = data.len() - certificates;
    for byte in other.iter_mut().skip(signed) {
        *byte = !*byte;
    }
    let other = PeFile::read(other.as_slice(), &KEEP).expect("neither field is looked at");
    assert_eq!(other.authenticode(), file.authenticode());
}

fn check_sections(data: &[u8], file: &PeFile) {
    for name in KEEP {
        let Some(content) = file.section(name) else {
            continue;
        };
        assert!(content.len() <= MAX_KEPT);
        let found = content.is_empty() || data.windows(content.len()).any(|w| w == content);
        assert!(found, "a section is a part of the file");
    }
    if let Some(Ok(sbat)) = file.section(".sbat").map(Sbat::parse) {
        for entry in sbat.entries() {
            let first = sbat.component(&entry.component);
            assert_eq!(first.map(|e| &e.component), Some(&entry.component));
        }
    }
}

fn check_signatures(file: &PeFile) {
    let Ok(signed) = file.signed_digests() else {
        return;
    };
    assert!(signed.len() <= MAX_SIGNATURES);
    let digests = file.authenticode_digests();
    let sha2: Vec<_> = signed
        .iter()
        .filter_map(|digest| match digest {
            SignedDigest::Sha2(bank, digest) => Some((digests.get(*bank)?, digest)),
            _ => None,
        })
        .collect();
    let own = sha2.iter().all(|(computed, digest)| computed == digest);
    let optional = file.check_signatures(SignaturePresence::Optional);
    assert_eq!(optional.is_ok(), own);
    match file.check_signatures(SignaturePresence::Required) {
        Ok(()) => assert!(own && !sha2.is_empty()),
        Err(SignatureError::Unsigned) => assert!(sha2.is_empty()),
        Err(_) => assert!(!own),
    }
}

/// Uses the file in place of GRUB: if a prediction succeeds, the file's digest is part of it.
fn check_chain(data: &[u8], file: &PeFile) {
    if file.section(".sbat").is_none() {
        return;
    }
    let path = "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed";
    let image = debian_chain("2.12").with(path, data);
    let Ok(expected) = ChainComputer::new(SecureBoot::On).compute(&image) else {
        return;
    };
    let pcr4 = expected.pcr(PcrIndex::BOOT_MANAGER).expect("PCR 4 is computed");
    assert!(pcr4.is_consistent());
    assert!(pcr4.events.iter().any(|event| event.hash == file.authenticode()));
}

pub(crate) fn seeds() -> Vec<Seed> {
    let text = PeBuilder::new().section(".text", "code");
    let seeds = vec![
        Seed::new("grub", grub("2.12")),
        Seed::new("application", application("Linux")),
        Seed::new("unsigned", text.build()),
        Seed::new("trailer", text.clone().trailer(*b"appended").signed().build()),
        Seed::new("signed_twice", text.clone().signed().signed().build()),
        Seed::new("signed_for_another", text.signed_for([7; 32]).build()),
        Seed::new("gap", with_gap()),
    ];
    [seeds, hostile::seeds()].concat()
}

/// Moves the second section to an offset 512 bytes higher, which leaves a gap before it.
fn with_gap() -> Vec<u8> {
    let mut file = PeBuilder::new().section(".text", "code").section(".data", "data").build();
    let optional = u32_at(&file, 0x3c) + 24;
    let pointer = optional + u16_at(&file, optional - 4) + 40 + 20;
    let start = u32_at(&file, pointer);
    let moved = u32::try_from(start + 512).unwrap_or(0).to_le_bytes();
    file.splice(pointer..pointer + 4, moved);
    file.splice(start..start, [0x67; 512]);
    file
}
