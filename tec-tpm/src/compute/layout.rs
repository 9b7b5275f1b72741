//! Headers and section table of a PE file: where each byte goes when the file is hashed.

use std::io;
use std::ops::Range;

/// A file cannot be hashed as a PE file. Offsets count bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeError {
    /// Reading failed.
    #[error("offset {offset}: reading failed")]
    Read {
        /// How far reading got.
        offset: u64,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is shorter than its headers announce.
    #[error("offset {offset}: the file ends before the end of {part} at {needed}")]
    Truncated {
        /// Where the file ends.
        offset: u64,
        /// What is cut off.
        part: String,
        /// Where that part would end.
        needed: u64,
    },
    /// A magic number is missing.
    #[error("not a PE file: no {magic} at offset {offset}")]
    Magic {
        /// Where the magic number should be.
        offset: u64,
        /// What should be there.
        magic: &'static str,
    },
    /// A header field contradicts another field or a limit.
    #[error("offset {offset}: {field} is {value}, which is invalid")]
    Header {
        /// Where the field is.
        offset: u64,
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A section begins before the end of the headers or of the section before it.
    #[error(
        "section {section} begins at offset {offset}, before the end of the preceding part at {end}"
    )]
    Overlap {
        /// Name of the section.
        section: String,
        /// Where the section begins.
        offset: u64,
        /// Where the part before it ends.
        end: u64,
    },
    /// Bytes between sections exceed the limit.
    #[error(
        "gaps before section {section} at offset {offset} add up to {size} bytes, more than the limit of {limit}"
    )]
    Gap {
        /// Name of the section after the gap.
        section: String,
        /// Where the section begins.
        offset: u64,
        /// Sum of all gaps up to here.
        size: u64,
        /// Limit.
        limit: u64,
    },
    /// The certificate table is not the last part of the file, or exceeds the limit.
    #[error("certificate table of {size} bytes at offset {offset} {reason}")]
    CertificateTable {
        /// Where the table begins according to the headers.
        offset: u64,
        /// Size of the table.
        size: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A section that is to be read occurs twice.
    #[error("offset {offset}: section {section} is repeated")]
    RepeatedSection {
        /// Name of the section.
        section: String,
        /// Where the second one begins.
        offset: u64,
    },
    /// A section that is to be read exceeds the limit.
    #[error("offset {offset}: section {section} has {size} bytes, more than the limit of {limit}")]
    SectionTooLarge {
        /// Name of the section.
        section: String,
        /// Where the section begins.
        offset: u64,
        /// Size of the section.
        size: u64,
        /// Limit.
        limit: u64,
    },
    /// A section that is to be read has a size in memory but nothing in the file.
    #[error("offset {offset}: section {section} has no content in the file")]
    SectionWithoutContent {
        /// Name of the section.
        section: String,
        /// Where its header begins.
        offset: u64,
    },
    /// The file exceeds the limit.
    #[error("the file has more than {0} bytes")]
    TooLarge(u64),
}

/// Largest headers that are read.
pub(super) const MAX_HEADERS: usize = 256 << 10;
/// Maximum number of sections. Windows stops at 96 (PE format, "COFF File Header"); unified kernel
/// images with many profiles have more.
const MAX_SECTIONS: u16 = 512;
/// Size of a section's header (PE format, "Section Table").
const HEADER: u64 = 40;
/// Maximum number of bytes between sections; linkers leave none, or less than a page per section.
const MAX_GAPS: u64 = 1 << 20;
/// Largest certificate table; two signatures with chains have some 20 KiB.
const MAX_CERTIFICATES: u64 = 1 << 20;
/// Largest file: offsets of sections and certificates are 32 bits wide.
pub(super) const MAX_FILE: u64 = 1 << 32;

/// A section, usually with content in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) raw: Range<u64>,
    /// Size of the content in bytes; the rest is padding to the file alignment.
    pub(super) content: u64,
    /// Zero bytes that follow the content in memory.
    pub(super) zeros: u64,
}

/// A section that has a size in memory but nothing in the file: its name, and the offset of its
/// header.
pub(super) type Unwritten = (String, u64);

/// Where the parts of the file lie.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) checksum: Range<u64>,
    pub(super) certificate_entry: Range<u64>,
    pub(super) headers: u64,
    /// In the order of the file, without overlaps.
    pub(super) sections: Vec<Section>,
    pub(super) certificates: Option<Range<u64>>,
    /// Where the COFF string table begins, which holds long names of sections.
    pub(super) strings: Option<u64>,
    pub(super) unwritten: Vec<Unwritten>,
}

