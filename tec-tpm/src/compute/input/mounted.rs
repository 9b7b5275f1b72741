//! File systems of one disk, where a machine mounts them.

use std::io;

use tec_core::reference::{BootImage, ImageFile};

/// A file system, and the folder that it is mounted at: empty, or with a slash at its end.
pub(super) type Mount = (&'static str, Box<dyn BootImage>);

/// File systems; what is mounted within another one comes before it.
#[derive(Debug)]
pub(super) struct Mounted(pub(super) Vec<Mount>);

impl Mounted {
    /// The file system that a path leads to.
    fn of(&self, path: &str) -> Option<&Mount> {
        self.0.iter().find(|(place, _)| path.starts_with(place))
    }
}

impl BootImage for Mounted {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        let prefix = match prefix.trim_end_matches('/') {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let mut found = Vec::new();
        for (place, image) in &self.0 {
            let files = match prefix.strip_prefix(place) {
                Some(within) => image.files(within)?,
                None if place.starts_with(&prefix) => image.files("")?,
                None => continue,
            };
            let paths = files.into_iter().map(|file| format!("{place}{file}"));
            // What lies below the place of another file system is hidden by it.
            found.extend(paths.filter(|path| self.of(path).is_some_and(|of| of.0 == *place)));
        }
        found.sort();
        Ok(found)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let (place, image) = self.of(path).ok_or(io::ErrorKind::NotFound)?;
        image.open(path.strip_prefix(place).unwrap_or(path))
    }
}
