//! What a node boots: the files on its EFI system partition.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::settings::Settings;

/// The removable-media path (UEFI 2.10, 3.5.1.1), and the file next to it that shim starts.
pub(super) const SHIM: &str = "EFI/BOOT/BOOTX64.EFI";
const GRUB: &str = "EFI/BOOT/grubx64.efi";
/// Where Debian's signed GRUB looks for its commands.
const COMMANDS: &str = "EFI/debian/grub.cfg";
const KERNEL: &str = "vmlinuz";
const INITIAL: &str = "initrd.img";
/// A panic shuts the machine down immediately. On a busy host, emulated ticks come too late for the kernel's
/// timer check, which would panic.
const COMMAND_LINE: &str = "console=ttyS0,115200 panic=-1 no_timer_check loglevel=3";

/// The parts of an image.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Debian suite of shim and GRUB.
    pub loader: &'static str,
    /// Kernel in the cache: `current` or `update`.
    pub kernel: &'static str,
    /// File with the initial file system.
    pub initial: PathBuf,
    /// Added to the usual command line.
    pub command_line: &'static str,
    /// Added to GRUB's commands.
    pub command: &'static str,
}

/// The files on an EFI system partition.
#[derive(Clone, Debug)]
pub struct Image {
    directory: PathBuf,
}

impl Image {
    /// Writes the files to a new directory.
    pub fn write(settings: &Settings, directory: &Path, parts: &Parts) -> anyhow::Result<Self> {
        let loader = settings.cache.join("boot").join(parts.loader);
        let kernel = settings.cache.join("node").join(parts.kernel).join("vmlinuz");
        for (from, to) in [
            (loader.join("shimx64.efi").as_path(), SHIM),
            (&loader.join("grubx64.efi"), GRUB),
            (&kernel, KERNEL),
            (parts.initial.as_path(), INITIAL),
        ] {
            let to = place(directory, to)?;
            fs::copy(from, &to).with_context(|| {
                format!("cannot copy {}; `cargo xtask vm` fetches it", from.display())
            })?;
        }
        let Parts { command_line: more, command, .. } = parts;
        let commands = format!(
            "set timeout=0\n{command}linux /{KERNEL} {COMMAND_LINE}{more}\ninitrd /{INITIAL}\nboot\n"
        );
        fs::write(place(directory, COMMANDS)?, commands).context("cannot write GRUB's commands")?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Directory of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

fn place(directory: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = directory.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    Ok(path)
}
