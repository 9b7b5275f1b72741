//! Firmware and boot files of Debian's suites, for virtual machines that boot them.
//!
//! ```text
//!   <cache>/boot/<suite>/   OVMF_CODE.fd OVMF_VARS.fd OVMF_VARS.ms.fd   firmware, its variables
//!                           shimx64.efi grubx64.efi linuxx64.efi.stub vmlinuz
//!                           PACKAGES                                    what they came from
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use super::archive::{Archive, entries, file_name, move_into, unpack, write};
use super::{Renew, Tools, is_stamped, remove_dir, scratch, stamp};

/// The available suites.
pub(super) const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];
/// Incremented when other files are needed, so that old directories are rebuilt.
const LAYOUT: &str = "1";
/// Newer suites have the firmware for ordinary machines in a separate package.
const FIRMWARE: [&str; 2] = ["ovmf-generic", "ovmf"];
const LOADERS: [&str; 3] = ["shim-signed", "grub-efi-amd64-signed", "systemd-boot-efi"];
const KERNEL: &str = "linux-image-amd64";
/// Newer suites have the kernel itself in a separate package.
const KERNEL_PACKAGES: [&str; 2] = ["linux-binary-", "linux-image-"];
/// Files to keep from the packages, with their names in the cache.
const FILES: [(&str, &str); 6] = [
    ("usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "OVMF_CODE.fd"),
    ("usr/share/OVMF/OVMF_VARS_4M.fd", "OVMF_VARS.fd"),
    ("usr/share/OVMF/OVMF_VARS_4M.ms.fd", "OVMF_VARS.ms.fd"),
    ("usr/lib/shim/shimx64.efi.signed", "shimx64.efi"),
    ("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed", "grubx64.efi"),
    ("usr/lib/systemd/boot/efi/linuxx64.efi.stub", "linuxx64.efi.stub"),
];

/// Downloads the files of a suite unless they exist.
pub(super) fn ensure(tools: &Tools, apt: &mut Apt, suite: &str, renew: Renew) -> Result<()> {
    let name = format!("boot-{suite}");
    let place = tools.cache.join("boot").join(suite);
    if renew == Renew::IfMissing && is_stamped(tools, &name, LAYOUT) && place.is_dir() {
        return Ok(());
    }
    let work = scratch(tools, &name)?;
    let archive = Archive::of_suite(apt, &work.join("apt"), suite, "amd64")?;
    let kept = work.join("kept");
    fs::create_dir_all(&kept).with_context(|| format!("cannot create {}", kept.display()))?;
    let mut packages = String::new();
    for package in packages_of(&archive)? {
        let deb = archive.download(&work, &package)?;
        keep(&deb, &work.join("unpacked"), &kept)?;
        packages.extend([&file_name(&deb), "\n"]);
    }
    check(&kept, suite)?;
    write(&kept.join("PACKAGES"), &packages)?;
    remove_dir(&place)?;
    move_into(&kept, &place)?;
    stamp(tools, &name, LAYOUT)?;
    remove_dir(&work)
}

fn packages_of(archive: &Archive) -> Result<Vec<String>> {
    let Some(firmware) = FIRMWARE.into_iter().find(|package| archive.has(package)) else {
        bail!("the package lists hold none of {}", FIRMWARE.join(", "));
    };
    let kernels = archive.kernels(KERNEL)?;
    let image = kernels.first().context("no kernel can be had")?;
    let version = image.trim_start_matches("linux-image-");
    let mut kernels = KERNEL_PACKAGES.map(|begin| format!("{begin}{version}")).into_iter();
    let kernel = kernels.find(|package| archive.has(package));
    let mut packages: Vec<String> =
        [firmware].into_iter().chain(LOADERS).map(str::to_owned).collect();
    packages.extend(kernel);
    Ok(packages)
}

/// Moves the needed files of a package into `kept`.
fn keep(deb: &Path, unpacked: &Path, kept: &Path) -> Result<()> {
    unpack(deb, unpacked)?;
    for (path, name) in FILES {
        let file = unpacked.join(path);
        if file.is_file() {
            move_into(&file, &kept.join(name))?;
        }
    }
    if let Some(kernel) = kernel_in(unpacked)? {
        move_into(&kernel, &kept.join("vmlinuz"))?;
    }
    remove_dir(unpacked)
}

/// `boot/vmlinuz-<version>`, or in newer suites `usr/lib/modules/<version>/vmlinuz`.
fn kernel_in(unpacked: &Path) -> Result<Option<PathBuf>> {
    let mut found = Vec::new();
    let boot = unpacked.join("boot");
    if boot.is_dir() {
        found.extend(entries(&boot)?);
    }
    let modules = unpacked.join("usr/lib/modules");
    if modules.is_dir() {
        let versions = entries(&modules)?.into_iter();
        found.extend(versions.map(|version| version.join("vmlinuz")));
    }
    let is_kernel = |file: &PathBuf| file.is_file() && file_name(file).starts_with("vmlinuz");
    Ok(found.into_iter().find(is_kernel))
}

fn check(kept: &Path, suite: &str) -> Result<()> {
    let names = FILES.into_iter().map(|(_, name)| name).chain(["vmlinuz"]);
    let missing: Vec<&str> = names.filter(|name| !kept.join(name).is_file()).collect();
    if !missing.is_empty() {
        bail!("the packages of {suite} do not hold {}", missing.join(", "));
    }
    Ok(())
}
