//! Block devices, and what lies on what, as the kernel lists it in sysfs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::DiskError;

/// Longest chain of devices on devices that is followed.
const DEPTH: usize = 16;
/// What libcryptsetup calls the mapping of a LUKS2 disk: this, its UUID and its name.
const CRYPT: &str = "CRYPT-LUKS2-";
/// File systems that only the initramfs or the kernel fills: nothing in them comes from a disk, or it comes from another
/// mount that is looked at.
const IN_MEMORY: [&str; 21] = [
    "autofs",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];

/// What libcryptsetup calls the mapping of a device whose hash was given, on the command line.
const VERITY: &str = "CRYPT-VERITY-";

/// Whether a key opens the disk with this device, if it is one with a header.
pub(crate) type Opens<'a> = &'a dyn Fn(&Path) -> Result<bool, DiskError>;

/// The devices of this machine.
#[derive(Debug)]
pub(crate) struct Blocks {
    sys: PathBuf,
    dev: PathBuf,
    mounts: PathBuf,
}

impl Default for Blocks {
    fn default() -> Self {
        let [sys, dev, mounts] = ["/sys", "/dev", "/proc/self/mountinfo"].map(PathBuf::from);
        Self { sys, dev, mounts }
    }
}

impl Blocks {
    /// Device files of everything that has a size.
    pub(crate) fn devices(&self) -> io::Result<Vec<PathBuf>> {
        let names = names(&self.sys.join("class/block"))?;
        let has_size = |name: &&String| {
            let size = fs::read_to_string(self.about(name, "size"));
            size.is_ok_and(|size| size.trim() != "0")
        };
        Ok(names.iter().filter(has_size).map(|name| self.file(name)).collect())
    }

    fn about(&self, name: &str, what: &str) -> PathBuf {
        self.sys.join("class/block").join(name).join(what)
    }

    /// In names, the kernel writes a slash as an exclamation mark.
    fn file(&self, name: &str) -> PathBuf {
        self.dev.join(name.replace('!', "/"))
    }

    fn below(&self, name: &str) -> io::Result<Vec<String>> {
        names(&self.about(name, "slaves"))
    }

    /// Mappings of disks that this key opens.
    fn opened(&self, opens: Opens<'_>) -> io::Result<BTreeSet<String>> {
        let mut ours = BTreeSet::new();
        for name in names(&self.sys.join("class/block"))? {
            if self.is_mapping(&name, CRYPT) && self.is_of(&name, opens, DEPTH)? {
                ours.insert(name);
            }
        }
        Ok(ours)
    }

    fn is_mapping(&self, name: &str, kind: &str) -> bool {
        let uuid = fs::read_to_string(self.about(name, "dm/uuid"));
        uuid.is_ok_and(|uuid| uuid.starts_with(kind))
    }

