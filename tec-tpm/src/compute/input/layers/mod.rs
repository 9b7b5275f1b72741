//! An image whose files are in tar streams, layered over one another.

mod error;
mod kept;
mod layer;
mod put;

use std::collections::BTreeSet;
use std::{fmt, io};

use tec_core::reference::{BootImage, ImageFile};

pub use self::error::LayerError;
use self::kept::Kept;
pub(super) use self::layer::Layer;
use self::put::{is_boot_file, names_boot_file, put};
use super::bytes::Window;
use super::ostree::Folders;
use super::tar::Item;
use super::tree::Tree;

/// What whiteouts mean in tar streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whiteouts {
    /// Ordinary files with unusual names.
    Ordinary,
    /// OCI Image Specification 1.1, layer.md, "Whiteouts": they remove what lower layers contain.
    Removing,
}

/// The files of tar streams, later streams over earlier ones.
pub(super) struct LayeredImage {
    layers: Vec<Layer>,
    tree: Tree<Stored>,
    kept: Kept,
}

/// Where the content of a file lies.
#[derive(Clone, Copy, Debug)]
struct Stored {
    layer: usize,
    /// Offset of the content in the stream, which names the entry.
    offset: u64,
    size: u64,
    is_sparse: bool,
}

impl fmt::Debug for LayeredImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.layers).finish()
    }
}

impl LayeredImage {
    /// Reads all streams once. Files that look like boot files are kept.
    ///
    /// The error comes with the number of the layer.
    pub(super) fn open(
        layers: Vec<Layer>,
        whiteouts: Whiteouts,
    ) -> Result<Self, (usize, LayerError)> {
        let mut image = Self { layers: Vec::new(), tree: Tree::new(), kept: Kept::default() };
        for (number, layer) in layers.into_iter().enumerate() {
            let read = image.put_over(number, &layer, whiteouts);
            read.map_err(|error| (number, error))?;
            image.layers.push(layer);
        }
        Ok(image)
    }

    /// Reads streams from the last one down, until `is_enough`; what is below is not read.
    ///
    /// The error comes with the number of the layer.
    pub(super) fn open_until(
        layers: Vec<Layer>,
        is_enough: &dyn Fn(&Self) -> bool,
    ) -> Result<Self, (usize, LayerError)> {
        let count = layers.len();
        let mut image = Self { layers, tree: Tree::new(), kept: Kept::default() };
        // The lowest layer that was read is the last one.
        let mut read: Vec<Vec<Item>> = Vec::new();
        for number in (0..count).rev() {
            let items = image.items(number).map_err(|error| (number, error))?;
            let has_boot_files = items.iter().any(names_boot_file);
            read.push(items);
            // Entries that do not fit may fit what is below.
            if has_boot_files && image.stack(&read).is_ok() && is_enough(&image) {
                return Ok(image);
            }
        }
        image.stack(&read)?;
        Ok(image)
    }

    /// Reads a stream; files that look like boot files are kept.
    fn items(&self, number: usize) -> Result<Vec<Item>, LayerError> {
        let mut items = Vec::new();
        let Some(layer) = self.layers.get(number) else {
            return Ok(items);
        };
        let mut kept = Vec::new();
        layer.read(|item, content| {
            if layer.must_copy(item) && names_boot_file(item) {
                kept.push((item.offset, self.kept.copy(item, content)?));
            }
            items.push(item.clone());
            Ok(())
        })?;
        self.kept.add(number, kept);
        Ok(items)
    }

    /// Stacks the entries of the upper layers; the topmost layer comes first.
    fn stack(&mut self, uppermost: &[Vec<Item>]) -> Result<(), (usize, LayerError)> {
        self.tree = Tree::new();
        let last = self.layers.len();
        for (depth, items) in uppermost.iter().enumerate().rev() {
            let number = last.saturating_sub(depth + 1);
            for item in items {
                put(&mut self.tree, number, item, Whiteouts::Removing)
                    .map_err(|error| (number, error))?;
            }
        }
        Ok(())
    }

    fn put_over(
        &mut self,
        number: usize,
        layer: &Layer,
        whiteouts: Whiteouts,
    ) -> Result<(), LayerError> {
        let mut kept = Vec::new();
        layer.read(|item, content| {
            if layer.must_copy(item) && names_boot_file(item) {
                kept.push((item.offset, self.kept.copy(item, content)?));
            }
            put(&mut self.tree, number, item, whiteouts)
        })?;
        self.kept.add(number, kept);
        Ok(())
    }

    /// Whether there is a file at `path`.
    pub(super) fn has_file(&self, path: &str) -> bool {
        self.tree.find(path).is_ok()
    }

    /// Uses what lies below `path` as the image.
    pub(super) fn within(mut self, path: &str) -> Self {
        self.tree = self.tree.within(path);
        self
    }

    fn window(&self, stored: Stored) -> io::Result<Option<Window>> {
        match self.layers.get(stored.layer) {
            Some(Layer::Plain(bytes)) => {
                Ok(Some(bytes.window(stored.offset..stored.offset + stored.size)))
            }
            Some(Layer::Stream(..) | Layer::Table(_)) => {
                self.kept.find(stored.layer, stored.offset)
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Fetches a file that was not kept. A stream is read once more for files that did not look
    /// like boot files because they are links to files elsewhere, as in OSTree repositories; all of
    /// them are then kept.
    fn keep_late(&self, stored: Stored) -> Result<(), LayerError> {
        let mut kept = Vec::new();
        match self.layers.get(stored.layer) {
            Some(Layer::Table(table)) => {
                if let Some((item, content)) = table.fetch(stored.offset) {
                    let mut content = content
                        .map_err(|source| LayerError::Fetch { number: stored.offset, source })?;
                    kept.push((stored.offset, self.kept.copy(item, &mut content)?));
                }
            }
            Some(layer) => {
                let mut wanted = self.boot_files_of(stored.layer);
                wanted.insert(stored.offset);
                layer.read(|item, content| {
                    if layer.must_copy(item) && wanted.contains(&item.offset) {
                        kept.push((item.offset, self.kept.copy(item, content)?));
                    }
                    Ok(())
                })?;
            }
            None => {}
        }
        self.kept.add(stored.layer, kept);
        Ok(())
    }

    /// Offsets of the files of a layer that have the name of a boot file and were not kept.
    fn boot_files_of(&self, layer: usize) -> BTreeSet<u64> {
        let paths = self.tree.files("").unwrap_or_default().into_iter();
        let boot_files = paths.filter(|path| is_boot_file(path));
        let stored = boot_files.filter_map(|path| self.tree.find(&path).ok().copied());
        let of_layer = stored.filter(|stored| stored.layer == layer);
        let missing = of_layer.filter(|s| matches!(self.kept.find(layer, s.offset), Ok(None)));
        missing.map(|stored| stored.offset).collect()
    }
}

impl Folders for LayeredImage {
    fn folders(&self, path: &str) -> io::Result<Vec<String>> {
        self.tree.folders(path)
    }
}

impl BootImage for LayeredImage {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.tree.files(prefix)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let stored = *self.tree.find(path)?;
        if stored.is_sparse {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the archive stores this file with holes, which is not supported",
            ));
        }
        if let Some(window) = self.window(stored)? {
            return Ok(Box::new(window));
        }
        self.keep_late(stored).map_err(io::Error::other)?;
        match self.window(stored)? {
            Some(window) => Ok(Box::new(window)),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the stream has changed since it was read first",
            )),
        }
    }
}