impl Layout {
    /// Reads the headers from the beginning of a file.
    pub(super) fn parse(start: &[u8]) -> Result<Self, PeError> {
        let file = Fields(start);
        let coff = coff_offset(&file)?;
        let optional = Optional::parse(&file, coff)?;
        let (sections, unwritten) = sections(&file, coff, &optional)?;
        let end = sections.last().map_or(optional.headers, |s| s.raw.end);
        let certificates = optional.certificates(end)?;
        Ok(Self {
            checksum: optional.checksum,
            certificate_entry: optional.certificate_entry,
            headers: optional.headers,
            sections,
            certificates,
            strings: string_table(&file, coff)?,
            unwritten,
        })
    }

    /// Where the last section ends.
    pub(super) fn sections_end(&self) -> u64 {
        self.sections.last().map_or(self.headers, |s| s.raw.end)
    }

    /// Sum of the bytes between the parts. The rest of the file is hashed starting at the *sum* of
    /// the bytes hashed before (Authenticode PE, "Calculating the PE Image Hash", on extra data),
    /// so this many bytes before the end of the last section are hashed again.
    pub(super) fn gaps(&self) -> u64 {
        let hashed: u64 = self.sections.iter().map(|s| s.raw.end - s.raw.start).sum();
        self.sections_end() - self.headers - hashed
    }
}

/// All sections in the order of the table, whether they have content or not. The headers must have been
/// accepted by [`Layout::parse`]; `start` may hold less of the file than they announce.
///
/// # Errors
/// [`PeError`] if the table is cut off.
pub(super) fn table(start: &[u8]) -> Result<Vec<Section>, PeError> {
    let file = Fields(start);
    let coff = coff_offset(&file)?;
    let table = Optional::parse(&file, coff)?.table;
    let count = u64::from(file.u16(coff + 2, "COFF header")?);
    file.check_end(table + count * HEADER, "section table")?;
    (0..count).map(|number| section(&file, table + number * HEADER)).collect()
}

/// Offset of the COFF file header (PE format, "MS-DOS Stub" and "Signature").
fn coff_offset(file: &Fields<'_>) -> Result<u64, PeError> {
    if file.array(0, "MS-DOS header")? != *b"MZ" {
        return Err(PeError::Magic { offset: 0, magic: "MZ" });
    }
    let pe = u64::from(file.u32(0x3c, "MS-DOS header")?);
    // 64 bytes is the size of the MS-DOS header itself.
    if pe < 64 {
        return Err(PeError::Header { offset: 0x3c, field: "offset of the PE header", value: pe });
    }
    if file.array(pe, "PE header")? != *b"PE\0\0" {
        return Err(PeError::Magic { offset: pe, magic: "PE" });
    }
    Ok(pe + 4)
}

/// The string table follows the symbols of 18 bytes each (PE format, "COFF String Table").
fn string_table(file: &Fields<'_>, coff: u64) -> Result<Option<u64>, PeError> {
    let symbols = u64::from(file.u32(coff + 8, "COFF header")?);
    let count = u64::from(file.u32(coff + 12, "COFF header")?);
    Ok((symbols > 0).then_some(symbols + count * 18))
}

/// The parts of the optional header that matter (PE format, "Optional Header").
struct Optional {
    checksum: Range<u64>,
    certificate_entry: Range<u64>,
    headers: u64,
    table: u64,
    certificate_offset: u64,
    certificate_size: u64,
}

impl Optional {
    fn parse(file: &Fields<'_>, coff: u64) -> Result<Self, PeError> {
        // 20 bytes of COFF header; SizeOfOptionalHeader at 16.
        let start = coff + 20;
        let size = u64::from(file.u16(coff + 16, "COFF header")?);
        let magic = file.u16(start, "optional header")?;
        // NumberOfRvaAndSizes: at 92 in PE32, at 108 in PE32+; the directories follow.
        let count_at = match magic {
            0x10b => start + 92,
            0x20b => start + 108,
            _ => {
                return Err(PeError::Magic { offset: start, magic: "PE32 or PE32+ magic" });
            }
        };
        let count = file.u32(count_at, "optional header")?;
        // The certificate table is directory 4 (PE format, "Optional Header Data Directories").
        let entry = count_at + 4 + 4 * 8;
        if count < 5 || size < entry + 8 - start {
            return Err(PeError::Header {
                offset: count_at,
                field: "number of data directories",
                value: count.into(),
            });
        }
        let headers = u64::from(file.u32(start + 60, "optional header")?);
        Ok(Self {
            checksum: start + 64..start + 68,
            certificate_entry: entry..entry + 8,
            headers,
            table: start + size,
            certificate_offset: file.u32(entry, "data directories")?.into(),
            certificate_size: file.u32(entry + 4, "data directories")?.into(),
        })
    }

