//! Images in every form that a single stream can have: disks, FAT file systems, tar streams plain and
//! compressed, OCI layouts, single programs.

mod repair;
mod seeds;

use std::io;
use std::io::Read;

use tec_core::reference::BootImage;
use tec_tpm::compute::input::{BootSource, OpenImage};

pub(crate) use self::seeds::seeds;
use crate::outcome;
use crate::slow::Slow;

/// Maximum number of files of an image to read.
const FILES: usize = 32;
/// Maximum number of bytes of a file to read.
const SIZE: u64 = 256 << 10;

/// However the stream is split, it is the same image or the same error. Its paths are sorted and stay within
/// the image, and its files have the stated size, and the same bytes each time.
///
/// An input is tried unchanged, and with corrected checksums of disks and archives, since a fuzzer does not
/// find those.
pub(crate) fn image(data: &[u8]) {
    check(data);
    let repaired = repair::repaired(data);
    if repaired != data {
        check(&repaired);
    }
}

fn check(data: &[u8]) {
    let slowly = Slow::new(data, 8111);
    match (BootSource::new().read(data), BootSource::new().read(slowly)) {
        (Ok(image), Ok(same)) => {
            assert_eq!(image.kind(), same.kind());
            check_files(&image, &same);
        }
        (Err(error), Err(same)) => {
            assert_eq!(format!("{error:?}"), format!("{same:?}"));
            assert!(!error.to_string().is_empty());
        }
        (image, same) => panic!("{image:?} but {same:?}"),
    }
}

fn check_files(image: &OpenImage, same: &OpenImage) {
    let files = listed(image, "");
    assert_eq!(files, listed(same, ""));
    assert!(files.is_sorted_by(|a, b| a < b), "{files:?}");
    for path in files.iter().take(FILES) {
        let parts: Vec<_> = path.split('/').collect();
        let stays = |part: &&str| !["", ".", ".."].contains(part);
        assert!(parts.iter().all(stays), "{path:?}");
        if let Some((folder, _)) = path.rsplit_once('/') {
            assert!(listed(image, folder).contains(path), "{path:?}");
        }
        match (content(image, path), content(same, path)) {
            (Ok(content), Ok(same)) => assert!(content == same, "{path:?}"),
            (Err(error), Err(same)) => assert_eq!(error.to_string(), same.to_string()),
            (content, same) => panic!("{path:?}: {content:?} but {same:?}"),
        }
    }
}

fn listed(image: &OpenImage, folder: &str) -> Vec<String> {
    image.files(folder).expect("an open image can be listed")
}

/// The first bytes of a file, which must be complete according to its size.
fn content(image: &OpenImage, path: &str) -> io::Result<Vec<u8>> {
    let file = image.open(path)?;
    let size = file.size();
    let mut content = Vec::new();
    file.take(SIZE).read_to_end(&mut content)?;
    let count = content.len() as u64;
    assert!(size.is_none_or(|size| count == size.min(SIZE)), "{count} bytes of {size:?}");
    Ok(content)
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(BootSource::new().read(data))
}
