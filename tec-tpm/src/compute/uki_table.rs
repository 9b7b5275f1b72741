//! The section table of a unified kernel image with several profiles (UAPI group, "Unified Kernel
//! Image", "Multi-Profile UKIs"): sections before the first `.profile` are the base, those from the
//! n-th `.profile` to the next one belong to profile n and replace those of the base.

use std::io;
use std::io::{BufReader, Read as _};

use tec_core::reference::BootImage;

use super::hash::MultiHasher;
use super::layout;
use super::layout::Section;
use super::predict_error::PredictError;
use super::stub::StubError;

/// Bytes of the file that hold the section table; 512 sections need 20 KiB.
const MAX_TABLE: u64 = 64 << 10;
/// Size of the pieces in which content is read.
const PIECE: usize = 256 << 10;

/// The sections in the order of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SectionTable {
    entries: Vec<Section>,
}

impl SectionTable {
    /// Reads the table of a file that was read as a PE file before.
    pub(super) fn read(image: &dyn BootImage, path: &str) -> Result<Self, PredictError> {
        let refuse = |source| PredictError::Open { file: path.to_owned(), source };
        let mut start = Vec::new();
        let reader = image.open(path).map_err(refuse)?;
        reader.take(MAX_TABLE).read_to_end(&mut start).map_err(refuse)?;
        let entries = layout::table(&start);
        let entries =
            entries.map_err(|source| PredictError::Pe { file: path.to_owned(), source })?;
        Ok(Self { entries })
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
            let counts = chosen.iter().any(|other| other.raw.start == entry.raw.start);
            entry.content > 0 && !counts
        });
        Ok(left_out.map(|entry| entry.raw.start).collect())
    }

    /// A section of this profile.
    pub(super) fn section(&self, name: &str, profile: u32) -> Option<&Section> {
        let chosen = self.chosen(profile)?;
        chosen.into_iter().find(|entry| entry.name == name)
    }

    /// The sections that count: for each name, the first one of the profile, else the first of the
    /// base. Profile 0 is implied if there is none.
    fn chosen(&self, profile: u32) -> Option<Vec<&Section>> {
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
        let mut chosen: Vec<&Section> = Vec::new();
        for entry in own.iter().chain(parts.first()?) {
            if !chosen.iter().any(|other| other.name == entry.name) {
                chosen.push(entry);
            }
        }
        Some(chosen)
    }
}

/// Hashes a section's content as it lies in memory.
pub(super) fn hash_section(
    image: &dyn BootImage,
    path: &str,
    section: &Section,
    hasher: &mut MultiHasher,
) -> Result<(), PredictError> {
    let refuse = |source| PredictError::Open { file: path.to_owned(), source };
    let reader = image.open(path).map_err(refuse)?;
    let mut reader = BufReader::with_capacity(PIECE, reader);
    let before = io::copy(&mut reader.by_ref().take(section.raw.start), &mut io::sink());
    before.map_err(refuse)?;
    let hashed = io::copy(&mut reader.take(section.content), hasher).map_err(refuse)?;
    if hashed < section.content {
        return Err(refuse(io::ErrorKind::UnexpectedEof.into()));
    }
    io::copy(&mut io::repeat(0).take(section.zeros), hasher).map_err(refuse)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> SectionTable {
        let entries = names.iter().zip(1..).map(|(name, start)| Section {
            name: (*name).to_owned(),
            raw: start..start + 1,
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
        assert_eq!(table.section(".cmdline", 1).unwrap().raw.start, 2);
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
    fn a_table_that_is_cut_off_is_refused() {
        let file = super::super::testing::PeBuilder::new().section(".linux", "x").build();
        let table = SectionTable { entries: layout::table(&file).unwrap() };
        assert_eq!(table.section(".linux", 0).unwrap().content, 1);
        for end in 0..0x1b0 {
            assert!(layout::table(&file[..end]).is_err());
        }
    }
}
