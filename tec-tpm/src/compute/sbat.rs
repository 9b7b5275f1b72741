//! The `.sbat` section: the components of a boot file and their versions (shim's SBAT.md, "The
//! .sbat section").

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
    /// The section is not text.
    #[error(".sbat contains invalid UTF-8 at offset {0}")]
    Encoding(usize),
    /// A line lacks fields, or its generation is not a number.
    #[error(".sbat line {0} is not an entry")]
    Line(usize),
    /// More lines than the limit.
    #[error(".sbat has more than {0} lines")]
    TooManyLines(usize),
}

/// Maximum number of lines; real sections have fewer than ten.
const MAX_LINES: usize = 256;

impl Sbat {
    /// Reads the content of a section, up to the first NUL.
    pub fn parse(section: &[u8]) -> Result<Self, SbatError> {
        let text = section.split(|b| *b == 0).next().unwrap_or_default();
        let text =
            std::str::from_utf8(text).map_err(|error| SbatError::Encoding(error.valid_up_to()))?;
        let mut entries = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if number >= MAX_LINES {
                return Err(SbatError::TooManyLines(MAX_LINES));
            }
            if !line.is_empty() {
                entries.push(entry(line).ok_or(SbatError::Line(number + 1))?);
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

/// The lowest generations that shim allows to start: the text of the variable `SbatLevel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SbatLevel<'l> {
    text: &'l [u8],
}

/// A component is older than the level in force allows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{component} has generation {generation}; the level in force requires {minimum}")]
#[non_exhaustive]
pub struct SbatRevocation {
    /// Component, for example `grub`.
    pub component: String,
    /// Generation in the file.
    pub generation: u32,
    /// Lowest generation that may start.
    pub minimum: u32,
}

impl<'l> SbatLevel<'l> {
    pub(super) fn new(text: &'l [u8]) -> Self {
        Self { text }
    }

    /// Checks the components of a file (shim, sbat.c, `verify_sbat_helper`): the first line of the
    /// level that names a component counts.
    pub(super) fn check(self, sbat: &Sbat) -> Result<(), SbatRevocation> {
        for entry in &sbat.entries {
            let minimum = self.minimum(&entry.component).unwrap_or(0);
            if entry.generation < minimum {
                return Err(SbatRevocation {
                    component: entry.component.clone(),
                    generation: entry.generation,
                    minimum,
                });
            }
        }
        Ok(())
    }

    /// Component, generation, and fields that do not matter here. Anything but a number counts as
    /// 0.
    fn minimum(self, component: &str) -> Option<u32> {
        let text = self.text.split(|byte| *byte == 0).next()?;
        text.split(|byte| *byte == b'\n').find_map(|line| {
            let mut fields = line.trim_ascii_end().split(|byte| *byte == b',');
            let named = fields.next() == Some(component.as_bytes());
            let generation = std::str::from_utf8(fields.next()?).ok()?;
            named.then(|| generation.parse().unwrap_or(0))
        })
    }
}

fn entry(line: &str) -> Option<SbatEntry> {
    let mut fields = line.split(',');
    let component = fields.next()?.to_owned();
    let generation = fields.next()?.parse().ok()?;
    let version = fields.nth(2)?.to_owned();
    fields.next()?; // the URL
    Some(SbatEntry { component, generation, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_names_the_lowest_generation_of_each_component() {
        let level =
            SbatLevel::new(b"sbat,1,2025051000\nshim,4\ngrub,5\ngrub.proxmox,2\n\0grub,9\n");
        let check = |text: &str| level.check(&Sbat::parse(text.as_bytes()).unwrap());
        assert_eq!(check("sbat,1,S,s,1,u\ngrub,5,F,g,2.12,u\nother,1,O,o,1,u\n"), Ok(()));
        assert_eq!(
            check("sbat,1,S,s,1,u\ngrub,6,F,g,2.12,u\ngrub.proxmox,1,P,g,1,u\n"),
            Err(SbatRevocation { component: "grub.proxmox".into(), generation: 1, minimum: 2 })
        );
    }
}
