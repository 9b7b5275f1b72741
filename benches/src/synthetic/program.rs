//! PE files and unified kernel images of any size up to the format's limit of 4 GiB.

use std::io;
use std::io::Read;
use std::sync::Arc;

use tec_core::reference::{BootImage, ImageFile};
use tec_tpm::compute::testing::{PeBuilder, application};

use super::bytes;

/// Length of the repeated filler; large compared with first-level caches, small compared with memory.
const BLOCK: usize = 1 << 20;
/// Smallest program: headers and one section, each of one file alignment.
const SMALLEST: u64 = 1024;

/// A PE file whose last section is as large as desired. Unsigned, so for machines without Secure Boot.
#[derive(Clone, Debug)]
pub struct Program {
    start: Arc<[u8]>,
    filling: Arc<[u8]>,
    size: u64,
}

impl Program {
    /// A program with one section. `size` is rounded to the file alignment of 512 bytes and is at
    /// least 1 KiB.
    pub fn new(seed: u64, size: u64) -> Self {
        let file = PeBuilder::new().section(".text", bytes(seed, 512));
        Self::grown(file.build(), seed, size)
    }

    /// A unified kernel image with systemd-stub 257; its initial file system fills the rest.
    pub fn uki(seed: u64, size: u64) -> Self {
        let file = PeBuilder::new()
            .section(".sdmagic", "#### LoaderInfo: systemd-stub 257.13 ####")
            .section(".osrel", "ID=synthetic\nVERSION_ID=1\n")
            .section(".cmdline", "root=/dev/mapper/root ro quiet")
            .section(".uname", "6.12.0-synthetic")
            .section(".linux", application("Linux"))
            .section(".initrd", bytes(seed, 512));
        Self::grown(file.build(), seed, size)
    }

    fn grown(mut start: Vec<u8>, seed: u64, size: u64) -> Self {
        let least = (start.len() as u64).max(SMALLEST);
        let size = size.max(least) / 512 * 512;
        let more = size.saturating_sub(start.len() as u64);
        grow_last_section(&mut start, more);
        Self {
            size: start.len() as u64 + more,
            start: start.into(),
            filling: bytes(seed ^ 0xf1, BLOCK).into(),
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from the beginning.
    pub fn reader(&self) -> impl ImageFile + use<> {
        Reader { program: self.clone(), at: 0 }
    }

    /// This program as the only content of an image, where firmware looks for it.
    pub fn image(self) -> ProgramImage {
        ProgramImage(self)
    }

    /// The bytes at `at`, up to where the filler repeats.
    fn piece(&self, at: u64) -> &[u8] {
        let left = usize::try_from(self.size - at).unwrap_or(usize::MAX);
        let place = usize::try_from(at).unwrap_or(usize::MAX);
        let rest = match place.checked_sub(self.start.len()) {
            None => self.start.get(place..),
            Some(filled) => self.filling.get(filled % BLOCK..),
        };
        let rest = rest.unwrap_or_default();
        rest.get(..left.min(rest.len())).unwrap_or_default()
    }
}

/// Increases both sizes of the last section (PE format, "Section Table": VirtualSize at 8, SizeOfRawData at
/// 16 of 40 bytes).
fn grow_last_section(file: &mut [u8], more: u64) {
    let number = |at: usize, width: usize| {
        let bytes = file.get(at..at + width).unwrap_or_default();
        bytes.iter().rev().fold(0, |n: usize, b| (n << 8) | usize::from(*b))
    };
    let coff = number(0x3c, 4) + 4;
    let (sections, optional) = (number(coff + 2, 2), number(coff + 16, 2));
    let last = coff + 20 + optional + 40 * sections.saturating_sub(1);
    let raw = number(last + 16, 4);
    // A section has at most 4 GiB, like the whole file.
    let size = u32::try_from(raw as u64 + more).unwrap_or(u32::MAX);
    for field in [last + 8, last + 16] {
        if let Some(slot) = file.get_mut(field..field + 4) {
            slot.copy_from_slice(&size.to_le_bytes());
        }
    }
}

struct Reader {
    program: Program,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut piece = self.program.piece(self.at);
        let count = piece.read(buffer)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl ImageFile for Reader {
    fn size(&self) -> Option<u64> {
        Some(self.program.size)
    }
}

/// An image with one [`Program`].
#[derive(Clone, Debug)]
pub struct ProgramImage(Program);

/// Path that firmware starts by default (UEFI 2.10, 3.5.1.1).
const DEFAULT: &str = "EFI/BOOT/BOOTX64.EFI";

impl BootImage for ProgramImage {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let below = prefix.is_empty() || DEFAULT.starts_with(&format!("{prefix}/"));
        Ok(below.then(|| DEFAULT.to_owned()).into_iter().collect())
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        if path != DEFAULT {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Box::new(self.0.reader()))
    }
}

#[cfg(test)]
mod tests {
    use tec_core::pcr::PcrIndex;
    use tec_tpm::compute::{BootPredictor, PeFile, PlatformState, Register};

    use super::*;

    #[test]
    fn programs_of_any_size_are_read_to_their_end() {
        for size in [0, 1024, 5000, (3 << 20) + 512] {
            let program = Program::new(7, size);
            let read = PeFile::read(program.reader(), &[]).unwrap();
            assert_eq!(read.size(), program.size());
            assert_eq!(program.size(), size.max(1024) / 512 * 512);
        }
    }

    #[test]
    fn the_stream_is_the_same_in_whatever_pieces_it_is_read() {
        let program = Program::uki(7, 3 << 20);
        let mut whole = Vec::new();
        program.reader().read_to_end(&mut whole).unwrap();
        assert_eq!(whole.len() as u64, program.size());
        let mut reader = program.reader();
        let mut again = Vec::new();
        let mut piece = [0; 777];
        while let count @ 1.. = reader.read(&mut piece).unwrap() {
            again.extend_from_slice(&piece[..count]);
        }
        assert_eq!(whole, again);
    }

    #[test]
    fn a_unified_kernel_image_of_any_size_is_predicted() {
        let machine = PlatformState::new();
        let predict = |seed, size| {
            let image = Program::uki(seed, size).image();
            let prediction = BootPredictor::new().predict(&image, &machine).unwrap();
            match prediction.register(PcrIndex::KERNEL_BOOT) {
                Register::Predicted(value) => value,
                other => panic!("{other}"),
            }
        };
        let value = predict(1, 1 << 20);
        assert_eq!(value, predict(1, 1 << 20));
        assert_ne!(value, predict(2, 1 << 20));
        assert_ne!(value, predict(1, 2 << 20));
    }
}
