//! PCR 14 from the lists that a running machine exposes.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ImageEvent};
use tec_core::pcr::PcrIndex;

/// The lists in the order in which shim measures them (shim, `mok.c`, table of mirrored variables), each with
/// the ID of its event.
const LISTS: [(&str, &str); 3] = [
    ("MokListRT", "Pcr14MokList"),
    ("MokListXRT", "Pcr14MokListX"),
    ("MokListTrustedRT", "Pcr14MokListTrusted"),
];
/// Largest list to read; variable stores are about 256 KiB.
const MAX_LIST: u64 = 1 << 20;

/// The lists cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MokError {
    /// The directory lacks the list that every shim creates.
    #[error("{} has no MokListRT", .directory.display())]
    Missing { directory: PathBuf },
    /// Reading failed.
    #[error("cannot read {}", .file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file is too large to be such a list.
    #[error("{} has {size} bytes, more than the limit of {MAX_LIST}", .file.display())]
    TooLarge { file: PathBuf, size: u64 },
}

/// Predicts what shim measures for the lists in `directory`. A missing list was not created by that machine's
/// shim, so it was not measured either; every shim creates MokListRT.
pub(crate) fn pcr14(directory: &Path) -> Result<ExpectedPcr, MokError> {
    let mut events = Vec::new();
    for (name, id) in LISTS {
        let file = directory.join(name);
        let content = match read(&file)? {
            Some(content) => content,
            None if events.is_empty() => {
                let directory = directory.to_owned();
                return Err(MokError::Missing { directory });
            }
            None => {
                tracing::warn!(list = name, "the list is not there, so it is not measured");
                continue;
            }
        };
        let digest = Sha256Digest::of(content);
        events.push(ImageEvent::new("EV_IPL", PcrIndex::MOK, digest, id));
    }
    Ok(ExpectedPcr::from_events(PcrIndex::MOK, events))
}

fn read(file: &Path) -> Result<Option<Vec<u8>>, MokError> {
    let failed = |source| MokError::Read { file: file.to_owned(), source };
    let size = match fs::metadata(file) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if size > MAX_LIST {
        let file = file.to_owned();
        return Err(MokError::TooLarge { file, size });
    }
    fs::read(file).map(Some).map_err(failed)
}
