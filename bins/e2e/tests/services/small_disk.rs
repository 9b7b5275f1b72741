//! A small file system of its own, to fill.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted tmpfs; mounting it requires root.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it on a directory, which is created if it does not exist.
    pub(crate) fn mount(at: &Path, mebibytes: u64) -> Self {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "small"])
            .arg(at)
            .output()
            .unwrap();
        assert!(mounted.status.success(), "mount as root: {mounted:?}");
        Self(at.to_owned())
    }

    /// Leaves at most this many bytes free.
    pub(crate) fn fill(&self, left: u64) {
        use std::io::Write as _;
        let mut ballast = fs::File::create(self.ballast()).unwrap();
        let part = vec![0x5a; 4096];
        while self.free() > left {
            if ballast.write_all(&part).is_err() {
                break;
            }
        }
    }

    /// Frees what `fill` took.
    pub(crate) fn empty(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }

    pub(crate) fn free(&self) -> u64 {
        let space = rustix::fs::statvfs(&self.0).unwrap();
        space.f_bavail * space.f_frsize
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
