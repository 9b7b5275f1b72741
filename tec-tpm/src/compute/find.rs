//! Finds the boot files of an image.
//!
//! Layouts, tried in this order; the first one with a shim or a GRUB is used:
//! `usr/lib/efi/**/EFI/*/{shimx64,grubx64}.efi`, the same below `usr/lib/bootupd/updates`, the
//! packages of Debian (`usr/lib/shim`, `usr/lib/grub`), and an EFI system partition at the root, in
//! `efi`, `boot/efi` or `boot`. Kernels: `usr/lib/modules/*/vmlinuz`, else `boot/vmlinuz-*`, else
//! `vmlinuz*` at the root.

use std::io::Read as _;
use std::{fmt, io};

use tec_core::reference::BootImage;

/// A file of the boot chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BootComponent {
    /// shim.
    Shim,
    /// GRUB.
    Grub,
    /// The kernel.
    Kernel,
}

impl fmt::Display for BootComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shim => "shim",
            Self::Grub => "GRUB",
            Self::Kernel => "kernel",
        })
    }
}

/// Paths of a boot chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BootFiles {
    /// shim.
    pub shim: String,
    /// GRUB.
    pub grub: String,
    /// All kernels; it is not known which of them boots.
    pub kernels: Vec<String>,
}

/// The boot files cannot be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The image cannot be listed.
    #[error("cannot list the files below {prefix:?}")]
    List {
        /// Folder; empty for the root.
        prefix: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// Path in the image.
        file: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No layout has the file.
    #[error("no {0} was found in any known layout")]
    Missing(BootComponent),
    /// Several files match.
    #[error("several files could be the {component}: {}", candidates.join(", "))]
    Ambiguous {
        /// The component.
        component: BootComponent,
        /// The matching files.
        candidates: Vec<String>,
    },
}

/// Finds shim, GRUB and kernels.
///
/// # Errors
/// [`FindError`] when shim or GRUB is missing, or when there are several. An image without a kernel
/// is not an error here.
pub fn find_boot_files(image: &dyn BootImage) -> Result<BootFiles, FindError> {
    let (shim, grub) = find_loaders(image)?.only()?;
    Ok(BootFiles { shim, grub, kernels: find_kernels(image)? })
}

/// The only kernel that matches.
pub(super) fn only_kernel(image: &dyn BootImage) -> Result<String, FindError> {
    only(BootComponent::Kernel, find_kernels(image)?)
}

/// The one file that firmware starts, and the one that shim would start, if there is one.
pub(super) fn stages(image: &dyn BootImage) -> Result<(String, Option<String>), FindError> {
    let mut loaders = find_loaders(image)?;
    let second = loaders.grubs.pop();
    if !loaders.grubs.is_empty() {
        loaders.grubs.extend(second);
        return Err(FindError::Ambiguous {
            component: BootComponent::Grub,
            candidates: loaders.grubs,
        });
    }
    Ok((only(BootComponent::Shim, loaders.shims)?, second))
}

/// A path that differs only in case, as a FAT file system allows.
pub(super) fn spelled(image: &dyn BootImage, path: &str) -> Result<Option<String>, FindError> {
    let folder = path.split('/').next().filter(|first| *first != path);
    let mut files = list(image, folder.unwrap_or_default())?;
    if files.is_empty() {
        files = list(image, "")?;
    }
    let exact = files.iter().position(|file| file == path);
    let same = || files.iter().position(|f| f.eq_ignore_ascii_case(path));
    let found = exact.or_else(same);
    Ok(found.map(|position| files.swap_remove(position)))
}

/// Where an EFI system partition may be in an image.
pub(super) const PARTITIONS: [&str; 4] = ["", "efi/", "boot/efi/", "boot/"];
/// What shim starts by default.
pub(super) const GRUB: &str = "grubx64.efi";
/// The program next to shim that creates boot entries (shim, README.fallback).
pub(super) const FALLBACK: &str = "fbx64.efi";

/// Whether a folder is the one that firmware starts from without a boot entry.
pub(super) fn is_removable(folder: &str) -> bool {
    let mut parts = folder.rsplit('/');
    let is = |part: Option<&str>, name| part.is_some_and(|p| p.eq_ignore_ascii_case(name));
    is(parts.next(), "BOOT") && is(parts.next(), "EFI")
}

/// Bytes of a loader that are compared with a copy; the largest GRUB has some 4 MiB.
const MAX_LOADER: u64 = 16 << 20;

#[derive(Debug, Default)]
struct Loaders {
    shims: Vec<String>,
    grubs: Vec<String>,
}

impl Loaders {
    fn only(self) -> Result<(String, String), FindError> {
        Ok((only(BootComponent::Shim, self.shims)?, only(BootComponent::Grub, self.grubs)?))
    }

    fn is_empty(&self) -> bool {
        self.shims.is_empty() && self.grubs.is_empty()
    }
}

fn find_loaders(image: &dyn BootImage) -> Result<Loaders, FindError> {
    let mut loaders = all_loaders(image)?;
    drop_copies(image, &mut loaders.shims)?;
    drop_copies(image, &mut loaders.grubs)?;
    Ok(loaders)
}

