//! Unified kernel images: systemd-stub with sections appended.

use anyhow::{Context as _, ensure};

use super::{field, put, u16_at, u32_at};

/// Location of the PE header's offset (PE format, "MS-DOS Stub").
const PE_OFFSET: usize = 0x3c;
/// Fields relative to the start of the PE header (PE format, "COFF File Header" and "Optional Header").
const SECTION_COUNT: usize = 6;
const SYMBOL_TABLE: usize = 12;
const OPTIONAL_SIZE: usize = 20;
const OPTIONAL: usize = 24;
const SECTION_ALIGNMENT: usize = OPTIONAL + 32;
const FILE_ALIGNMENT: usize = OPTIONAL + 36;
const IMAGE_SIZE: usize = OPTIONAL + 56;
const HEADERS_SIZE: usize = OPTIONAL + 60;
/// A section header, and its fields (PE format, "Section Table").
const ENTRY: usize = 40;
const VIRTUAL_SIZE: usize = 8;
const VIRTUAL_ADDRESS: usize = 12;
const RAW_SIZE: usize = 16;
const RAW_OFFSET: usize = 20;
/// Readable initialized data (PE format, "Section Flags").
const READ_ONLY_DATA: u32 = 0x4000_0040;
/// Older stubs have an alignment smaller than a page; the kernel in a section needs a page.
const PAGE: usize = 4096;

/// An unsigned unified kernel image.
#[derive(Clone, Debug)]
pub struct Uki {
    image: Vec<u8>,
    pe: usize,
    table: usize,
    count: usize,
}

impl Uki {
    /// Starts from a stub as shipped by distributions.
    pub fn new(stub: &[u8]) -> anyhow::Result<Self> {
        let pe = u32_at(stub, PE_OFFSET)?;
        ensure!(field(stub, pe)? == *b"PE\0\0", "the stub is not a PE file");
        let mut uki = Self {
            image: stub.to_vec(),
            pe,
            table: pe + OPTIONAL + u16_at(stub, pe + OPTIONAL_SIZE)?,
            count: u16_at(stub, pe + SECTION_COUNT)?,
        };
        uki.drop_symbols()?;
        Ok(uki)
    }

    /// Older stubs have symbols after the last section, where the new ones go.
    fn drop_symbols(&mut self) -> anyhow::Result<()> {
        let mut end = 0;
        for number in 0..self.count {
            let entry = self.table + number * ENTRY;
            let raw = u32_at(&self.image, entry + RAW_OFFSET)?;
            end = end.max(raw + u32_at(&self.image, entry + RAW_SIZE)?);
        }
        self.image.truncate(end);
        put(&mut self.image, self.pe + SYMBOL_TABLE, &[0; 8])
    }

    /// Adds a section.
    ///
    /// # Errors
    /// There is no room for its header, its name is too long, or the image becomes too large.
    pub fn with(mut self, name: &str, content: &[u8]) -> anyhow::Result<Self> {
        ensure!(name.len() <= VIRTUAL_SIZE, "{name} is too long a name");
        let entry = self.table + self.count * ENTRY;
        let headers = u32_at(&self.image, self.pe + HEADERS_SIZE)?;
        ensure!(entry + ENTRY <= headers, "the stub's header has no room for section {name}");
        let address = self.free_address()?;
        let file_alignment = u32_at(&self.image, self.pe + FILE_ALIGNMENT)?;
        let offset = self.image.len().next_multiple_of(file_alignment);
        self.image.resize(offset, 0);
        self.image.extend(content);
        let end = self.image.len().next_multiple_of(file_alignment);
        self.image.resize(end, 0);
        self.put_header(entry, name, [content.len(), address, end - offset, offset])?;
        self.count += 1;
        let count = u16::try_from(self.count)?.to_le_bytes();
        put(&mut self.image, self.pe + SECTION_COUNT, &count)?;
        let size = u32::try_from(self.free_address()?)?.to_le_bytes();
        put(&mut self.image, self.pe + IMAGE_SIZE, &size)?;
        Ok(self)
    }

    /// The first address after all sections.
    fn free_address(&self) -> anyhow::Result<usize> {
        let mut end = 0;
        for number in 0..self.count {
            let entry = self.table + number * ENTRY;
            let address = u32_at(&self.image, entry + VIRTUAL_ADDRESS)?;
            end = end.max(address + u32_at(&self.image, entry + VIRTUAL_SIZE)?);
        }
        let alignment = u32_at(&self.image, self.pe + SECTION_ALIGNMENT)?.max(PAGE);
        end.checked_next_multiple_of(alignment)
            .context("the stub's sections lie outside the address space")
    }

    fn put_header(&mut self, at: usize, name: &str, sizes: [usize; 4]) -> anyhow::Result<()> {
        let mut header = name.as_bytes().to_vec();
        header.resize(VIRTUAL_SIZE, 0);
        for size in sizes {
            header.extend(u32::try_from(size)?.to_le_bytes());
        }
        // No relocations and no line numbers.
        header.extend([0; 12]);
        header.extend(READ_ONLY_DATA.to_le_bytes());
        put(&mut self.image, at, &header)
    }

    /// The image.
    pub fn build(self) -> Vec<u8> {
        self.image
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tec_tpm::compute::PeFile;
    use tec_tpm::compute::testing::PeBuilder;

    use super::*;

    /// A stub with room for more section headers.
    fn stub() -> Vec<u8> {
        let mut stub = PeBuilder::new().section(".text", *b"code").build();
        let headers = u32_at(&stub, 0x80 + HEADERS_SIZE).unwrap();
        put(&mut stub, 0x80 + FILE_ALIGNMENT, &512_u32.to_le_bytes()).unwrap();
        put(&mut stub, 0x80 + SECTION_ALIGNMENT, &512_u32.to_le_bytes()).unwrap();
        assert!(headers >= 512);
        stub
    }

    #[test]
    fn sections_are_added_behind_the_stubs_own() {
        let image = Uki::new(&stub()).unwrap().with(".cmdline", b"quiet").unwrap().build();
        PeFile::read(Cursor::new(&image), &[]).unwrap();
        let table = 0x80 + OPTIONAL + u16_at(&image, 0x80 + OPTIONAL_SIZE).unwrap();
        let entry = table + ENTRY;
        assert_eq!(image[entry..entry + 8], *b".cmdline");
        let raw = u32_at(&image, entry + RAW_OFFSET).unwrap();
        assert_eq!(image[raw..raw + 5], *b"quiet");
        let address = u32_at(&image, entry + VIRTUAL_ADDRESS).unwrap();
        assert!(address.is_multiple_of(PAGE));
        assert_eq!(u16_at(&image, 0x80 + SECTION_COUNT).unwrap(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Uki::new(b"MZ").is_err());
        assert!(Uki::new(&stub()).unwrap().with(".much-too-long", b"").is_err());
        let mut uki = Uki::new(&stub()).unwrap();
        for _ in 0..20 {
            match uki.clone().with(".x", b"x") {
                Ok(larger) => uki = larger,
                Err(error) => return assert!(error.to_string().contains("no room")),
            }
        }
        panic!("the header has room for everything");
    }
}
