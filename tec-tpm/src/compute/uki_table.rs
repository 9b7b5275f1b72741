//! The section table of a unified kernel image with several profiles (UAPI group, "Unified Kernel
//! Image", "Multi-Profile UKIs"): sections before the first `.profile` are the base, those from the
//! n-th `.profile` to the next one belong to profile n and replace those of the base.

use std::io::Read as _;

use tec_core::reference::BootImage;

use super::hash::MultiHasher;
use super::layout::PeError;
use super::predict_error::PredictError;
use super::stub::StubError;

/// Bytes of the file that hold the section table; 512 sections need 20 KiB.
const MAX_TABLE: u64 = 64 << 10;
/// PE format, "Section Table": size of an entry.
const ENTRY: usize = 40;
/// Size of the pieces in which content is read.
const PIECE: usize = 256 << 10;

/// One section with content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableEntry {
    pub(super) name: String,
    /// Where its content begins in the file.
    pub(super) start: u64,
    /// Bytes of content in the file.
    pub(super) content: u64,
    /// Zero bytes after it in memory.
    pub(super) zeros: u64,
}

/// The sections in the order of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SectionTable {
    entries: Vec<TableEntry>,
}

impl SectionTable {
    /// Reads the table of a file that was read as a PE file before.
    pub(super) fn read(image: &dyn BootImage, path: &str) -> Result<Self, PredictError> {
        let refuse = |source| PredictError::Open { file: path.to_owned(), source };
        let mut start = Vec::new();
        let reader = image.open(path).map_err(refuse)?;
        reader.take(MAX_TABLE).read_to_end(&mut start).map_err(refuse)?;
        Self::parse(&start).ok_or_else(|| PredictError::Pe {
            file: path.to_owned(),
            source: PeError::Truncated {
                offset: start.len() as u64,
                part: "section table".to_owned(),
                needed: MAX_TABLE,
            },
        })
    }

    /// Offset of the PE header at 0x3c; number of sections at 6 of it, size of the optional header
    /// at 20, which begins at 24.
    fn parse(start: &[u8]) -> Option<Self> {
        let pe = usize::try_from(word(start, 0x3c)?).ok()?;
        let count = u16::from_le_bytes(*start.get(pe.checked_add(6)?..)?.first_chunk()?);
        let optional = u16::from_le_bytes(*start.get(pe.checked_add(20)?..)?.first_chunk()?);
        let table = start.get(pe.checked_add(24 + usize::from(optional))?..)?;
        let table = table.get(..usize::from(count) * ENTRY)?;
        let entries = table.chunks_exact(ENTRY).map(entry);
        Some(Self { entries: entries.collect::<Option<_>>()? })
    }

    /// Where the sections that do not count for this profile begin.
    ///
    /// # Errors
    /// [`StubError::NoProfile`] when the image has no such profile.
    pub(super) fn left_out(&self, path: &str, profile: u32) -> Result<Vec<u64>, PredictError> {
        let chosen = self.chosen(profile).ok_or_else(|| PredictError::Stub {
            file: path.to_owned(),
            source: StubError::NoProfile(profile),
        })?;
        let left_out = self.entries.iter().filter(|entry| {
            let counts = chosen.iter().any(|other| other.start == entry.start);
            entry.content > 0 && !counts
        });
        Ok(left_out.map(|entry| entry.start).collect())
    }

    /// A section of this profile.
    pub(super) fn section(&self, name: &str, profile: u32) -> Option<&TableEntry> {
        let chosen = self.chosen(profile)?;
        chosen.into_iter().find(|entry| entry.name == name)
    }

    /// The sections that count: for each name, the first one of the profile, else the first of the
    /// base. Profile 0 is implied if there is none.
    fn chosen(&self, profile: u32) -> Option<Vec<&TableEntry>> {
        let mut parts = vec![Vec::new()];
        for entry in &self.entries {
            if entry.name == ".profile" {
                parts.push(Vec::new());
            }
            parts.last_mut()?.push(entry);
        }
        let number = usize::try_from(profile).ok()?.checked_add(1)?;
        let own = match parts.get(number) {
            Some(own) => own.as_slice(),
            None if profile == 0 => &[],
            None => return None,
        };
        let mut chosen: Vec<&TableEntry> = Vec::new();
        for entry in own.iter().chain(parts.first()?) {
            if !chosen.iter().any(|other| other.name == entry.name) {
                chosen.push(entry);
            }
        }
        Some(chosen)
    }
}

/// Name 8, size in memory 4, address 4, size in the file 4, offset in the file 4.
fn entry(entry: &[u8]) -> Option<TableEntry> {
    let name = entry.get(..8)?.split(|byte| *byte == 0).next()?;
    let memory = u64::from(word(entry, 8)?);
    let file = u64::from(word(entry, 16)?);
    Some(TableEntry {
        name: name.escape_ascii().to_string(),
        start: word(entry, 20)?.into(),
        content: if memory == 0 { file } else { memory.min(file) },
        zeros: memory.saturating_sub(file),
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Hashes a section's content as it lies in memory.
pub(super) fn hash_section(
    image: &dyn BootImage,
    path: &str,
    section: &TableEntry,
    hasher: &mut MultiHasher,
) -> Result<(), PredictError> {
    let refuse = |source| PredictError::Open { file: path.to_owned(), source };
    let mut reader = image.open(path).map_err(refuse)?;
    let skipped = std::io::copy(&mut reader.by_ref().take(section.start), &mut std::io::sink());
    skipped.map_err(refuse)?;
    let mut piece = vec![0; PIECE];
    let mut left = section.content;
    while left > 0 {
        let room = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let count = match reader.read(piece.get_mut(..room).unwrap_or_default()) {
            Ok(0) => return Err(refuse(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(refuse(error)),
        };
        hasher.update(piece.get(..count).unwrap_or_default());
        left -= count as u64;
    }
    piece.fill(0);
    let mut zeros = section.zeros;
    while zeros > 0 {
        let count = usize::try_from(zeros).unwrap_or(PIECE).min(PIECE);
        hasher.update(piece.get(..count).unwrap_or_default());
        zeros -= count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> SectionTable {
        let entries = names.iter().zip(1..).map(|(name, start)| TableEntry {
            name: (*name).to_owned(),
            start,
            content: 1,
            zeros: 0,
        });
        SectionTable { entries: entries.collect() }
    }

    #[test]
    fn a_profile_takes_the_place_of_the_base_name_by_name() {
        let table = table(&[
            ".linux", ".cmdline", ".cmdline", ".profile", ".cmdline", ".profile", ".initrd",
        ]);
        assert_eq!(table.left_out("x", 0).unwrap(), [2, 3, 6, 7]);
        assert_eq!(table.left_out("x", 1).unwrap(), [3, 4, 5]);
        assert_eq!(table.section(".cmdline", 1).unwrap().start, 2);
        assert!(matches!(
            table.left_out("x", 2),
            Err(PredictError::Stub { source: StubError::NoProfile(2), .. })
        ));
    }

    #[test]
    fn without_profiles_the_base_is_profile_0() {
        let table = table(&[".linux", ".cmdline"]);
        assert!(table.left_out("x", 0).unwrap().is_empty());
        assert!(table.left_out("x", 1).is_err());
    }

    #[test]
    fn a_table_that_is_cut_off_is_none() {
        let file = super::super::testing::PeBuilder::new().section(".linux", "x").build();
        let table = SectionTable::parse(&file).unwrap();
        assert_eq!(table.section(".linux", 0).unwrap().content, 1);
        for end in 0..0x1b0 {
            assert_eq!(SectionTable::parse(&file[..end]), None);
        }
    }
}
