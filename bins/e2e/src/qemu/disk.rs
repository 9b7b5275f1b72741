//! Disks: a directory becomes the EFI system partition of a disk image.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Seek as _;
use std::io::SeekFrom;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::gpt;
use super::must;

/// How GRUB names the partition of a disk that [`write`] made, when it is the first disk.
pub const GRUB_DEVICE: &str = "hd0,gpt1";
/// Room beside the files: directories, tables, and what firmware may write.
const SPARE: u64 = 16 << 20;
/// Below 32 MiB `mformat` would choose FAT12, which UEFI does not know on disks (UEFI 2.10, 13.3).
const MINIMUM: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

/// Writes a disk whose only partition holds the files of `directory`.
///
/// # Errors
/// The directory cannot be read, the disk not be written, or mtools are not installed.
pub fn write(directory: &Path, disk: &Path) -> anyhow::Result<()> {
    let size = (size_of(directory)? + SPARE).max(MINIMUM);
    let size = size.next_multiple_of(MIB);
    let partition = disk.with_extension("fat");
    let create = || format!("create {}", partition.display());
    let file = File::create(&partition).with_context(create)?;
    file.set_len(size).with_context(create)?;
    fill(directory, &partition)?;
    wrap(&partition, disk, size).with_context(|| format!("write {}", disk.display()))?;
    fs::remove_file(&partition).with_context(|| format!("remove {}", partition.display()))
}

/// Formats the partition and copies the files into it.
fn fill(directory: &Path, partition: &Path) -> anyhow::Result<()> {
    let mut format = Command::new("mformat");
    must(format.arg("-i").arg(partition).args(["-v", "ESP", "::"]))?;
    let mut copy = Command::new("mcopy");
    copy.arg("-i").arg(partition).args(["-s", "-Q"]);
    let entries = fs::read_dir(directory)
        .with_context(|| format!("list {}", directory.display()))?
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("list {}", directory.display()))?;
    copy.args(entries.iter().map(fs::DirEntry::path));
    must(copy.arg("::"))
}

fn wrap(partition: &Path, disk: &Path, size: u64) -> io::Result<()> {
    let mut file = File::create(disk)?;
    file.set_len(gpt::disk_size(size))?;
    gpt::write(&mut file, size)?;
    file.seek(SeekFrom::Start(gpt::offset()))?;
    io::copy(&mut File::open(partition)?, &mut file)?;
    Ok(())
}

fn size_of(directory: &Path) -> anyhow::Result<u64> {
    let list = || format!("list {}", directory.display());
    let mut size = 0;
    for entry in fs::read_dir(directory).with_context(list)? {
        let entry = entry.with_context(list)?;
        let meta = entry.metadata().with_context(list)?;
        size += if meta.is_dir() {
            size_of(&entry.path())?
        } else {
            meta.len()
        };
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_holds_the_files_of_the_directory() {
        let work = tempfile::tempdir().unwrap();
        let directory = work.path().join("esp");
        fs::create_dir_all(directory.join("EFI/BOOT")).unwrap();
        fs::write(directory.join("EFI/BOOT/BOOTX64.EFI"), b"program").unwrap();
        let disk = work.path().join("disk.img");
        write(&directory, &disk).unwrap();
        let listed = Command::new("mtype")
            .arg("-i")
            .arg(format!("{}@@{}", disk.display(), gpt::offset()))
            .arg("::/EFI/BOOT/BOOTX64.EFI")
            .output()
            .unwrap();
        assert_eq!(listed.stdout, b"program");
        assert!(!work.path().join("disk.fat").exists());
    }
}
