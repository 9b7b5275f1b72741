//! The archives that systemd-stub packs for the initial file system: "newc" cpio, with fixed times
//! and owners (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).

/// Types of files in the mode field (POSIX, `sys/stat.h`).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
/// systemd-stub, cpio.c: all fields are in lower case except in the trailer, which is a constant.
const TRAILER: &[u8] = b"07070100000000000000000000000000000000000000010000000000000000\
000000000000000000000000000000000000000B00000000TRAILER!!!\0\0\0\0";

/// A folder of an archive, with its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) folder: &'static str,
    pub(super) folder_mode: u32,
    pub(super) file_mode: u32,
}

/// Folder where the stub puts the content of its own sections.
pub(super) const META: Target = Target { folder: ".extra", folder_mode: 0o555, file_mode: 0o444 };

/// An archive with one file in a folder.
pub(super) fn one(target: Target, name: &str, content: &[u8]) -> Vec<u8> {
    pack(target, &[(name.to_owned(), content.to_vec())])
}

/// Permissions of the folders above a target's folder.
const ABOVE: u32 = 0o555;

/// An archive with the folder, its parent folders, and files in it; inodes are numbered from 1.
pub(super) fn pack(target: Target, files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut inode = 1;
    for (end, _) in target.folder.match_indices('/') {
        let above = target.folder.get(..end).unwrap_or_default();
        entry(&mut archive, inode, DIRECTORY | ABOVE, above, &[]);
        inode += 1;
    }
    let mode = DIRECTORY | target.folder_mode;
    entry(&mut archive, inode, mode, target.folder, &[]);
    inode += 1;
    for (name, content) in files {
        let path = format!("{}/{name}", target.folder);
        entry(&mut archive, inode, REGULAR | target.file_mode, &path, content);
        inode += 1;
    }
    archive.extend(TRAILER);
    archive
}

/// Magic, then 13 numbers of 8 hexadecimal digits: inode, mode, owner, group, links, time, size,
/// four device numbers, length of the name with terminator, checksum.
fn entry(archive: &mut Vec<u8>, inode: u32, mode: u32, name: &str, content: &[u8]) {
    // Names and contents are limited when they are read.
    let size = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    archive.extend(b"070701");
    let named = size(name.len() + 1);
    let size = size(content.len());
    for number in [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, named, 0] {
        archive.extend(format!("{number:08x}").as_bytes());
    }
    archive.extend(name.as_bytes());
    archive.push(0);
    align(archive);
    archive.extend(content);
    align(archive);
}

fn align(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_a_folder_a_file_and_a_trailer() {
        let archive = one(META, "os-release", b"ID=x\n");
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8(archive).unwrap();
        assert!(text.starts_with("07070100000001000041 6d".replace(' ', "").as_str()));
        assert!(text.contains(".extra/os-release\0"));
        assert!(text.contains("ID=x\n\0\0\x00070701"));
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"));
        assert_eq!(TRAILER.len(), 124);
    }

    #[test]
    fn folders_above_come_first_with_inodes_of_their_own() {
        let target = Target { folder: ".extra/credentials", folder_mode: 0o500, file_mode: 0o400 };
        let files = [("a.cred".to_owned(), b"x".to_vec()), ("b.cred".to_owned(), Vec::new())];
        let text = String::from_utf8(pack(target, &files)).unwrap();
        let starts = text.match_indices("070701");
        let inodes: Vec<_> = starts.map(|(at, _)| &text[at + 6..at + 22]).collect();
        assert_eq!(
            inodes,
            [
                "000000010000416d",
                "0000000200004140",
                "0000000300008100",
                "0000000400008100",
                "0000000000000000"
            ]
        );
    }
}
