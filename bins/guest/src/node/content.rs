//! What a distribution's image would contain: the files of the root.
//!
//! Most nodes have a root with one program, which is process 1. If Ignition has left an admin's key, the root
//! is a full system: systemd and the content of the initial file system, so that the recovery key unit runs
//! as it does on any machine. An attended root has the same programs, and does what the host asks for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Context as _;

/// Path of the admin's key (docs/how-to/recover-a-disk.md), below the root.
const ADMIN_KEY: &str = "etc/node-agent/admin.jwk";
/// Exists in a root that does what the host asks for, below the root.
const ATTENDED: &str = "etc/tec-node/attended";
/// Written last, when the root is complete.
const COMPLETE: &str = "etc/os-release";
/// The program of this package, in both kinds of root.
const PROGRAM: &str = "usr/bin/tec-node";
/// Not needed in a root: the engine, and the modules, which are already loaded.
const LEFT_OUT: [&str; 2] = ["ignition", "modules"];
const DIRECTORIES: [&str; 8] = ["dev", "proc", "sys", "run", "tmp", "etc", "var", "usr/sbin"];
const LINKS: [(&str, &str); 4] =
    [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")];
/// Marks a system as an initial file system; not copied.
pub const INITIAL: &str = "/etc/initrd-release";
const UNITS: &str = "etc/systemd/system";
/// Runs this program in addition to everything else in the system.
const UNIT: &str = "[Unit]
Description=Tell the host of this boot

[Service]
Type=oneshot
ExecStart=/usr/bin/tec-node
StandardOutput=file:/dev/console
StandardError=file:/dev/console
";

/// Whether the root at `place` was filled completely.
pub fn is_complete(place: &Path) -> bool {
    place.join(COMPLETE).exists()
}

/// Whether the root at `place` contains the admin's key, and so maintains a recovery key.
pub fn has_recovery(place: &Path) -> bool {
    place.join(ADMIN_KEY).exists()
}

/// Whether the root at `place` does what the host asks for.
pub fn is_attended(place: &Path) -> bool {
    place.join(ATTENDED).exists()
}

/// Fills the root at `place`, after Ignition has written its files.
pub fn fill(place: &Path) -> anyhow::Result<()> {
    for directory in DIRECTORIES {
        make(&place.join(directory))?;
    }
    for (link, target) in LINKS {
        relink(target, &place.join(link))?;
    }
    let init = place.join("usr/sbin/init");
    if has_recovery(place) {
        copy(Path::new("/usr"), &place.join("usr"))?;
        relink("../lib/systemd/systemd", &init)?;
        let units = place.join(UNITS);
        make(&units.join("multi-user.target.wants"))?;
        write(&units.join("tec-node.service"), UNIT)?;
        let wanted = units.join("multi-user.target.wants/tec-node.service");
        relink("../tec-node.service", &wanted)?;
        let target = "/usr/lib/systemd/system/multi-user.target";
        relink(target, &units.join("default.target"))?;
        for file in ["etc/passwd", "etc/group", "etc/systemd/system.conf"] {
            copy(&Path::new("/").join(file), &place.join(file))?;
        }
    } else {
        let needed = if is_attended(place) { "usr" } else { PROGRAM };
        make(&place.join("usr/bin"))?;
        copy(&Path::new("/").join(needed), &place.join(needed))?;
        relink("../bin/tec-node", &init)?;
    }
    rustix::fs::sync();
    write(&place.join(COMPLETE), "ID=tec-node\n")?;
    rustix::fs::sync();
    Ok(())
}

fn make(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The link may be left over from an attempt that ended with a power failure.
fn relink(target: impl AsRef<Path>, link: &Path) -> anyhow::Result<()> {
    let _ = fs::remove_file(link);
    symlink(target, link).with_context(|| format!("link {}", link.display()))
}

/// A file, a link, or a directory with its content.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let meta =
        fs::symlink_metadata(from).with_context(|| format!("cannot examine {}", from.display()))?;
    if meta.is_symlink() {
        return relink(fs::read_link(from)?, to);
    }
    if !meta.is_dir() {
        let copied = fs::copy(from, to).map(drop);
        return copied.with_context(|| format!("cannot copy {}", from.display()));
    }
    make(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let name = entry?.file_name();
        if !LEFT_OUT.iter().any(|left_out| name == *left_out) {
            copy(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_copied_with_links_and_without_what_is_of_no_use() {
        let work = tempfile::tempdir().unwrap();
        let from = work.path().join("from");
        make(&from.join("lib/modules")).unwrap();
        write(&from.join("lib/modules/x.ko"), "module").unwrap();
        write(&from.join("lib/x.so"), "library").unwrap();
        relink("x.so", &from.join("lib/y.so")).unwrap();
        let to = work.path().join("to");
        for _ in 0..2 {
            copy(&from, &to).unwrap();
        }
        assert_eq!(fs::read_to_string(to.join("lib/y.so")).unwrap(), "library");
        assert!(!to.join("lib/modules").exists());
    }
}
