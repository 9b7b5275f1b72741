//! An image whose files are in memory.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::{fmt, io};

use tec_core::reference::{BootImage, ImageFile};

/// An image whose files are in memory: for tests, and for what was unpacked from a registry.
#[derive(Clone, Default)]
pub struct MemoryImage {
    files: BTreeMap<String, Arc<[u8]>>,
}

impl MemoryImage {
    /// An image without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a file; `path` is relative, separated by `/`.
    pub fn with(mut self, path: impl Into<String>, content: impl Into<Arc<[u8]>>) -> Self {
        self.insert(path, content);
        self
    }

    /// Adds or replaces a file; `path` is relative, separated by `/`.
    pub fn insert(&mut self, path: impl Into<String>, content: impl Into<Arc<[u8]>>) {
        self.files.insert(path.into(), content.into());
    }

    /// Content of a file.
    pub fn content(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(AsRef::as_ref)
    }
}

/// Names and sizes only; contents are large.
impl fmt::Debug for MemoryImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.files.iter().map(|(path, content)| (path, content.len()));
        f.debug_map().entries(sizes).finish()
    }
}

impl BootImage for MemoryImage {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let below = |path: &&String| {
            prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
        };
        Ok(self.files.keys().filter(below).cloned().collect())
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let content = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(MemoryFile(Cursor::new(Arc::clone(content)))))
    }
}

struct MemoryFile(Cursor<Arc<[u8]>>);

impl Read for MemoryFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl ImageFile for MemoryFile {
    fn size(&self) -> Option<u64> {
        Some(self.0.get_ref().len() as u64)
    }
}
