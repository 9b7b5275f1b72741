use std::io::Read;
use std::{fs, io};

use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;
use tec_core::reference::{BootImage, PcrComputer};

use super::testing::{PeBuilder, application, debian_chain};
use super::*;
use crate::event_log::Bank;

const SHIM: &str = "usr/lib/shim/shimx64.efi.signed";
const GRUB: &str = "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed";
const KERNEL: &str = "boot/vmlinuz-6.12.0-amd64";

fn digest(file: &[u8]) -> Result<Sha256Digest, PeError> {
    PeFile::read(file, &[]).map(|file| file.authenticode())
}

/// The algorithm of the specification on a file in memory, step by step, with no regard to speed.
fn slow_digest(file: &[u8]) -> Sha256Digest {
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([file[at], file[at + 1]]));
    let u32_at = |at: usize| u16_at(at) + (u16_at(at + 2) << 16);
    let pe = u32_at(0x3c);
    let optional = pe + 24;
    let entry = optional + 112 + 32;
    let headers = u32_at(optional + 60);
    let mut hasher = Sha256::new()
        .chain_update(&file[..optional + 64])
        .chain_update(&file[optional + 68..entry])
        .chain_update(&file[entry + 8..headers]);
    let table = optional + u16_at(pe + 20);
    let mut sections: Vec<(usize, usize)> = (0..u16_at(pe + 6))
        .map(|n| (u32_at(table + n * 40 + 20), u32_at(table + n * 40 + 16)))
        .filter(|(_, size)| *size > 0)
        .collect();
    sections.sort_unstable();
    let mut sum = headers;
    for (start, size) in sections {
        hasher.update(&file[start..start + size]);
        sum += size;
    }
    hasher.update(&file[sum..file.len() - u32_at(entry + 4)]);
    Sha256Digest::new(hasher.finalize().into())
}

fn patch(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

// Offsets of PeBuilder: PE header 0x80, optional header 0x98, section table 0x188.
const SECTION_COUNT: usize = 0x86;
const CERTIFICATE_ENTRY: usize = 0x98 + 112 + 32;
const SECTIONS: usize = 0x188;

fn raw_size_of(section: usize) -> usize {
    SECTIONS + section * 40 + 16
}

fn raw_start_of(section: usize) -> usize {
    SECTIONS + section * 40 + 20
}

#[test]
fn the_digest_leaves_out_checksum_directory_entry_and_certificates() {
    let builder = PeBuilder::new()
        .section(".text", vec![1; 700])
        .section(".data", vec![2; 10])
        .trailer(vec![3; 24]);
    let unsigned = builder.build();
    let signed = builder.signed().build();
    assert!(signed.len() > unsigned.len());
    let expected = digest(&unsigned).unwrap();
    assert_eq!(expected, slow_digest(&unsigned));
    assert_eq!(digest(&signed).unwrap(), expected);
    assert_eq!(slow_digest(&signed), expected);

    let mut checksum = signed.clone();
    patch(&mut checksum, 0x98 + 64, &[9; 4]);
    assert_eq!(digest(&checksum).unwrap(), expected);
    let mut changed = signed;
    changed[1025] ^= 1;
    assert_ne!(digest(&changed).unwrap(), expected);
}

#[test]
fn sections_out_of_order_and_gaps_are_hashed_as_the_specification_says() {
    let file = PeBuilder::new()
        .section(".a", vec![1; 512])
        .section(".b", vec![2; 1024])
        .section(".c", vec![3; 512])
        .trailer(vec![4; 100])
        .build();
    // Section table out of order.
    let mut swapped = file.clone();
    let (a, b) = (SECTIONS, SECTIONS + 40);
    let first: Vec<u8> = swapped[a..b].to_vec();
    swapped.copy_within(b..b + 40, a);
    patch(&mut swapped, b, &first);
    assert_eq!(digest(&swapped).unwrap(), slow_digest(&swapped));

    // A gap: the second section shrinks, so half of it belongs to nothing.
    let mut gap = file.clone();
    patch(&mut gap, raw_size_of(1), &512_u32.to_le_bytes());
    assert_eq!(digest(&gap).unwrap(), slow_digest(&gap));
    assert_ne!(digest(&gap).unwrap(), digest(&file).unwrap());

    // The same with nothing after the last section.
    gap.truncate(512 * 6);
    assert_eq!(digest(&gap).unwrap(), slow_digest(&gap));
}

/// Returns one byte and as many as requested, alternately.
struct Dribble<'a>(&'a [u8], usize);

