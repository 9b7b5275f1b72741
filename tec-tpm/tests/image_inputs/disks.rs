//! Disks and FAT file systems, whole and hostile.

use std::io;
use std::io::Read as _;

use tec_core::reference::BootImage;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::input::{BootSource, DiskError, InputError, OpenImage};

use crate::build;
use crate::build::{OTHER, SYSTEM, put};

fn open(bytes: &[u8]) -> Result<OpenImage, InputError> {
    BootSource::new().read(bytes)
}

fn disk_error(bytes: &[u8]) -> DiskError {
    match open(bytes) {
        Err(InputError::Disk { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

fn fat_error(bytes: &[u8]) -> DiskError {
    match open(bytes) {
        Err(InputError::Fat { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// What reading a file fails with.
fn read_error(image: &OpenImage, path: &str) -> DiskError {
    let mut file = image.open(path).unwrap();
    let error = file.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Other);
    *error.into_inner().unwrap().downcast().unwrap()
}

/// A file system of 1 MiB with 12 bits an entry, and where its parts are.
struct Small {
    bytes: Vec<u8>,
    table: usize,
    cluster: usize,
}

impl Small {
    fn new(files: &MemoryImage) -> Self {
        let bytes = build::fat(files, 1 << 20);
        let u16_at = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let (table, cluster) = (u16_at(14) * 512, usize::from(bytes[13]) * 512);
        assert_eq!(u16_at(11), 512);
        assert!((bytes.len() / cluster) < 4085);
        Self { bytes, table, cluster }
    }

    /// Where the record with this short name is.
    fn record(&self, name: &[u8; 11]) -> usize {
        self.bytes.windows(11).position(|w| w == name).unwrap()
    }

    fn first_cluster(&self, name: &[u8; 11]) -> usize {
        let at = self.record(name) + 26;
        usize::from(u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    /// Sets the entry of a cluster, and returns its position.
    fn link(&mut self, cluster: usize, value: u16) -> u64 {
        let at = self.table + cluster + cluster / 2;
        let old = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
        let new = match cluster % 2 {
            0 => old & 0xf000 | value,
            _ => old & 0x000f | value << 4,
        };
        put(&mut self.bytes, at, &new.to_le_bytes());
        at as u64
    }
}

fn two_files() -> Small {
    let files = MemoryImage::new()
        .with("KERNEL.EFI", vec![1; 100_000])
        .with("OTHER.EFI", vec![2; 5000])
        .with("EFI/BOOT/BOOTX64.EFI", vec![3; 10]);
    Small::new(&files)
}

const KERNEL: &[u8; 11] = b"KERNEL  EFI";

#[test]
fn file_systems_of_all_widths_are_read() {
    let long = "A rather long name with blanks, öäü and 漢字.efi";
    let files = MemoryImage::new()
        .with("EFI/BOOT/BOOTX64.EFI", vec![1; 70_000])
        .with(format!("EFI/debian/{long}"), vec![2; 3])
        .with("EFI/debian/empty", vec![])
        .with("loader/entries/a.b.c.conf", vec![3; 513])
        .with("x".repeat(255), vec![4; 4096]);
    // 12, 16 and 32 bits an entry.
    for size in [1 << 20, 16 << 20, 48 << 20] {
        let image = open(&build::fat(&files, size)).unwrap();
        assert_eq!(image.files("").unwrap(), files.files("").unwrap());
        assert_eq!(image.files("EFI/debian").unwrap().len(), 2);
        for path in files.files("").unwrap() {
            assert_eq!(build::content(&image, &path), files.content(&path).unwrap());
        }
    }
}

#[test]
fn files_in_pieces_are_read_in_order() {
    let pieces: Vec<(Vec<u8>, Vec<u8>)> =
        (0..40).map(|n| (vec![n; 3000 + usize::from(n) * 200], vec![n ^ 0xff; 5000])).collect();
    let borrowed: Vec<_> = pieces.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    let image = open(&build::fragmented(1 << 20, &borrowed)).unwrap();
    let (one, two): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
    assert_eq!(build::content(&image, "one"), one.concat());
    assert_eq!(build::content(&image, "two"), two.concat());
}

#[test]
fn the_system_partition_is_found_or_chosen() {
    let first = build::fat(&MemoryImage::new().with("one", vec![1]), 1 << 20);
    let second = build::fat(&MemoryImage::new().with("two", vec![2]), 1 << 20);
    let only = build::gpt(512, &[(OTHER, &first), (SYSTEM, &second)]);
    assert_eq!(open(&only).unwrap().files("").unwrap(), ["two"]);
    let other = BootSource::new().with_partition(1).read(only.as_slice());
    assert_eq!(other.unwrap().files("").unwrap(), ["one"]);
    assert!(matches!(
        BootSource::new().with_partition(3).read(only.as_slice()),
        Err(InputError::Disk {
            source: DiskError::NoSuchPartition { number: 3, candidates },
            ..
        }) if candidates.len() == 2
    ));

    for disk in [
        build::gpt(512, &[(SYSTEM, &first), (SYSTEM, &second)]),
        build::mbr(&[(0xef, &first), (0xef, &second)]),
        build::mbr(&[(0x0c, &first), (0x06, &second)]),
    ] {
        assert!(matches!(
            disk_error(&disk),
            DiskError::SeveralSystemPartitions { candidates }
                if candidates[0].range.start == 64 * 512 && candidates[1].number == 2
        ));
        let chosen = BootSource::new().with_partition(2).read(disk.as_slice());
        assert_eq!(chosen.unwrap().files("").unwrap(), ["two"]);
    }
    for disk in [build::gpt(512, &[(OTHER, &first)]), build::mbr(&[(0x83, &first)])] {
        assert!(matches!(disk_error(&disk), DiskError::NoSystemPartition));
    }
}

#[test]
fn partition_tables_that_lie_are_refused() {
    let fat = build::fat(&MemoryImage::new(), 1 << 20);
    let good = build::gpt(512, &[(SYSTEM, &fat)]);
    let changed = |at: usize, bytes: &[u8]| {
        let mut disk = good.clone();
        put(&mut disk, at, bytes);
        build::sign_gpt(&mut disk, 512);
        disk_error(&disk)
    };
    let field = |error| match error {
        DiskError::Field { offset, .. } => offset,
        other => panic!("{other}"),
    };
    assert_eq!(field(changed(512 + 12, &[93])), 512 + 12);
    assert_eq!(field(changed(512 + 24, &[2])), 512 + 24);
    assert_eq!(field(changed(512 + 72, &[0xff; 8])), 512 + 72);
    assert_eq!(field(changed(512 + 80, &[0xff; 4])), 512 + 80);
    assert_eq!(field(changed(512 + 84, &[0])), 512 + 84);
    let beyond = changed(512 + 72, &[0, 0, 0, 1]);
    assert!(matches!(beyond, DiskError::Truncated { offset: 0x2_0000_0000, .. }));

    let mut unsigned = good.clone();
    unsigned[512 + 80] ^= 1;
    assert!(matches!(disk_error(&unsigned), DiskError::Checksum { offset: 512, .. }));
    let mut entries = good.clone();
    entries[1024 + 5 * 128] ^= 1;
    assert!(matches!(disk_error(&entries), DiskError::Checksum { offset: 1024, .. }));
    assert_eq!(field(disk_error(&good[..good.len() - 512])), 1024 + 32);

    let mut mbr = build::mbr(&[(0xef, &fat)]);
    mbr[446 + 12..446 + 16].fill(0xff);
    assert_eq!(field(disk_error(&mbr)), 446 + 8);
    mbr[446 + 4] = 0xee;
    assert_eq!(field(disk_error(&mbr)), 446 + 4);
}

#[test]
fn boot_sectors_that_lie_are_refused() {
    let fat = two_files().bytes;
    let start = 64 * 512;
    let changed = |at: usize, bytes: &[u8]| {
        let mut fat = fat.clone();
        put(&mut fat, at, bytes);
        fat_error(&build::gpt(512, &[(SYSTEM, &fat)]))
    };
    for (at, bytes) in [
        (11, &[0, 0][..]),
        (13, &[3]),
        (14, &[0, 0]),
        (16, &[0]),
        (17, &[0xff, 0xff]),
        (17, &[0, 0]),
        (22, &[1, 0]),
        (510, &[0]),
    ] {
        let error = changed(at, bytes);
        assert!(matches!(error, DiskError::Field { .. }), "{at}: {error}");
    }
    assert!(matches!(
        changed(19, &[0xff, 0xff]),
        DiskError::Truncated { offset, .. } if offset == start
    ));
    assert!(matches!(fat_error(&fat[..fat.len() - 1]), DiskError::Truncated { offset: 0, .. }));
}

#[test]
fn chains_that_lead_astray_are_refused() {
    let whole = two_files();
    let first = whole.first_cluster(KERNEL);
    assert!(100_000 / whole.cluster > 4, "the file has some clusters");
    let changed = |value: u16| {
        let mut image = two_files();
        let at = image.link(first + 2, value);
        let image = open(&image.bytes).unwrap();
        assert_eq!(build::content(&image, "OTHER.EFI"), [2; 5000]);
        (at, read_error(&image, "KERNEL.EFI"))
    };
    // Free, reserved, beyond the end, bad, and back to where it was.
    let back = u16::try_from(first + 1).unwrap();
    for value in [0, 1, 0xff0, 0xff7, back] {
        let (at, error) = changed(value);
        assert!(
            matches!(error, DiskError::Cluster { cluster, offset }
                if cluster == u32::from(value) && (offset == at || value == back)),
            "{value}: {error}"
        );
    }
    let (at, error) = changed(0xfff);
    let missing = 100_000 - 3 * whole.cluster as u64;
    assert!(
        matches!(error, DiskError::Short { offset, missing: m } if offset == at && m == missing),
        "{error}"
    );

    for cluster in [1_u16, 0xff0] {
        let mut image = two_files();
        let at = image.record(KERNEL);
        put(&mut image.bytes, at + 26, &cluster.to_le_bytes());
        let error = read_error(&open(&image.bytes).unwrap(), "KERNEL.EFI");
        assert!(matches!(error, DiskError::Cluster { offset, .. } if offset == at as u64));
    }
    let mut image = two_files();
    let at = image.record(KERNEL);
    put(&mut image.bytes, at + 26, &[0, 0]);
    let error = read_error(&open(&image.bytes).unwrap(), "KERNEL.EFI");
    assert!(matches!(error, DiskError::Short { missing: 100_000, .. }));
}

#[test]
fn folders_that_lead_astray_are_refused() {
    let boot = b"BOOT       ";
    let mut shared = two_files();
    let efi = shared.first_cluster(b"EFI        ");
    let at = shared.record(boot);
    let efi = u16::try_from(efi).unwrap();
    put(&mut shared.bytes, at + 26, &efi.to_le_bytes());
    assert!(matches!(
        fat_error(&shared.bytes),
        DiskError::SharedFolder { offset, path } if offset == at as u64 && path == "EFI/BOOT"
    ));

    let mut endless = two_files();
    let folder = endless.first_cluster(boot);
    endless.link(folder, u16::try_from(folder).unwrap());
    assert!(matches!(fat_error(&endless.bytes), DiskError::Cluster { .. }));

    let mut nowhere = two_files();
    let at = nowhere.record(boot);
    put(&mut nowhere.bytes, at + 26, &[0, 0]);
    assert!(matches!(fat_error(&nowhere.bytes), DiskError::Cluster { cluster: 0, .. }));
}

#[test]
fn names_that_firmware_takes_for_the_same_are_refused() {
    let mut twice = two_files();
    let at = twice.record(b"OTHER   EFI");
    put(&mut twice.bytes, at, KERNEL);
    assert!(matches!(fat_error(&twice.bytes), DiskError::SameName { .. }));

    // A long name hides a short one that is the name of another file.
    let files = MemoryImage::new().with("KERNEL.EFI", vec![1]).with("something else.efi", vec![2]);
    let mut hidden = Small::new(&files);
    let at = hidden.record(b"SOMETH~1EFI");
    put(&mut hidden.bytes, at, KERNEL);
    let image = open(&hidden.bytes);
    assert!(matches!(image, Err(InputError::Fat { source: DiskError::SameName { .. }, .. })));

    // A name with a slash would be a path.
    let mut slash = two_files();
    let at = slash.record(KERNEL);
    put(&mut slash.bytes, at, b"../../Y EFI");
    assert!(matches!(
        fat_error(&slash.bytes),
        DiskError::Name { offset, .. } if offset == at as u64
    ));
}
