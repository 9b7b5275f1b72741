//! Disks: turns a directory into the EFI system partition of a disk image.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::Context as _;

use super::gpt::Partition;
use super::{gpt, must};

/// GRUB's name for the partition of a disk created by [`write()`], if it is the first disk.
pub const GRUB_DEVICE: &str = "hd0,gpt1";
/// Space in addition to the files: directories, tables, and what firmware may write.
const SPARE: u64 = 16 << 20;
/// Below 32 MiB, `mformat` would choose FAT12, which UEFI does not support on disks (UEFI 2.10, 13.3).
const MINIMUM: u64 = 32 << 20;
const MIB: u64 = 1 << 20;
/// Size of the system partition on a disk with a root: enough for one image of a node.
const SYSTEM: u64 = 80 * MIB;
/// Bytes of the root; a LUKS2 header takes 16 MiB of them.
pub const ROOT: u64 = 96 * MIB;

/// Bytes of the partitions that an installer makes: the system partition, `/boot`, and the encrypted root.
const INSTALLED_SYSTEM: u64 = 256 * MIB;
const INSTALLED_BOOT: u64 = 512 * MIB;
/// The root among them.
pub const INSTALLED_ROOT: u64 = 3072 * MIB;

/// Writes a disk whose only partition contains the files of `directory`.
///
/// # Errors
/// The directory cannot be read, the disk cannot be written, or mtools are not installed.
pub fn write(directory: &Path, disk: &Path) -> anyhow::Result<()> {
    let size = (size_of(directory)? + SPARE).max(MINIMUM);
    let size = size.next_multiple_of(MIB);
    let system = File::create(disk).and_then(|file| partition(file, &[Partition::system(size)]));
    system.with_context(|| format!("partition {}", disk.display()))?;
    write_system(directory, disk, size)
}

/// Writes a disk with an EFI system partition of fixed size and an empty partition named `root`.
pub fn write_with_root(disk: &Path) -> anyhow::Result<()> {
    let both = [Partition::system(SYSTEM), Partition::root(ROOT)];
    let written = File::create(disk).and_then(|file| partition(file, &both));
    written.with_context(|| format!("partition {}", disk.display()))
}

/// Partitions of an installer.
const INSTALLED: [Partition; 3] = [
    Partition::system(INSTALLED_SYSTEM),
    Partition::boot(INSTALLED_BOOT),
    Partition::root(INSTALLED_ROOT),
];

/// Writes a disk with the empty partitions of an installer.
pub fn write_as_installer(disk: &Path) -> anyhow::Result<()> {
    let written = File::create(disk).and_then(|file| partition(file, &INSTALLED));
    written.with_context(|| format!("partition {}", disk.display()))
}

/// Adds a partition of this size in bytes, with this content, to such a disk.
pub fn add_to_installed(disk: &Path, size: u64, content: &[u8]) -> anyhow::Result<()> {
    let added = Partition::added(size);
    let all: Vec<_> = INSTALLED.into_iter().chain([added]).collect();
    let file = File::options().read(true).write(true).open(disk);
    let file = file.with_context(|| format!("open {}", disk.display()))?;
    let at = offset_of_installed_root() + INSTALLED_ROOT;
    // The end of the disk, with the table's copy, was there.
    file.set_len(at).and_then(|()| partition(file.try_clone()?, &all))?;
    file.write_all_at(content, at).with_context(|| format!("write {}", disk.display()))
}

/// Offset and size in bytes of the system partition and of `/boot`, on a disk created by
/// [`write_as_installer()`].
pub fn installed_partitions() -> [(u64, u64); 2] {
    let boot = gpt::offset() + INSTALLED_SYSTEM;
    [(gpt::offset(), INSTALLED_SYSTEM), (boot, INSTALLED_BOOT)]
}

/// Offset of the root on such a disk, in bytes.
pub fn offset_of_installed_root() -> u64 {
    gpt::offset() + INSTALLED_SYSTEM + INSTALLED_BOOT
}

/// Replaces the content of the EFI system partition, on a disk created by [`write_with_root()`], with the
/// files of `directory`.
pub fn replace_system(directory: &Path, disk: &Path) -> anyhow::Result<()> {
    write_system(directory, disk, SYSTEM)
}

fn partition(mut disk: File, partitions: &[Partition]) -> io::Result<()> {
    disk.set_len(gpt::disk_size(partitions))?;
    gpt::write(&mut disk, partitions)
}

fn write_system(directory: &Path, disk: &Path, size: u64) -> anyhow::Result<()> {
    let partition = disk.with_extension("fat");
    let create = || format!("create {}", partition.display());
    let file = File::create(&partition).with_context(create)?;
    file.set_len(size).with_context(create)?;
    fill(directory, &partition)?;
    copy_in(&partition, disk).with_context(|| format!("cannot write {}", disk.display()))?;
    fs::remove_file(&partition).with_context(|| format!("cannot remove {}", partition.display()))
}

/// Offset of the root on a disk created by [`write_with_root()`], in bytes.
pub fn offset_of_root() -> u64 {
    gpt::offset() + SYSTEM
}

/// Formats the partition and copies the files into it.
fn fill(directory: &Path, partition: &Path) -> anyhow::Result<()> {
    let mut format = Command::new("mformat");
    must(format.arg("-i").arg(partition).args(["-v", "ESP", "::"]))?;
    let mut copy = Command::new("mcopy");
    copy.arg("-i").arg(partition).args(["-s", "-Q"]);
    let entries = fs::read_dir(directory)
        .with_context(|| format!("cannot list {}", directory.display()))?
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("cannot list {}", directory.display()))?;
    copy.args(entries.iter().map(fs::DirEntry::path));
    must(copy.arg("::"))
}

fn copy_in(partition: &Path, disk: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).open(disk)?;
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
        size += if meta.is_dir() { size_of(&entry.path())? } else { meta.len() };
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

    #[test]
    fn files_are_replaced_and_the_root_stays() {
        let work = tempfile::tempdir().unwrap();
        let disk = work.path().join("disk.img");
        write_with_root(&disk).unwrap();
        let root = offset_of_root();
        let mut file = File::options().write(true).open(&disk).unwrap();
        file.seek(SeekFrom::Start(root)).unwrap();
        io::Write::write_all(&mut file, b"secret").unwrap();
        for content in ["old", "new"] {
            let directory = work.path().join(content);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("kernel"), content).unwrap();
            replace_system(&directory, &disk).unwrap();
        }
        let at = format!("{}@@{}", disk.display(), gpt::offset());
        let mut list = Command::new("mtype");
        let shown = list.args(["-i", &at, "::/kernel"]).output().unwrap();
        assert_eq!(shown.stdout, b"new");
        let bytes = fs::read(&disk).unwrap();
        assert_eq!(&bytes[usize::try_from(root).unwrap()..][..6], b"secret");
    }
}