    /// The device with the header is the one below, or with authenticated sectors the one below that.
    fn is_of(&self, mapping: &str, opens: Opens<'_>, depth: usize) -> io::Result<bool> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(false) };
        for name in self.below(mapping)? {
            let is_header = opens(&self.file(&name)).map_err(io::Error::other)?;
            if is_header || self.is_of(&name, opens, depth)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn lies_on(&self, name: &str, ours: &BTreeSet<String>, depth: usize) -> io::Result<bool> {
        let Some(depth) = depth.checked_sub(1) else { return Ok(false) };
        if ours.contains(name) || self.is_mapping(name, VERITY) {
            return Ok(true);
        }
        let below = self.below(name)?;
        for name in &below {
            if !self.lies_on(name, ours, depth)? {
                return Ok(false);
            }
        }
        Ok(!below.is_empty())
    }

    /// What is mounted as the root or below it and lies beside the disks that the key opens, while one of those is open.
    ///
    /// # Security
    /// A volume that was opened with a released key is in the hands of whatever root starts now.
    pub(crate) fn beside(&self, root: &Path, opens: Opens<'_>) -> io::Result<Option<String>> {
        let ours = self.opened(opens)?;
        if ours.is_empty() {
            return Ok(None);
        }
        let text = fs::read_to_string(&self.mounts)?;
        let mounts = mounts(&text, root);
        if mounts.is_empty() {
            return Ok(Some(format!("nothing on {}", root.display())));
        }
        for mount in mounts {
            if IN_MEMORY.contains(&mount.kind) {
                continue;
            }
            let names = self.devices_of(&mount)?;
            let mut covered = !names.is_empty();
            for name in &names {
                covered = covered && self.lies_on(name, &ours, DEPTH)?;
            }
            if !covered {
                return Ok(Some(format!("{} ({})", mount.source, mount.kind)));
            }
        }
        Ok(None)
    }

    /// Names of all devices that a file system is on; none if it is on none, or they are not known.
    fn devices_of(&self, mount: &Mount<'_>) -> io::Result<Vec<String>> {
        let by_number = |number: &str| {
            let link = fs::read_link(self.sys.join("dev/block").join(number)).ok()?;
            Some(link.file_name()?.to_string_lossy().into_owned())
        };
        if let Some(name) = by_number(mount.number) {
            return Ok(vec![name]);
        }
        // Its number belongs to no device if it can be on several.
        for pool in names(&self.sys.join("fs").join(mount.kind))? {
            let devices = names(&self.sys.join("fs").join(mount.kind).join(pool).join("devices"))?;
            let file = fs::canonicalize(mount.source).unwrap_or_else(|_| mount.source.into());
            if devices.iter().any(|name| self.file(name) == file) {
                return Ok(devices);
            }
        }
        Ok(Vec::new())
    }
}

/// Names in a directory; none if there is none.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

struct Mount<'a> {
    number: &'a str,
    kind: &'a str,
    source: &'a str,
}

/// The mounts at a directory or below it, as in proc_pid_mountinfo(5).
fn mounts<'a>(text: &'a str, root: &Path) -> Vec<Mount<'a>> {
    let mount = |line: &'a str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(2);
        let (number, place) = (before.next()?, before.nth(1)?);
        let mut after = after.split(' ');
        let (kind, source) = (after.next()?, after.next()?);
        Path::new(place).starts_with(root).then_some(Mount { number, kind, source })
    };
    text.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct World {
        directory: tempfile::TempDir,
        blocks: Blocks,
    }

    impl World {
        /// Devices: name, number, UUID of the mapping, what it lies on.
        fn new(devices: &[(&str, &str, &str, &[&str])]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let sys = directory.path().join("sys");
            for (name, number, uuid, below) in devices {
                let block = sys.join("class/block").join(name);
                fs::create_dir_all(block.join("slaves")).unwrap();
                fs::create_dir_all(block.join("dm")).unwrap();
                fs::write(block.join("dm/uuid"), uuid).unwrap();
                fs::write(block.join("size"), "8\n").unwrap();
                for below in *below {
                    fs::create_dir(block.join("slaves").join(below)).unwrap();
                }
                fs::create_dir_all(sys.join("dev/block")).unwrap();
                symlink(&block, sys.join("dev/block").join(number)).unwrap();
            }
            let (dev, mounts) = ("/dev".into(), directory.path().join("mountinfo"));
            Self { directory, blocks: Blocks { sys, dev, mounts } }
        }

        fn beside(&self, mounts: &[(&str, &str, &str, &str)], opens: &[&str]) -> Option<String> {
            let line = |(number, place, kind, source): &(&str, &str, &str, &str)| {
                format!("36 35 {number} / {place} rw,relatime shared:1 - {kind} {source} rw\n")
            };
            let text: String = mounts.iter().map(line).collect();
            fs::write(&self.blocks.mounts, text).unwrap();
            let opens = |device: &Path| Ok(opens.iter().any(|name| device.ends_with(name)));
            self.blocks.beside(Path::new("/sysroot"), &opens).unwrap()
        }
    }

    /// An encrypted partition, an open one with LVM on it, and a plain one.
    fn world() -> World {
        World::new(&[
            ("vda2", "254:2", "", &[]),
            ("vda3", "254:3", "", &[]),
            ("dm-0", "253:0", "CRYPT-LUKS2-0190a2f0-root", &["vda2"]),
            ("dm-1", "253:1", "LVM-abc", &["dm-0"]),
            ("dm-2", "253:2", "LVM-def", &["dm-0", "vda3"]),
            ("dm-3", "253:3", "CRYPT-VERITY-0190a2f0-usr", &["vda3"]),
        ])
    }

    #[test]
    fn a_root_beside_the_disk_that_was_opened_is_found() {
        let world = world();
        let root =
            |number, source| world.beside(&[(number, "/sysroot", "ext4", source)], &["vda2"]);
        assert_eq!(root("253:0", "/dev/dm-0"), None);
        assert_eq!(root("253:1", "/dev/dm-1"), None, "LVM on it");
        assert_eq!(root("254:3", "/dev/vda3").unwrap(), "/dev/vda3 (ext4)");
        assert!(root("253:2", "/dev/dm-2").is_some(), "half of it");
        assert!(root("254:9", "/dev/unknown").is_some());
        assert!(root("0:40", "pool/root").is_some(), "on nothing that is known");
    }

    #[test]
    fn where_the_key_opened_nothing_any_root_starts() {
        let world = world();
        let mounts = [("254:3", "/sysroot", "ext4", "/dev/vda3")];
        assert_eq!(world.beside(&mounts, &[]), None);
        assert_eq!(world.beside(&mounts, &["vda3"]), None, "not open");
        assert!(world.beside(&[], &["vda2"]).is_some(), "no root");
    }

    #[test]
    fn mounts_below_the_root_count_and_others_do_not() {
        let world = world();
        let good = ("253:1", "/sysroot", "xfs", "/dev/dm-1");
        let memory = ("0:22", "/sysroot/run", "tmpfs", "none");
        let elsewhere = ("254:3", "/sysroots", "ext4", "/dev/vda3");
        assert_eq!(world.beside(&[good, memory, elsewhere], &["vda2"]), None);
        let hashed = ("253:3", "/sysroot/usr", "erofs", "/dev/dm-3");
        assert_eq!(world.beside(&[good, hashed], &["vda2"]), None);
        let planted = ("254:3", "/sysroot/usr", "ext4", "/dev/vda3");
        assert!(world.beside(&[good, planted], &["vda2"]).is_some());
    }

    #[test]
    fn every_device_of_a_file_system_on_several_counts() {
        let world = world();
        let root = [("0:31", "/sysroot", "btrfs", "/dev/dm-1")];
        assert!(world.beside(&root, &["vda2"]).is_some(), "its devices are not known");
        let devices = world.directory.path().join("sys/fs/btrfs/pool/devices");
        fs::create_dir_all(devices.join("dm-1")).unwrap();
        assert_eq!(world.beside(&root, &["vda2"]), None);
        fs::create_dir(devices.join("vda3")).unwrap();
        assert!(world.beside(&root, &["vda2"]).is_some());
    }

    #[test]
    fn a_disk_with_authenticated_sectors_has_its_header_two_below() {
        let world = World::new(&[
            ("vda2", "254:2", "", &[]),
            ("dm-0", "253:0", "CRYPT-SUBDEV-0190a2f0-root_dif", &["vda2"]),
            ("dm-1", "253:1", "CRYPT-LUKS2-0190a2f0-root", &["dm-0"]),
        ]);
        let root = [("253:1", "/sysroot", "ext4", "/dev/dm-1")];
        assert_eq!(world.beside(&root, &["vda2"]), None);
        let names = world.blocks.devices().unwrap();
        assert_eq!(names.len(), 3);
    }
}