impl Read for Dribble<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 += 1;
        if self.1.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let most = if self.1.is_multiple_of(2) { 1 } else { 70_000 };
        let end = most.min(buffer.len());
        self.0.read(&mut buffer[..end])
    }
}

#[test]
fn files_larger_than_the_buffer_are_streamed() {
    let file = PeBuilder::new()
        .section(".text", vec![7; 700_000])
        .section(".sbat", "sbat,1,SBAT Version,sbat,1,url\n")
        .trailer(vec![8; 300_000])
        .signed()
        .build();
    let read = PeFile::read(Dribble(&file, 0), &[".sbat"]).unwrap();
    assert_eq!(read.authenticode(), slow_digest(&file));
    assert_eq!(read.size(), file.len() as u64);
    assert_eq!(read.section(".sbat").unwrap(), b"sbat,1,SBAT Version,sbat,1,url\n");
    assert_eq!(read.section(".text"), None);
    read.check_signatures(SignaturePresence::Required).unwrap();
}

#[test]
fn a_read_error_says_how_far_reading_got() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let file = application("x");
    let error = PeFile::read(file.as_slice().chain(Failing), &[]).unwrap_err();
    let end = file.len() as u64;
    assert!(matches!(error, PeError::Read { offset, .. } if offset == end));
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let file =
        PeBuilder::new().section(".text", vec![1; 512]).section(".sbat", "a").signed().build();
    assert!(digest(&file).is_ok());
    for end in 0..file.len() {
        let error = PeFile::read(&file[..end], &[".sbat"]).unwrap_err();
        assert!(
            matches!(error, PeError::Truncated { offset, .. } if offset == end as u64),
            "{end}: {error}"
        );
    }
}

#[test]
fn what_is_no_pe_file_is_refused() {
    let magic = |file: &[u8]| match digest(file).unwrap_err() {
        PeError::Magic { offset, .. } => offset,
        other => panic!("{other}"),
    };
    assert_eq!(magic(b"\x7fELF and so on"), 0);
    let mut file = application("x");
    file[0x98] = 0;
    assert_eq!(magic(&file), 0x98);
    file[0x80] = b'L';
    assert_eq!(magic(&file), 0x80);
    patch(&mut file, 0x3c, &0x20_u32.to_le_bytes());
    assert!(matches!(digest(&file), Err(PeError::Header { offset: 0x3c, value: 0x20, .. })));
    patch(&mut file, 0x3c, &u32::MAX.to_le_bytes());
    assert!(matches!(digest(&file), Err(PeError::Truncated { .. })));
}

#[test]
fn section_counts_beyond_reason_are_refused() {
    for count in [0_u16, 513, 65535] {
        let mut file = application("x");
        patch(&mut file, SECTION_COUNT, &count.to_le_bytes());
        let error = digest(&file).unwrap_err();
        assert!(
            matches!(error, PeError::Header { value, .. } if value == u64::from(count)),
            "{error}"
        );
    }
}

#[test]
fn sections_that_overlap_or_lie_outside_are_refused() {
    let file = PeBuilder::new().section(".a", vec![1; 512]).section(".b", vec![2; 512]).build();
    let with = |at: usize, value: u32| {
        let mut file = file.clone();
        patch(&mut file, at, &value.to_le_bytes());
        digest(&file).unwrap_err()
    };
    let overlap = with(raw_start_of(1), 600);
    assert!(
        matches!(&overlap, PeError::Overlap { section, offset: 600, end: 1024 } if section == ".b")
    );
    // Over the headers.
    assert!(matches!(with(raw_start_of(0), 0), PeError::Overlap { offset: 0, .. }));
    // Past the end of the file, and past the end of what 32 bits can say.
    assert!(matches!(with(raw_size_of(1), 513), PeError::Truncated { needed: 1537, .. }));
    assert!(matches!(with(raw_size_of(1), u32::MAX), PeError::TooLarge(_)));
    assert!(matches!(with(raw_start_of(1), u32::MAX), PeError::Gap { .. }));
    // Headers that end before the section table does, or beyond the limit.
    assert!(matches!(with(0x98 + 60, 0x190), PeError::Header { .. }));
    assert!(matches!(with(0x98 + 60, u32::MAX), PeError::Header { .. }));
}