/// Leaves the first of several equal files: installers put the same loaders into the folder of removable
/// media and into that of the vendor.
fn drop_copies(image: &dyn BootImage, paths: &mut Vec<String>) -> Result<(), FindError> {
    let Some((first, copies)) = paths.split_first().filter(|(_, copies)| !copies.is_empty()) else {
        return Ok(());
    };
    let content = content(image, first)?;
    for copy in copies {
        if self::content(image, copy)? != content {
            return Ok(());
        }
    }
    paths.truncate(1);
    Ok(())
}

fn content(image: &dyn BootImage, path: &str) -> Result<Vec<u8>, FindError> {
    let refuse = |source| FindError::Read { file: path.to_owned(), source };
    let mut content = Vec::new();
    let reader = image.open(path).map_err(refuse)?;
    reader.take(MAX_LOADER).read_to_end(&mut content).map_err(refuse)?;
    Ok(content)
}

fn all_loaders(image: &dyn BootImage) -> Result<Loaders, FindError> {
    for prefix in ["usr/lib/efi", "usr/lib/bootupd/updates"] {
        let loaders = vendor_loaders(&list(image, prefix)?);
        if !loaders.is_empty() {
            return Ok(loaders);
        }
    }
    let packages = package_loaders(image)?;
    if !packages.is_empty() {
        return Ok(packages);
    }
    for partition in PARTITIONS {
        let loaders = partition_loaders(&list(image, &format!("{partition}EFI"))?);
        if !loaders.is_empty() {
            return Ok(loaders);
        }
    }
    Ok(Loaders::default())
}

/// `**/EFI/<vendor>/{shimx64,grubx64}.efi`.
fn vendor_loaders(files: &[String]) -> Loaders {
    let named = |name: &str| {
        let fits = |path: &&String| {
            let mut parts = path.rsplit('/');
            parts.next() == Some(name) && parts.nth(1) == Some("EFI")
        };
        files.iter().filter(fits).cloned().collect()
    };
    Loaders { shims: named("shimx64.efi"), grubs: named(GRUB) }
}

/// Where Debian's packages shim-signed and grub-efi-amd64-signed put their files.
fn package_loaders(image: &dyn BootImage) -> Result<Loaders, FindError> {
    let named = |prefix, path: &str| {
        let files = list(image, prefix)?;
        Ok(files.into_iter().filter(|file| file == path).collect())
    };
    Ok(Loaders {
        shims: named("usr/lib/shim", "usr/lib/shim/shimx64.efi.signed")?,
        grubs: named(
            "usr/lib/grub/x86_64-efi-signed",
            "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
        )?,
    })
}

/// Folders of an EFI system partition that hold a shim and a GRUB next to it; the file system
/// ignores case. A folder with only one of the two counts only if there is no complete one; the
/// folder of removable media, if its shim creates boot entries, only if there is no other.
fn partition_loaders(files: &[String]) -> Loaders {
    let mut complete = Loaders::default();
    let mut partial = Loaders::default();
    for shim in files.iter().filter(|path| is_partition_shim(path)) {
        let folder = shim.rsplit_once('/').map_or("", |(folder, _)| folder);
        let grub = files.iter().find(|path| {
            path.rsplit_once('/').is_some_and(|(beside, name)| {
                beside.eq_ignore_ascii_case(folder) && name.eq_ignore_ascii_case(GRUB)
            })
        });
        let makes_entries = || {
            is_removable(folder)
                && files
                    .iter()
                    .any(|path| path.eq_ignore_ascii_case(&format!("{folder}/{FALLBACK}")))
        };
        if let Some(grub) = grub.filter(|_| !makes_entries()) {
            complete.shims.push(shim.clone());
            complete.grubs.push(grub.clone());
        } else {
            partial.shims.push(shim.clone());
        }
    }
    if complete.is_empty() { partial } else { complete }
}

fn is_partition_shim(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let (name, folder) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let fallback = folder.eq_ignore_ascii_case("BOOT");
    // UEFI 2.10, 3.5.1.1: the file name of the default boot on x64.
    let name_of_shim = if fallback { "BOOTX64.EFI" } else { "shimx64.efi" };
    name.eq_ignore_ascii_case(name_of_shim)
}

fn find_kernels(image: &dyn BootImage) -> Result<Vec<String>, FindError> {
    let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
    let modules = kernels(
        image,
        "usr/lib/modules",
        |path| matches!(parts(path).as_slice(), [_, _, _, _, name] if name == "vmlinuz"),
    )?;
    if !modules.is_empty() {
        return Ok(modules);
    }
    let boot = kernels(
        image,
        "boot",
        |path| matches!(parts(path).as_slice(), [_, name] if name.starts_with("vmlinuz-")),
    )?;
    if !boot.is_empty() {
        return Ok(boot);
    }
    kernels(image, "", |path| !path.contains('/') && path.starts_with("vmlinuz"))
}

fn kernels(
    image: &dyn BootImage,
    prefix: &str,
    fits: impl Fn(&str) -> bool,
) -> Result<Vec<String>, FindError> {
    let files = list(image, prefix)?;
    Ok(files.into_iter().filter(|path| fits(path)).collect())
}

fn only(component: BootComponent, mut candidates: Vec<String>) -> Result<String, FindError> {
    if candidates.len() > 1 {
        return Err(FindError::Ambiguous { component, candidates });
    }
    candidates.pop().ok_or(FindError::Missing(component))
}

pub(super) fn list(image: &dyn BootImage, prefix: &str) -> Result<Vec<String>, FindError> {
    image.files(prefix).map_err(|source| FindError::List { prefix: prefix.to_owned(), source })
}
