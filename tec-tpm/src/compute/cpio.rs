//! The archives that systemd-stub packs for the initial file system: "newc" cpio, with fixed times
//! and owners (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).

/// Kinds of files in the mode field (POSIX, `sys/stat.h`).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
/// systemd-stub packs what it adds with these permissions.
const DIRECTORY_MODE: u32 = 0o555;
const FILE_MODE: u32 = 0o444;
/// systemd-stub, cpio.c: all fields in small letters except in the trailer, which is a constant.
const TRAILER: &[u8] = b"07070100000000000000000000000000000000000000010000000000000000\
000000000000000000000000000000000000000B00000000TRAILER!!!\0\0\0\0";

/// An archive with the folder `.extra` and one file in it.
pub(super) fn extra_file(name: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = Vec::with_capacity(content.len() + 512);
    let path = format!(".extra/{name}");
    entry(&mut archive, 1, DIRECTORY | DIRECTORY_MODE, ".extra", &[]);
    entry(&mut archive, 2, REGULAR | FILE_MODE, &path, content);
    archive.extend(TRAILER);
    archive
}

/// Magic, then 13 numbers of 8 hexadecimal digits: inode, mode, owner, group, links, time, size,
/// four device numbers, length of the name with terminator, checksum.
fn entry(archive: &mut Vec<u8>, inode: u32, mode: u32, name: &str, content: &[u8]) {
    // Names are constants, contents come from sections of at most 64 KiB.
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
        let archive = extra_file("os-release", b"ID=x\n");
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8(archive).unwrap();
        assert!(text.starts_with("07070100000001000041 6d".replace(' ', "").as_str()));
        assert!(text.contains(".extra/os-release\0"));
        assert!(text.contains("ID=x\n\0\0\x00070701"));
        assert!(text.ends_with("TRAILER!!!\0\0\0\0"));
        assert_eq!(TRAILER.len(), 124);
    }
}
