//! What an entry of a tar stream does to the tree of files, and which files are boot files.

use super::error::LayerError;
use super::{Stored, Whiteouts};
use crate::compute::input::tar::{Item, ItemKind};
use crate::compute::input::tree::{Node, Tree, TreeError};

/// Prefix of whiteouts, and the name of the one that hides all of a folder.
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

pub(super) fn names_boot_file(item: &Item) -> bool {
    item.path.as_deref().is_some_and(is_boot_file)
}

/// Whether `path` is where boot files lie; see `find`.
pub(super) fn is_boot_file(path: &str) -> bool {
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
pub(super) fn put(
    tree: &mut Tree<Stored>,
    layer: usize,
    item: &Item,
    whiteouts: Whiteouts,
) -> Result<(), LayerError> {
    put_entry(tree, layer, item, whiteouts)
        .map_err(|source| LayerError::Entry { offset: item.offset, source })
}

fn put_entry(
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
    let file =
        |is_sparse| Node::File(Stored { layer, offset: item.offset, size: item.size, is_sparse });
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
