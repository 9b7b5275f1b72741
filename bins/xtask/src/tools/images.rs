//! Real boot files: Debian's shim, GRUB and two kernels, as trees of files.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context as _;
use anyhow::Result;
use anyhow::bail;

use super::Tools;
use super::apt::Apt;
use super::is_stamped;
use super::remove_dir;
use super::scratch;
use super::stamp;
use crate::process;
use crate::term;

const NAME: &str = "images";
/// Raised when the layout of the trees changes, so that old ones are made anew.
const LAYOUT: &str = "1";
/// Boot loaders, signed by Microsoft and by Debian.
const LOADERS: [&str; 2] = ["shim-signed", "grub-efi-amd64-signed"];
/// Metapackages, each of whose versions depends on one kernel; the second is for suites that hold
/// one version of the first only.
const KERNELS: [&str; 2] = ["linux-image-amd64", "linux-image-cloud-amd64"];
/// What is kept of the packages: the directories of boot loaders, and the kernel itself.
const LOADER_DIRS: [&str; 2] = ["usr/lib/shim", "usr/lib/grub"];

/// Downloads and unpacks the trees unless they are there.
pub(super) fn ensure(tools: &Tools, apt: &mut Apt) -> Result<()> {
    let complete = ["current", "update"]
        .iter()
        .all(|tree| tools.images.join(tree).is_dir());
    if is_stamped(tools, NAME, LAYOUT) && complete {
        return Ok(());
    }
    for program in ["apt-get", "dpkg-deb"] {
        if process::which(program).is_none() {
            bail!(
                "the boot files come from Debian packages, and {program} is missing: run on Debian \
                 12 or newer, or fill {}/current and update by hand",
                tools.images.display()
            );
        }
    }
    apt.update();
    let work = scratch(tools, NAME)?;
    let [update, current] = two_kernels()?;
    let tree = work.join("debian");
    let mut packages = String::new();
    for (name, kernel) in [("current", &current), ("update", &update)] {
        let root = tree.join(name);
        for package in LOADERS.iter().copied().chain([kernel.as_str()]) {
            let deb = download(&work, package)?;
            keep_boot_files(&work, &deb, &root)?;
            packages.extend([name, "\t", &file_name(&deb), "\n"]);
        }
    }
    write(&tree.join("PACKAGES"), &packages)?;
    remove_dir(&tools.images)?;
    if let Some(parent) = tools.images.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    rename(&tree, &tools.images)?;
    stamp(tools, NAME, LAYOUT)?;
    remove_dir(&work)
}

/// The newest kernel and the next older one; or the newest of both flavours.
fn two_kernels() -> Result<[String; 2]> {
    let mut found: Vec<String> = Vec::new();
    for metapackage in KERNELS {
        let text = process::capture(process::command("apt-cache").args(["show", metapackage]))
            .with_context(|| format!("Debian's package lists do not hold {metapackage}"))?;
        for kernel in text.lines().filter_map(kernel_of) {
            if !found.iter().any(|known| known == kernel) && is_available(kernel) {
                found.push(kernel.to_owned());
            }
        }
        if found.len() >= 2 {
            break;
        }
    }
    let mut kernels = found.into_iter();
    match (kernels.next(), kernels.next()) {
        (Some(newest), Some(older)) => Ok([newest, older]),
        _ => bail!("fewer than two kernels can be had from the apt sources of this machine"),
    }
}

/// `Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)` names the kernel's package.
fn kernel_of(line: &str) -> Option<&str> {
    line.strip_prefix("Depends: ")?
        .split([' ', ','])
        .find(|word| word.starts_with("linux-image-"))
}

fn is_available(package: &str) -> bool {
    process::capture(process::command("apt-cache").args(["show", package])).is_ok()
}

/// Puts the package into `work`; apt checks its signature chain. What is there was downloaded
/// whole: apt renames a file only when its hash fits.
fn download(work: &Path, package: &str) -> Result<PathBuf> {
    let begin = format!("{package}_");
    let is_package = |file: &PathBuf| {
        file_name(file).starts_with(&begin) && file.extension().is_some_and(|end| end == "deb")
    };
    if let Some(deb) = entries(work)?.into_iter().find(is_package) {
        return Ok(deb);
    }
    term::note(&format!("apt-get download {package}"));
    let mut get = process::command("apt-get");
    // Root's apt would else drop to a user who may not write here.
    get.args(["-q", "-o", "APT::Sandbox::User=", "download", package]);
    process::capture(get.current_dir(work))?;
    entries(work)?
        .into_iter()
        .find(is_package)
        .with_context(|| format!("apt-get downloaded {package}, but no file of it is there"))
}

/// Unpacks the package and moves boot loaders and kernel into `root`; the rest, modules most of
/// all, is dropped.
fn keep_boot_files(work: &Path, deb: &Path, root: &Path) -> Result<()> {
    let unpacked = work.join("unpacked");
    remove_dir(&unpacked)?;
    process::capture(
        process::command("dpkg-deb")
            .arg("-x")
            .arg(deb)
            .arg(&unpacked),
    )?;
    for dir in LOADER_DIRS {
        if unpacked.join(dir).is_dir() {
            move_into(&unpacked.join(dir), &root.join(dir))?;
        }
    }
    if unpacked.join("boot").is_dir() {
        for file in entries(&unpacked.join("boot"))? {
            if file_name(&file).starts_with("vmlinuz-") {
                move_into(&file, &root.join("boot").join(file_name(&file)))?;
            }
        }
    }
    remove_dir(&unpacked)
}

fn move_into(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    rename(from, to)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)
        .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(dir).and_then(|entries| {
        entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
    });
    let mut paths = listed.with_context(|| format!("cannot list {}", dir.display()))?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_the_metapackage_depends_on() {
        let line = "Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)";
        assert_eq!(kernel_of(line), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(kernel_of("Version: 6.1.192-2"), None);
    }
}
