//! Initial file systems: a cpio archive in the format that Linux unpacks (kernel documentation,
//! driver-api/early-userspace/buffer-format). The same files yield the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;

/// Directory and regular file with their permissions (POSIX, `sys/stat.h`).
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const MAGIC: &str = "070701";
const END: &str = "TRAILER!!!";

/// The files of an initial file system, all owned by root and executable.
#[derive(Clone, Debug, Default)]
pub struct Initramfs {
    files: BTreeMap<String, Vec<u8>>,
    links: BTreeMap<String, String>,
    directories: BTreeSet<String>,
}

impl Initramfs {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, and the directories above it.
    pub fn with(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.to_owned(), content.into());
        self
    }

    /// Adds a symbolic link, and the directories above it.
    pub fn with_link(mut self, path: &str, target: &str) -> Self {
        self.links.insert(path.to_owned(), target.to_owned());
        self
    }

    /// Removes a file or a link.
    pub fn without(mut self, path: &str) -> Self {
        self.files.remove(path);
        self.links.remove(path);
        self
    }

    /// Adds an empty directory, and the directories above it.
    pub fn with_directory(mut self, path: &str) -> Self {
        self.directories.insert(path.to_owned());
        self
    }

    /// Whether there is a file with this name.
    pub fn has(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// The archive, uncompressed.
    pub fn build(&self) -> anyhow::Result<Vec<u8>> {
        let mut entries: BTreeMap<&str, (u32, &[u8])> = BTreeMap::new();
        let files = self.files.iter().map(|(path, content)| (path, PROGRAM, content.as_slice()));
        let links = self.links.iter().map(|(path, target)| (path, LINK, target.as_bytes()));
        let empty: &[u8] = &[];
        let directories = self.directories.iter().map(|path| (path, DIRECTORY, empty));
        for (path, mode, content) in files.chain(links).chain(directories) {
            for (end, _) in path.match_indices('/') {
                let (directory, _) = path.split_at(end);
                entries.insert(directory, (DIRECTORY, &[]));
            }
            entries.insert(path, (mode, content));
        }
        let mut archive = Vec::new();
        for (number, (path, (mode, content))) in (1..).zip(entries) {
            append(&mut archive, number, path, mode, content)?;
        }
        append(&mut archive, 0, END, 0, &[])?;
        Ok(archive)
    }
}

fn append(
    archive: &mut Vec<u8>,
    number: u32,
    path: &str,
    mode: u32,
    content: &[u8],
) -> anyhow::Result<()> {
    let size = u32::try_from(content.len()).with_context(|| format!("{path} is too large"))?;
    let name_size = u32::try_from(path.len() + 1)?;
    // ino, mode, uid, gid, nlink, mtime, filesize, four device numbers, namesize, check
    let fields = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    archive.extend(MAGIC.bytes());
    for field in fields {
        archive.extend(format!("{field:08x}").bytes());
    }
    archive.extend(path.bytes().chain([0]));
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(4), 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_what_is_in_them() {
        let archive = Initramfs::new()
            .with("usr/bin/x", *b"program")
            .with("init", *b"init")
            .with_link("usr/bin/y", "x")
            .with_directory("var/tmp")
            .build()
            .unwrap();
        let text = String::from_utf8_lossy(&archive);
        let place = |name: &str| text.find(&format!("{name}\0")).unwrap();
        let order =
            ["init", "usr", "usr/bin", "usr/bin/x", "usr/bin/y", "var", "var/tmp", END].map(place);
        assert!(order.is_sorted(), "{order:?}");
        assert!(archive.len().is_multiple_of(4));
        assert_eq!(text.matches(MAGIC).count(), 8);
    }
}
