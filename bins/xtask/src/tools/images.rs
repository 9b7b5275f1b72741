//! Real boot files: Debian's shim, GRUB and two kernels, as file trees.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use super::archive::{Archive, entries, file_name, move_into, rename, unpack, write};
use super::{Tools, is_stamped, remove_dir, scratch, stamp};

const NAME: &str = "images";
/// Incremented when the layout of the trees changes, so that old ones are rebuilt.
const LAYOUT: &str = "1";
/// Boot loaders, signed by Microsoft and by Debian.
const LOADERS: [&str; 2] = ["shim-signed", "grub-efi-amd64-signed"];
/// Metapackages; each version depends on one kernel. The second is for suites that contain only one version
/// of the first.
const KERNELS: [&str; 2] = ["linux-image-amd64", "linux-image-cloud-amd64"];
/// What to keep from the packages: the directories of boot loaders, and the kernel itself.
const LOADER_DIRS: [&str; 2] = ["usr/lib/shim", "usr/lib/grub"];

/// Downloads and unpacks the trees unless they exist.
pub(super) fn ensure(tools: &Tools, apt: &mut Apt) -> Result<()> {
    let complete = ["current", "update"].iter().all(|tree| tools.images.join(tree).is_dir());
    if is_stamped(tools, NAME, LAYOUT) && complete {
        return Ok(());
    }
    let archive = Archive::of_machine(apt)?;
    let work = scratch(tools, NAME)?;
    let [update, current] = two_kernels(&archive)?;
    let tree = work.join("debian");
    let mut packages = String::new();
    for (name, kernel) in [("current", &current), ("update", &update)] {
        let root = tree.join(name);
        for package in LOADERS.iter().copied().chain([kernel.as_str()]) {
            let deb = archive.download(&work, package)?;
            keep_boot_files(&work, &deb, &root)?;
            packages.extend([name, "\t", &file_name(&deb), "\n"]);
        }
    }
    write(&tree.join("PACKAGES"), &packages)?;
    remove_dir(&tools.images)?;
    if let Some(parent) = tools.images.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    rename(&tree, &tools.images)?;
    stamp(tools, NAME, LAYOUT)?;
    remove_dir(&work)
}

/// The newest kernel and the one before it, or the newest of both flavors.
fn two_kernels(archive: &Archive) -> Result<[String; 2]> {
    let mut found: Vec<String> = Vec::new();
    for metapackage in KERNELS {
        found.extend(archive.kernels(metapackage)?);
        if found.len() >= 2 {
            break;
        }
    }
    let mut kernels = found.into_iter();
    match (kernels.next(), kernels.next()) {
        (Some(newest), Some(older)) => Ok([newest, older]),
        _ => bail!("fewer than two kernels can be had from the apt sources of this machine"),
    }
}

/// Unpacks the package and moves boot loaders and kernel into `root`; the rest, mostly modules, is dropped.
fn keep_boot_files(work: &Path, deb: &Path, root: &Path) -> Result<()> {
    let unpacked = work.join("unpacked");
    unpack(deb, &unpacked)?;
    for dir in LOADER_DIRS {
        if unpacked.join(dir).is_dir() {
            move_into(&unpacked.join(dir), &root.join(dir))?;
        }
    }
    if unpacked.join("boot").is_dir() {
        for file in entries(&unpacked.join("boot"))? {
            if file_name(&file).starts_with("vmlinuz-") {
                move_into(&file, &root.join("boot").join(file_name(&file)))?;
            }
        }
    }
    remove_dir(&unpacked)
}
