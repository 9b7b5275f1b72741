//! Archives that unpack to far more than any image does, in one piece and in many.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tec_core::code::Code;
use tec_tpm::compute::input::{BootSource, InputError, OpenImage, UnpackError};

use crate::build;
use crate::build::Item::File;
use crate::build::{LAYER, Layout};
use crate::layouts::cause;

/// What may come out of the few bytes of a bomb before it is refused.
const SOON: u64 = 160 << 20;
const MIB: usize = 1 << 20;

/// A tar stream that claims to hold a file of `mebibytes`, all zeros: its header, and how many
/// zeros follow it.
fn archive(mebibytes: usize) -> (Vec<u8>, usize) {
    let size = mebibytes * MIB;
    let mut header = build::tar(&[File("a", b"")])[..512].to_vec();
    build::put(&mut header, 124, format!("{size:011o}\0").as_bytes());
    build::put(&mut header, 148, b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    build::put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes());
    (header, size + 1024)
}

fn gzip_bomb(mebibytes: usize) -> Vec<u8> {
    let (header, zeros) = archive(mebibytes);
    let member = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let mut bomb = member(&header);
    for _ in 0..zeros / MIB {
        // The same each time, and packed once.
        bomb.extend_from_slice(mebibyte());
    }
    bomb.extend(member(&vec![0; zeros % MIB]));
    bomb
}

fn mebibyte() -> &'static [u8] {
    static PACKED: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    PACKED.get_or_init(|| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![0; MIB]).unwrap();
        encoder.finish().unwrap()
    })
}

/// Run-length blocks: 4 bytes for 128 KiB each.
fn zstd_bomb(mebibytes: usize) -> Vec<u8> {
    let (header, zeros) = archive(mebibytes);
    let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    bomb.extend([0x00, 0x10, 0x00]);
    bomb.extend(header);
    for _ in 0..zeros / (128 << 10) {
        bomb.extend([0x02, 0x00, 0x10, 0x00]);
    }
    // The last block: what is left, which is the end of the archive.
    bomb.extend([0x03, 0x20, 0x00, 0x00]);
    bomb
}

#[track_caller]
fn assert_is_refused_soon(opened: Result<OpenImage, InputError>) {
    let error = opened.unwrap_err();
    let found: Option<&UnpackError> = cause(&error);
    let Some(UnpackError::Ratio { unpacked, .. }) = found else {
        panic!("{error:?}");
    };
    assert!(*unpacked <= SOON, "{unpacked}");
    assert_eq!(error.code(), Code::ImageBomb);
}

#[test]
fn a_packed_bomb_is_refused_when_it_unpacks_to_far_more_than_an_image() {
    for bomb in [gzip_bomb(2048), zstd_bomb(2048)] {
        assert_is_refused_soon(BootSource::new().read(bomb.as_slice()));
    }
}

#[test]
fn layers_that_are_no_bombs_alone_are_one_together() {
    for (media_type, layer) in [("+gzip", gzip_bomb(30)), ("+zstd", zstd_bomb(30))] {
        let media_type = format!("{LAYER}{media_type}");
        let of = |count: usize| {
            let mut layout = Layout::default();
            let layers = vec![(media_type.as_str(), layer.clone()); count];
            let image = layout.image(&layers);
            layout.publish("", image).finish()
        };
        let folder = tempfile::tempdir().unwrap();
        build::unpack(&of(16), folder.path());
        assert_is_refused_soon(BootSource::new().open(folder.path()));
        assert!(BootSource::new().read(build::tar_of(&of(1)).as_slice()).is_ok());
    }
}

#[test]
fn a_bomb_in_a_packed_layout_gains_nothing_from_being_packed_twice() {
    let mut layout = Layout::default();
    let layer = gzip_bomb(512);
    let image = layout.image(&[(format!("{LAYER}+gzip").as_str(), layer)]);
    let layout = build::tar_of(&layout.publish("", image).finish());
    for packed in [build::gzip(&layout), build::zstd(&layout)] {
        assert_is_refused_soon(BootSource::new().read(packed.as_slice()));
    }
}