#[test]
fn the_certificate_table_must_be_the_end_of_the_file() {
    let file = application("x");
    let refused = |file: &[u8]| matches!(digest(file), Err(PeError::CertificateTable { .. }));
    let mut longer = file.clone();
    longer.extend([0; 8]);
    assert!(refused(&longer));

    let with = |offset: u32, size: u32| {
        let mut file = file.clone();
        patch(&mut file, CERTIFICATE_ENTRY, &offset.to_le_bytes());
        patch(&mut file, CERTIFICATE_ENTRY + 4, &size.to_le_bytes());
        file
    };
    assert!(refused(&with(0, 8)));
    assert!(refused(&with(8, 0)));
    assert!(refused(&with(0x200, 512)));
    assert!(refused(&with(u32::MAX, u32::MAX)));
    assert!(matches!(digest(&with(u32::MAX, 8)), Err(PeError::Truncated { .. })));
    // The directory may not be there at all.
    let mut few = file.clone();
    patch(&mut few, 0x98 + 108, &4_u32.to_le_bytes());
    assert!(matches!(digest(&few), Err(PeError::Header { value: 4, .. })));
}

#[test]
fn sections_to_keep_are_unique_and_small() {
    let twice = PeBuilder::new().section(".sbat", "a").section(".sbat", "b");
    assert!(matches!(
        PeFile::read(twice.build().as_slice(), &[".sbat"]),
        Err(PeError::RepeatedSection { .. })
    ));
    let large = PeBuilder::new().section(".sbat", vec![1; 70_000]).build();
    assert!(PeFile::read(large.as_slice(), &[]).is_ok());
    assert!(matches!(
        PeFile::read(large.as_slice(), &[".sbat"]),
        Err(PeError::SectionTooLarge { size: 70_000, .. })
    ));
}

#[test]
fn signatures_must_sign_the_file() {
    let plain = PeBuilder::new().section(".text", "code");
    let read = |builder: &PeBuilder| PeFile::read(builder.build().as_slice(), &[]).unwrap();

    let unsigned = read(&plain);
    unsigned.check_signatures(SignaturePresence::Optional).unwrap();
    assert_eq!(
        unsigned.check_signatures(SignaturePresence::Required),
        Err(SignatureError::Unsigned)
    );

    let dual = read(&plain.clone().signed().signed());
    dual.check_signatures(SignaturePresence::Required).unwrap();
    let computed = dual.authenticode();
    assert_eq!(
        dual.signed_digests().unwrap(),
        [const { SignedDigest::Sha2 }; 2]
            .map(|sha2| sha2(Bank::Sha256, computed.as_bytes().to_vec()))
    );

    // One that fits does not make up for one that does not.
    let other = read(&plain.signed().signed_for([5; 32]));
    for presence in [SignaturePresence::Optional, SignaturePresence::Required] {
        assert_eq!(
            other.check_signatures(presence),
            Err(SignatureError::Mismatch {
                computed: other.authenticode().to_string(),
                signed: "05".repeat(32),
            })
        );
    }
}

#[test]
fn malformed_certificate_tables_are_refused() {
    let file = PeBuilder::new().section(".text", "code").signed().build();
    let start = file.len() - {
        let size = &file[CERTIFICATE_ENTRY + 4..CERTIFICATE_ENTRY + 8];
        u32::from_le_bytes(size.try_into().unwrap()) as usize
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut file = file.clone();
        patch(&mut file, start + at, bytes);
        PeFile::read(file.as_slice(), &[]).unwrap().signed_digests()
    };
    for length in [0_u32, 7, 100_000, u32::MAX] {
        assert_eq!(
            with(0, &length.to_le_bytes()),
            Err(SignatureError::Entry { offset: 0, length })
        );
    }
    // Not DER; lengths beyond the content; indefinite length.
    for bytes in [&[0x31_u8][..], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 0x80]] {
        assert!(matches!(with(8, bytes), Err(SignatureError::Content { offset: 0, .. })));
    }
    // Another certificate type is no signature that could be compared.
    assert!(matches!(with(6, &[1]).unwrap().as_slice(), [SignedDigest::Other(_)]));
    // Every byte of the table changed: never a panic.
    for at in 0..file.len() - start {
        for value in [0, 0x30, 0x80, 0xff] {
            let _ = with(at, &[value]);
        }
    }
}

