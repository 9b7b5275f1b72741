//! A single EFI program, such as a unified kernel image, as an image of one file.

use std::io;
use std::sync::Arc;

use tec_core::reference::{BootImage, ImageFile};

use super::bytes::Bytes;

/// Where firmware finds a program without a boot entry (UEFI 2.10, 3.5.1.1).
pub(super) const PROGRAM: &str = "EFI/BOOT/BOOTX64.EFI";

/// An EFI system partition with only this program.
#[derive(Debug)]
pub(super) struct ProgramImage(pub(super) Arc<Bytes>);

impl BootImage for ProgramImage {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let prefix = prefix.trim_matches('/');
        let rest = PROGRAM.strip_prefix(prefix);
        let is_below = rest.is_some_and(|rest| prefix.is_empty() || rest.starts_with('/'));
        Ok(is_below.then(|| PROGRAM.to_owned()).into_iter().collect())
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        if path != PROGRAM {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Box::new(self.0.window(0..self.0.size())))
    }
}