    /// The table must be the last part of the file; whether it reaches the end is checked when the
    /// file is read.
    fn certificates(&self, sections_end: u64) -> Result<Option<Range<u64>>, PeError> {
        let (offset, size) = (self.certificate_offset, self.certificate_size);
        let refuse = |reason| Err(PeError::CertificateTable { offset, size, reason });
        if size == 0 && offset == 0 {
            Ok(None)
        } else if size == 0 || offset == 0 {
            refuse("has a size without an offset, or the reverse")
        } else if offset < sections_end {
            refuse("begins before the end of the sections")
        } else if size > MAX_CERTIFICATES {
            refuse("is larger than the limit of 1 MiB")
        } else {
            Ok(Some(offset..offset + size))
        }
    }
}

/// Sections with content, sorted and checked (PE format, "Section Table").
fn sections(
    file: &Fields<'_>,
    coff: u64,
    optional: &Optional,
) -> Result<(Vec<Section>, Vec<Unwritten>), PeError> {
    let count = file.u16(coff + 2, "COFF header")?;
    if count == 0 || count > MAX_SECTIONS {
        return Err(PeError::Header {
            offset: coff + 2,
            field: "number of sections",
            value: count.into(),
        });
    }
    let table_end = optional.table + u64::from(count) * HEADER;
    if optional.headers < table_end || optional.headers > MAX_HEADERS as u64 {
        return Err(PeError::Header {
            offset: coff + 20 + 60,
            field: "size of the headers",
            value: optional.headers,
        });
    }
    file.check_end(optional.headers, "the headers")?;
    let mut sections = Vec::with_capacity(count.into());
    let mut unwritten = Vec::new();
    for number in 0..u64::from(count) {
        let header = optional.table + number * HEADER;
        let section = section(file, header)?;
        if section.raw.is_empty() {
            unwritten.extend((section.zeros > 0).then_some((section.name, header)));
        } else {
            sections.push(section);
        }
    }
    sections.sort_by_key(|section: &Section| section.raw.start);
    check_order(&sections, optional.headers)?;
    Ok((sections, unwritten))
}

fn check_order(sections: &[Section], headers: u64) -> Result<(), PeError> {
    let mut end = headers;
    let mut gaps = 0;
    for section in sections {
        let Some(gap) = section.raw.start.checked_sub(end) else {
            return Err(PeError::Overlap {
                section: section.name.clone(),
                offset: section.raw.start,
                end,
            });
        };
        gaps += gap;
        if gaps > MAX_GAPS {
            return Err(PeError::Gap {
                section: section.name.clone(),
                offset: section.raw.start,
                size: gaps,
                limit: MAX_GAPS,
            });
        }
        end = section.raw.end;
    }
    if end > MAX_FILE {
        return Err(PeError::TooLarge(MAX_FILE));
    }
    Ok(())
}

/// One section header: name 8, VirtualSize at 8, SizeOfRawData at 16, PointerToRawData at 20.
/// Sections without raw data are not hashed.
fn section(file: &Fields<'_>, at: u64) -> Result<Section, PeError> {
    let name: [u8; 8] = file.array(at, "section table")?;
    let virtual_size = u64::from(file.u32(at + 8, "section table")?);
    let size = u64::from(file.u32(at + 16, "section table")?);
    let start = u64::from(file.u32(at + 20, "section table")?);
    let name = name.split(|b| *b == 0).next().unwrap_or_default();
    Ok(Section {
        name: name.escape_ascii().to_string(),
        raw: start..start + size,
        content: if virtual_size == 0 { size } else { virtual_size.min(size) },
        zeros: virtual_size.saturating_sub(size),
    })
}

/// Little-endian fields at checked offsets.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: u64, part: &'static str) -> Result<[u8; N], PeError> {
        usize::try_from(at)
            .ok()
            .and_then(|at| self.0.get(at..)?.first_chunk())
            .copied()
            .ok_or_else(|| self.truncated(at + N as u64, part))
    }

    fn u16(&self, at: u64, part: &'static str) -> Result<u16, PeError> {
        self.array(at, part).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64, part: &'static str) -> Result<u32, PeError> {
        self.array(at, part).map(u32::from_le_bytes)
    }

    fn check_end(&self, end: u64, part: &'static str) -> Result<(), PeError> {
        if end > self.0.len() as u64 {
            return Err(self.truncated(end, part));
        }
        Ok(())
    }

    fn truncated(&self, needed: u64, part: &str) -> PeError {
        PeError::Truncated { offset: self.0.len() as u64, part: part.to_owned(), needed }
    }
}