fn image_of(paths: &[&str]) -> MemoryImage {
    let mut image = MemoryImage::new();
    for path in paths {
        image.insert(*path, path.as_bytes());
    }
    image
}

#[test]
fn boot_files_are_found_in_every_layout() {
    let layouts: [(&[&str], &str, &str, &str); 6] = [
        (
            &[
                "usr/lib/efi/shim/16.1-5/EFI/fedora/shimx64.efi",
                "usr/lib/efi/shim/16.1-5/EFI/BOOT/BOOTX64.EFI",
                "usr/lib/efi/grub2/2.12-40/EFI/fedora/grubx64.efi",
                "usr/lib/modules/6.17/vmlinuz",
                "usr/lib/modules/6.17/kernel/vmlinuz",
                "boot/vmlinuz-6.17",
            ],
            "usr/lib/efi/shim/16.1-5/EFI/fedora/shimx64.efi",
            "usr/lib/efi/grub2/2.12-40/EFI/fedora/grubx64.efi",
            "usr/lib/modules/6.17/vmlinuz",
        ),
        (
            &[
                "usr/lib/bootupd/updates/EFI/fedora/shimx64.efi",
                "usr/lib/bootupd/updates/EFI/fedora/grubx64.efi",
                "usr/lib/bootupd/updates/EFI/fedora/mmx64.efi",
                "usr/lib/modules/6.16/vmlinuz",
            ],
            "usr/lib/bootupd/updates/EFI/fedora/shimx64.efi",
            "usr/lib/bootupd/updates/EFI/fedora/grubx64.efi",
            "usr/lib/modules/6.16/vmlinuz",
        ),
        (&[SHIM, "usr/lib/shim/shimx64.efi", GRUB, KERNEL, "vmlinuz"], SHIM, GRUB, KERNEL),
        (
            &["EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/grubx64.efi", "vmlinuz"],
            "EFI/BOOT/BOOTX64.EFI",
            "EFI/BOOT/grubx64.efi",
            "vmlinuz",
        ),
        (
            &[
                "EFI/BOOT/BOOTX64.EFI",
                "EFI/BOOT/fbx64.efi",
                "EFI/debian/shimx64.efi",
                "EFI/debian/grubx64.efi",
                "boot/vmlinuz-6.1",
            ],
            "EFI/debian/shimx64.efi",
            "EFI/debian/grubx64.efi",
            "boot/vmlinuz-6.1",
        ),
        (
            &[
                "boot/efi/EFI/debian/SHIMX64.EFI",
                "boot/efi/EFI/debian/GRUBX64.EFI",
                "boot/vmlinuz-6.1",
            ],
            "boot/efi/EFI/debian/SHIMX64.EFI",
            "boot/efi/EFI/debian/GRUBX64.EFI",
            "boot/vmlinuz-6.1",
        ),
    ];
    for (paths, shim, grub, kernel) in layouts {
        let found = find_boot_files(&image_of(paths)).unwrap();
        assert_eq!((found.shim.as_str(), found.grub.as_str()), (shim, grub));
        assert_eq!(found.kernels, [kernel]);
    }
}

#[test]
fn missing_and_ambiguous_loaders_are_told() {
    let error = |paths: &[&str]| find_boot_files(&image_of(paths)).unwrap_err();
    assert!(matches!(error(&["vmlinuz"]), FindError::Missing(BootComponent::Shim)));
    assert!(matches!(
        error(&["EFI/BOOT/BOOTX64.EFI", "EFI/Linux/uki.efi"]),
        FindError::Missing(BootComponent::Grub)
    ));
    let both = [
        "EFI/debian/shimx64.efi",
        "EFI/debian/grubx64.efi",
        "EFI/fedora/shimx64.efi",
        "EFI/fedora/grubx64.efi",
    ];
    let two = error(&both);
    assert!(matches!(
        two,
        FindError::Ambiguous { component: BootComponent::Shim, candidates } if candidates.len() == 2
    ));
    let copies = both.iter().fold(MemoryImage::new(), |image, path| image.with(*path, *b"same"));
    assert_eq!(find_boot_files(&copies).unwrap().grub, "EFI/debian/grubx64.efi");
}

