//! The initial file system as the kernel finds it: pieces one after another, each padded to 4 bytes
//! if there are several (systemd, initrd.c, `combine_initrds`).

use tec_core::reference::BootImage;

use super::boot::Started;
use super::hash::{BankDigests, Banks, MultiHasher};
use super::predict_error::PredictError;
use super::uki_table;
use super::uki_table::SectionTable;

/// A piece of the initial file system.
#[derive(Clone, Debug)]
pub(super) enum Piece<'s> {
    /// An archive that the stub creates.
    Archive(Vec<u8>),
    /// A section of a unified kernel image or an add-on.
    Section(&'s Started, &'static str),
}

const ALIGNMENT: u64 = 4;
const PADDING: [u8; 3] = [0; 3];

/// Digest of the pieces; none if there are no pieces.
pub(super) fn digests(
    image: &dyn BootImage,
    banks: Banks,
    pieces: &[Piece<'_>],
) -> Result<Option<BankDigests>, PredictError> {
    if pieces.is_empty() {
        return Ok(None);
    }
    let mut hasher = MultiHasher::new(banks);
    let mut rest = pieces;
    if let [Piece::Section(started, name), others @ ..] = pieces
        && let Some(part) = started.file.part(name)
        && let Some(begun) = &part.hasher
    {
        // The section was hashed while the file was read.
        hasher = begun.clone();
        pad(&mut hasher, part.size, pieces.len());
        rest = others;
    }
    for piece in rest {
        let size = match piece {
            Piece::Archive(archive) => {
                hasher.update(archive);
                archive.len() as u64
            }
            Piece::Section(started, name) => hash_again(image, started, name, &mut hasher)?,
        };
        pad(&mut hasher, size, pieces.len());
    }
    Ok(Some(hasher.finish()))
}

fn pad(hasher: &mut MultiHasher, size: u64, pieces: usize) {
    let padding = usize::try_from(size.next_multiple_of(ALIGNMENT) - size).unwrap_or(0);
    if pieces > 1 {
        hasher.update(PADDING.get(..padding).unwrap_or_default());
    }
}

/// Reads the file once more, for a section whose place is not the first.
fn hash_again(
    image: &dyn BootImage,
    started: &Started,
    name: &str,
    hasher: &mut MultiHasher,
) -> Result<u64, PredictError> {
    let table = SectionTable::read(image, &started.path)?;
    let Some(section) = table.section(name, started.profile.unwrap_or(0)) else {
        return Ok(0);
    };
    uki_table::hash_section(image, &started.path, section, hasher)?;
    Ok(section.content + section.zeros)
}

impl Started {
    /// Whether the file has a section of this name that counts.
    pub(super) fn has(&self, name: &str) -> bool {
        self.file.part(name).is_some()
    }
}
