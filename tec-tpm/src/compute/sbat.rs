//! The `.sbat` section: which components, in which versions, a boot file is made of
//! (shim's SBAT.md, "The .sbat section").

/// The entries of a `.sbat` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sbat {
    entries: Vec<SbatEntry>,
}

/// One line: component, generation, vendor, package, version, URL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SbatEntry {
    /// Component, for example `grub` or `grub.debian`.
    pub component: String,
    /// Security generation.
    pub generation: u32,
    /// Version of the package, for example `2.12`.
    pub version: String,
}

/// A `.sbat` section cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SbatError {
    /// It is not text.
    #[error(".sbat is no text from offset {offset} on")]
    Encoding {
        /// Offset in the section.
        offset: usize,
    },
    /// A line lacks fields, or its generation is no number.
    #[error(".sbat line {line} is not an entry")]
    Line {
        /// Number of the line, from 1.
        line: usize,
    },
    /// More lines than the limit.
    #[error(".sbat has more than {limit} lines")]
    TooManyLines {
        /// Limit.
        limit: usize,
    },
}

/// Most lines; real sections have fewer than ten.
const MAX_LINES: usize = 256;

impl Sbat {
    /// Reads the content of a section, up to the first NUL.
    ///
    /// # Errors
    /// [`SbatError`] with the offset or line.
    pub fn parse(section: &[u8]) -> Result<Self, SbatError> {
        let text = section.split(|b| *b == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|error| SbatError::Encoding {
            offset: error.valid_up_to(),
        })?;
        let mut entries = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if number >= MAX_LINES {
                return Err(SbatError::TooManyLines { limit: MAX_LINES });
            }
            if !line.is_empty() {
                entries.push(entry(line).ok_or(SbatError::Line { line: number + 1 })?);
            }
        }
        Ok(Self { entries })
    }

    /// The entries in order.
    pub fn entries(&self) -> &[SbatEntry] {
        &self.entries
    }

    /// The entry of a component.
    pub fn component(&self, name: &str) -> Option<&SbatEntry> {
        self.entries.iter().find(|entry| entry.component == name)
    }
}

fn entry(line: &str) -> Option<SbatEntry> {
    let mut fields = line.split(',');
    let component = fields.next()?.to_owned();
    let generation = fields.next()?.parse().ok()?;
    let version = fields.nth(2)?.to_owned();
    fields.next()?; // the URL
    Some(SbatEntry {
        component,
        generation,
        version,
    })
}