#[test]
fn a_directory_is_the_same_image_as_its_files_in_memory() {
    let memory = debian_chain("2.12");
    let root = tempfile::tempdir().unwrap();
    for path in memory.files("").unwrap() {
        let target = root.path().join(&path);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, memory.content(&path).unwrap()).unwrap();
    }
    let directory = DirectoryImage::open(root.path()).unwrap();
    assert_eq!(directory.files("").unwrap(), memory.files("").unwrap());
    assert_eq!(directory.files("usr/lib/shim").unwrap(), [SHIM]);
    assert_eq!(directory.files("none").unwrap(), Vec::<String>::new());
    let on = ChainComputer::new(SecureBoot::On);
    assert_eq!(on.compute(&directory).unwrap(), on.compute(&memory).unwrap());
    let size = memory.content(SHIM).unwrap().len() as u64;
    assert_eq!(directory.open(SHIM).unwrap().size(), Some(size));
    assert_eq!(memory.open(SHIM).unwrap().size(), Some(size));
}

#[cfg(unix)]
#[test]
fn links_are_followed_as_if_the_directory_were_the_root() {
    use std::os::unix::fs::symlink;

    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "s").unwrap();
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("real/boot")).unwrap();
    fs::write(at("real/boot/vmlinuz-1"), "k").unwrap();
    symlink("real/boot", at("boot")).unwrap();
    symlink("real/boot/vmlinuz-1", at("vmlinuz")).unwrap();
    symlink("/boot/vmlinuz-1", at("absolute")).unwrap();
    symlink("../../../../boot/vmlinuz-1", at("real/above")).unwrap();
    symlink(outside.path().join("secret"), at("escape")).unwrap();
    symlink(outside.path(), at("escapes")).unwrap();
    symlink("loop", at("loop")).unwrap();

    let image = DirectoryImage::open(root.path()).unwrap();
    let refused = |path: &str| image.open(path).map(|_| ()).unwrap_err().kind();
    assert_eq!(image.files("boot").unwrap(), ["boot/vmlinuz-1"]);
    for path in ["boot/vmlinuz-1", "vmlinuz", "absolute", "real/above"] {
        let mut content = String::new();
        let mut file = image.open(path).unwrap();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "k", "{path}");
    }
    assert_eq!(refused("escape"), io::ErrorKind::NotFound);
    assert_eq!(refused("escapes/secret"), io::ErrorKind::NotFound);
    assert_eq!(image.files("escapes").unwrap(), Vec::<String>::new());
    assert_eq!(refused("../secret"), io::ErrorKind::InvalidInput);
    assert_eq!(refused("/etc/passwd"), io::ErrorKind::InvalidInput);
    assert_eq!(refused("real"), io::ErrorKind::InvalidInput);
    assert_eq!(refused("loop"), io::ErrorKind::InvalidInput);
    let files = image.files("").unwrap();
    assert!(!files.iter().any(|file| file.contains("secret")));
    assert!(DirectoryImage::open(at("vmlinuz")).is_err());
}

proptest! {
    #[test]
    fn a_changed_header_never_panics_and_agrees_with_the_specification(
        at in 0..0x200_usize,
        value in any::<u8>(),
    ) {
        let mut file = PeBuilder::new()
            .section(".a", vec![1; 600])
            .section(".sbat", "sbat,1,a,b,1,c\n")
            .trailer(vec![4; 64])
            .signed()
            .build();
        file[at] = value;
        if let Ok(read) = PeFile::read(file.as_slice(), &[".sbat"]) {
            prop_assert_eq!(read.authenticode(), slow_digest(&file));
            let _ = read.check_signatures(SignaturePresence::Required);
            let _ = read.section(".sbat").map(Sbat::parse);
        }
    }
}
