//! An image whose files lie in tar streams, one over the other.

mod error;
mod kept;
mod layer;

use std::fmt;
use std::io;

use tec_core::reference::BootImage;
use tec_core::reference::ImageFile;

pub use self::error::LayerError;
use self::kept::Kept;
pub(super) use self::layer::Layer;
pub(super) use self::layer::Source;
use super::bytes::Window;
use super::ostree::Folders;
use super::tar::Item;
use super::tar::ItemKind;
use super::tree::Node;
use super::tree::Tree;
use super::tree::TreeError;

/// What whiteouts mean in tar streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whiteouts {
    /// Files with odd names.
    Ordinary,
    /// OCI Image Specification 1.1, layer.md, "Whiteouts": they remove what is below.
    Removing,
}

/// The files of tar streams, the later ones over the earlier ones.
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

/// Prefix of whiteouts, and the name of the one that hides all of a folder.
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

impl fmt::Debug for LayeredImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.layers).finish()
    }
}

impl LayeredImage {
    /// Reads all streams once. What looks like a boot file is kept on the way.
    ///
    /// The error comes with the number of the layer.
    pub(super) fn open(
        layers: Vec<Layer>,
        whiteouts: Whiteouts,
    ) -> Result<Self, (usize, LayerError)> {
        let mut image = Self {
            layers: Vec::new(),
            tree: Tree::new(),
            kept: Kept::default(),
        };
        for (number, layer) in layers.into_iter().enumerate() {
            let read = image.put_over(number, &layer, whiteouts);
            read.map_err(|error| (number, error))?;
            image.layers.push(layer);
        }
        Ok(image)
    }

    fn put_over(
        &mut self,
        number: usize,
        layer: &Layer,
        whiteouts: Whiteouts,
    ) -> Result<(), LayerError> {
        let must_copy = matches!(layer, Layer::Stream(..));
        let mut kept = Vec::new();
        layer.read(|item, content| {
            let path = item.path.as_deref().unwrap_or_default();
            if must_copy && item.kind == ItemKind::File && is_boot_file(path) {
                kept.push((item.offset, self.kept.copy(item, content)?));
            }
            let put = put(&mut self.tree, number, item, whiteouts);
            put.map_err(|source| LayerError::Entry {
                offset: item.offset,
                source,
            })
        })?;
        self.kept.add(number, kept);
        Ok(())
    }

    /// Whether there is a file at `path`.
    pub(super) fn has_file(&self, path: &str) -> bool {
        self.tree.find(path).is_ok()
    }

    /// Takes what lies below `path` as the image.
    pub(super) fn within(mut self, path: &str) -> Self {
        self.tree = self.tree.within(path);
        self
    }

    fn window(&self, stored: Stored) -> io::Result<Option<Window>> {
        match self.layers.get(stored.layer) {
            Some(Layer::Plain(bytes)) => Ok(Some(
                bytes.window(stored.offset..stored.offset + stored.size),
            )),
            Some(Layer::Stream(..)) => self.kept.find(stored.layer, stored.offset),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Reads a stream once more, for a file that did not look like a boot file: one that is
    /// another name for a file elsewhere, as in the repositories of OSTree.
    fn keep_late(&self, stored: Stored) -> Result<(), LayerError> {
        let Some(layer) = self.layers.get(stored.layer) else {
            return Ok(());
        };
        let mut kept = Vec::new();
        layer.read(|item, content| {
            if item.offset == stored.offset && item.kind == ItemKind::File {
                kept.push((item.offset, self.kept.copy(item, content)?));
            }
            Ok(())
        })?;
        self.kept.add(stored.layer, kept);
        Ok(())
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

/// Where boot files lie; see `find`.
fn is_boot_file(path: &str) -> bool {
    let folders = [
        "usr/lib/efi/",
        "usr/lib/bootupd/updates/",
        "usr/lib/shim/",
        "usr/lib/grub/x86_64-efi-signed/",
        "boot/",
        "efi/",
        "EFI/",
    ];
    let module = path.strip_prefix("usr/lib/modules/");
    let module = module.and_then(|rest| rest.split_once('/'));
    folders.iter().any(|folder| path.starts_with(folder))
        || module.is_some_and(|(_, name)| name == "vmlinuz")
        || (path.starts_with("vmlinuz") && !path.contains('/'))
}

/// Puts an entry into the tree.
fn put(
    tree: &mut Tree<Stored>,
    layer: usize,
    item: &Item,
    whiteouts: Whiteouts,
) -> Result<(), TreeError> {
    // What has a name that is no text is left out, as in a directory; so is the root itself.
    let Some(path) = item.path.as_deref().filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if whiteouts == Whiteouts::Removing && name == OPAQUE {
        tree.empty_before(layer, folder);
        return Ok(());
    }
    if let (Whiteouts::Removing, Some(hidden)) = (whiteouts, name.strip_prefix(WHITEOUT)) {
        let separator = if folder.is_empty() { "" } else { "/" };
        tree.remove_before(layer, &format!("{folder}{separator}{hidden}"));
        return Ok(());
    }
    let file = |is_sparse| {
        Node::File(Stored {
            layer,
            offset: item.offset,
            size: item.size,
            is_sparse,
        })
    };
    match &item.kind {
        ItemKind::File => tree.insert(layer, path, file(false)),
        ItemKind::Sparse => tree.insert(layer, path, file(true)),
        ItemKind::Link(Some(target)) => tree.insert(layer, path, Node::Link(target.clone())),
        ItemKind::HardLink(Some(target)) => tree.insert_hard_link(layer, path, target),
        ItemKind::Folder => tree.insert_folder(path),
        ItemKind::Link(None) | ItemKind::HardLink(None) | ItemKind::Special => {
            tree.remove(path);
            Ok(())
        }
    }
}
