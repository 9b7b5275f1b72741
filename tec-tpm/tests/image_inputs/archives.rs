//! Tar streams, whole and hostile.

use std::io;

use tec_core::reference::BootImage;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::input::{BootSource, InputError, LayerError, OpenImage, TarError, TreeError};

use crate::build;
use crate::build::Item::{File, Folder, HardLink, Link};
use crate::build::put;

fn open(bytes: &[u8]) -> Result<OpenImage, InputError> {
    BootSource::new().read(bytes)
}

fn layer_error(bytes: &[u8]) -> LayerError {
    match open(bytes) {
        Err(InputError::Tar { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

fn tar_error(bytes: &[u8]) -> TarError {
    match layer_error(bytes) {
        LayerError::Tar(source) => source,
        other => panic!("{other:?}"),
    }
}

/// Makes the checksum of the header at `at` right.
fn sign(tar: &mut [u8], at: usize) {
    tar[at + 148..at + 156].fill(b' ');
    let sum: u32 = tar[at..at + 512].iter().map(|byte| u32::from(*byte)).sum();
    put(tar, at + 148, format!("{sum:06o}\0 ").as_bytes());
}

/// A stream whose first header is changed.
fn changed(tar: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    put(&mut tar, at, bytes);
    sign(&mut tar, 0);
    tar
}

#[test]
fn links_long_names_and_later_entries_are_understood() {
    let long = format!("usr/lib/{}/file", "folder/".repeat(40));
    let tar = build::tar(&[
        Folder("./"),
        Folder("usr/"),
        File("usr/lib/a", b"old"),
        File(&long, b"long"),
        Link("lib", "usr/lib"),
        Link("absolute", "/lib/a"),
        Link("far", "../../../../usr/lib/a"),
        HardLink("usr/lib/hard", "usr/lib/a"),
        HardLink("./boot/vmlinuz-1", "usr/lib/b"),
    ]);
    assert!(matches!(
        layer_error(&tar),
        LayerError::Entry { source: TreeError::HardLink { target, .. }, .. }
            if target == "usr/lib/b"
    ));
    let tar = build::tar(&[
        File("usr/lib/a", b"old"),
        File(&long, b"long"),
        Link("lib", "usr/lib"),
        Link("absolute", "/lib/a"),
        Link("far", "../../../../usr/lib/a"),
        Link("none", "nowhere"),
        HardLink("boot/vmlinuz-1", "usr/lib/a"),
        File("usr/lib/a", b"new"),
    ]);
    for bytes in [tar.clone(), build::gzip(&tar), build::zstd(&tar)] {
        let image = open(&bytes).unwrap();
        assert_eq!(build::content(&image, &long), b"long");
        assert_eq!(build::content(&image, "boot/vmlinuz-1"), b"old");
        for path in ["usr/lib/a", "lib/a", "absolute", "far"] {
            assert_eq!(build::content(&image, path), b"new", "{path}");
        }
        let kind = |path: &str| image.open(path).map(|_| ()).unwrap_err().kind();
        assert_eq!(kind("none"), io::ErrorKind::NotFound);
        assert_eq!(kind("usr"), io::ErrorKind::InvalidInput);
        assert_eq!(kind("../usr/lib/a"), io::ErrorKind::InvalidInput);
        assert_eq!(image.files("lib").unwrap().len(), 2);
        assert!(image.files("none").unwrap().is_empty());
    }
}

#[test]
fn pax_records_are_understood() {
    let mut tar = tar::Builder::new(Vec::new());
    let records = [("path", "boot/vmlinuz-ü".as_bytes()), ("comment", b"x=y\n")];
    tar.append_pax_extensions(records).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(6);
    tar.append_data(&mut header, "short", &b"kernel"[..]).unwrap();
    tar.append_pax_extensions([("linkpath", &b"vmlinuz-\xc3\xbc"[..])]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    tar.append_link(&mut header, "boot/vmlinuz", "short").unwrap();
    let image = open(&tar.into_inner().unwrap()).unwrap();
    assert_eq!(build::content(&image, "boot/vmlinuz"), b"kernel");
    assert_eq!(image.files("").unwrap(), ["boot/vmlinuz", "boot/vmlinuz-ü"]);
}

#[test]
fn a_file_with_holes_is_listed_but_not_read() {
    let mut tar = tar::Builder::new(Vec::new());
    let records = [
        ("GNU.sparse.major", &b"1"[..]),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"vmlinuz"),
        ("GNU.sparse.realsize", b"1000000"),
    ];
    tar.append_pax_extensions(records).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(512);
    tar.append_data(&mut header, "GNUSparseFile.0/vmlinuz", &[0; 512][..]).unwrap();
    let image = open(&tar.into_inner().unwrap()).unwrap();
    assert_eq!(image.files("").unwrap(), ["vmlinuz"]);
    let error = image.open("vmlinuz").map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn headers_that_lie_are_refused() {
    let good = build::tar(&[File("a", b"content"), File("b", b"more")]);
    let at = |error| match error {
        TarError::Number(offset)
        | TarError::Kind { offset, .. }
        | TarError::Content { offset, .. }
        | TarError::OutsidePath { offset, .. }
        | TarError::TooLarge { offset, .. }
        | TarError::Record(offset)
        | TarError::Truncated(offset) => offset,
        other => panic!("{other}"),
    };
    let error = |bytes: &[u8]| at(tar_error(bytes));
    // A number that is none stands in no first header: what has one is not a tar stream.
    let mut second = good.clone();
    put(&mut second, 1024 + 124, b"99999999999\0");
    sign(&mut second, 1024);
    assert_eq!(error(&second), 1024);
    put(&mut second, 1024 + 124, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
    sign(&mut second, 1024);
    assert_eq!(error(&second), 1024);
    assert_eq!(error(&changed(&good, 156, b"!")), 0);
    for kind in [b"1", b"2", b"3", b"5"] {
        assert_eq!(error(&changed(&good, 156, kind)), 0);
    }
    for path in [&b"../a\0"[..], b"/x/../../a\0"] {
        assert_eq!(error(&changed(&good, 0, path)), 0);
    }
    // Longer than what follows, and far longer than anything.
    assert_eq!(error(&changed(&good, 124, b"00000100000\0")), 512);
    assert_eq!(error(&changed(&good, 124, b"77777777777\0")), 512);
    assert_eq!(error(&changed(&good, 124, b"\x80\0\0\0\x3f\0\0\0\0\0\0\0")), 512);
    for kind in [b"L", b"K", b"x", b"g"] {
        let huge = changed(&good, 124, b"77777777777\0");
        assert_eq!(error(&changed(&huge, 156, kind)), 0);
    }
    assert_eq!(error(&changed(&good, 156, b"x")), 0);

    let mut checksum = good.clone();
    checksum[1024] ^= 1;
    assert!(matches!(tar_error(&checksum), TarError::Checksum(1024)));
    let mut zeros = good.clone();
    zeros.splice(1024..1024, [0; 512]);
    assert!(matches!(tar_error(&zeros), TarError::LoneZeros(1024)));
}

#[test]
fn a_stream_that_is_cut_off_is_refused_wherever_it_is() {
    let good = build::tar(&[File("boot/vmlinuz", &[1; 700]), File("b", b"more"), Link("c", "b")]);
    // The last block is the second of the two that mark the end.
    let end = good.len() - 512;
    for cut in (512..=end).step_by(61).chain([end]) {
        assert!(matches!(tar_error(&good[..cut]), TarError::Truncated(_)), "{cut}");
    }
    for packed in [build::gzip(&good), build::zstd(&good)] {
        for cut in (packed.len() / 2)..packed.len() {
            assert!(open(&packed[..cut]).is_err(), "{cut} of {}", packed.len());
        }
    }
}

#[test]
fn an_entry_below_a_link_is_refused_since_programs_disagree() {
    let tar = build::tar(&[Folder("usr/lib"), Link("lib", "usr/lib"), File("lib/a", b"x")]);
    assert!(matches!(
        layer_error(&tar),
        LayerError::Entry { source: TreeError::NotAFolder { parent, .. }, .. } if parent == "lib"
    ));
    // With a folder of its own it replaces the link.
    let tar = build::tar(&[
        File("usr/lib/b", b"y"),
        Link("lib", "usr/lib"),
        Folder("lib"),
        File("lib/a", b"x"),
    ]);
    let image = open(&tar).unwrap();
    assert_eq!(image.files("").unwrap(), ["lib/a", "usr/lib/b"]);
}

#[test]
fn whiteouts_mean_nothing_outside_of_oci_layers() {
    let tar = build::tar(&[File("a", b"x"), File(".wh.a", b"")]);
    assert_eq!(open(&tar).unwrap().files("").unwrap(), [".wh.a", "a"]);
}

#[test]
fn what_unpacks_beyond_all_measure_is_refused() {
    // Run-length blocks of zstd: 4 bytes for 128 KiB each.
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    let tar = build::tar(&[File("a", &[0; 100])]);
    let header = changed(&tar, 124, b"77777777777\0");
    bomb.extend([0x00, 0x10, 0x00]); // a raw block of 512 bytes
    bomb.extend(&header[..512]);
    for _ in 0..2000 {
        bomb.extend([0x02, 0x00, 0x10, 0x00]); // a block of 128 KiB of zeros
    }
    let error = tar_error(&bomb);
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    let mut texts = Vec::new();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    assert!(texts.iter().any(|text| text.contains("decompression bomb")), "{texts:?}");

    let mut window = bomb;
    window[5] = 0xff;
    assert!(matches!(open(&window), Err(InputError::Read { .. })));
}

#[test]
fn frames_and_members_follow_each_other() {
    let tar = build::tar_of(&MemoryImage::new().with("boot/x", vec![7; 3000]));
    let (first, second) = tar.split_at(700);
    let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0xyz";
    let zstd = [skipped.as_slice(), &build::zstd(first), skipped, &build::zstd(second), skipped];
    let gzip = [build::gzip(first), build::gzip(second)].concat();
    for packed in [zstd.concat(), gzip] {
        let image = open(&packed).unwrap();
        assert_eq!(build::content(&image, "boot/x"), [7; 3000]);
        assert!(open(&[packed.as_slice(), b"garbage"].concat()).is_err());
    }
}
