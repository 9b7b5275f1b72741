//! Debian packages as files: fetched with apt, which verifies the chain of signatures, and unpacked without
//! being installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use super::remove_dir;
use crate::{process, term};

/// The keys of Debian's releases (package debian-archive-keyring).
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Suites without a security suite.
const UNSTABLE: [&str; 2] = ["sid", "unstable"];

/// A source of packages.
#[derive(Debug)]
pub(super) struct Archive {
    /// Options of every apt call; empty for the machine's own sources.
    options: Vec<String>,
}

impl Archive {
    /// The machine's own package sources.
    pub(super) fn of_machine(apt: &mut Apt) -> Result<Self> {
        check_programs()?;
        apt.update();
        Ok(Self { options: Vec::new() })
    }

    /// A different suite of Debian, from the machine's mirrors, with apt's own files in `dir`. Does not touch
    /// the machine's configuration, and needs no root.
    pub(super) fn of_suite(apt: &mut Apt, dir: &Path, suite: &str, arch: &str) -> Result<Self> {
        check_programs()?;
        let lines = sources_of(apt, suite)?;
        for part in ["etc/preferences.d", "state/lists/partial", "cache/archives/partial"] {
            let part = dir.join(part);
            fs::create_dir_all(&part)
                .with_context(|| format!("cannot create {}", part.display()))?;
        }
        write(&dir.join("etc/sources.list"), &lines)?;
        write(&dir.join("state/status"), "")?;
        let at = dir.display();
        let options = [
            format!("Dir::Etc={at}/etc"),
            format!("Dir::Etc::SourceList={at}/etc/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State={at}/state"),
            format!("Dir::State::Status={at}/state/status"),
            format!("Dir::Cache={at}/cache"),
            format!("APT::Architecture={arch}"),
            format!("APT::Architectures={arch}"),
            "Acquire::Languages=none".to_owned(),
        ];
        let archive = Self { options: options.into() };
        term::note(&format!("apt-get update, for {suite}"));
        process::capture(archive.command("apt-get").args(["-q", "update"]))?;
        Ok(archive)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = process::command(program);
        // Otherwise root's apt would drop privileges to a user who may not write here.
        command.args(["-o", "APT::Sandbox::User="]);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    /// The package lists' entries for all versions of a package.
    pub(super) fn show(&self, package: &str) -> Result<String> {
        process::capture(self.command("apt-cache").args(["show", package]))
            .with_context(|| format!("Debian's package lists do not hold {package}"))
    }

    /// Whether the package is available.
    pub(super) fn has(&self, package: &str) -> bool {
        self.show(package).is_ok()
    }

    /// The kernels that the versions of a metapackage depend on, newest first.
    pub(super) fn kernels(&self, metapackage: &str) -> Result<Vec<String>> {
        let text = self.show(metapackage)?;
        let mut found: Vec<String> = Vec::new();
        for kernel in text.lines().filter_map(kernel_of) {
            if !found.iter().any(|known| known == kernel) && self.has(kernel) {
                found.push(kernel.to_owned());
            }
        }
        Ok(found)
    }

    /// Puts the package into `work`. An existing file is complete: apt renames a file only if its hash
    /// matches.
    pub(super) fn download(&self, work: &Path, package: &str) -> Result<PathBuf> {
        let begin = format!("{package}_");
        let is_package = |file: &PathBuf| {
            file_name(file).starts_with(&begin) && file.extension().is_some_and(|end| end == "deb")
        };
        if let Some(deb) = entries(work)?.into_iter().find(is_package) {
            return Ok(deb);
        }
        term::note(&format!("apt-get download {package}"));
        let mut get = self.command("apt-get");
        process::capture(get.args(["-q", "download", package]).current_dir(work))?;
        entries(work)?
            .into_iter()
            .find(is_package)
            .with_context(|| format!("apt-get downloaded {package}, but no file of it is there"))
    }
}

fn check_programs() -> Result<()> {
    for program in ["apt-get", "apt-cache", "dpkg-deb"] {
        if process::which(program).is_none() {
            bail!(
                "the boot files come from Debian packages, and {program} is missing: run on \
                 Debian 12 or newer, or copy the cache of a machine that does"
            );
        }
    }
    Ok(())
}

/// Where the machine's apt gets Debian from.
#[derive(Debug, PartialEq, Eq)]
struct Mirrors {
    main: String,
    security: Option<String>,
}

impl Mirrors {
    fn find(apt: &mut Apt) -> Result<Self> {
        let query = || {
            process::capture(process::command("apt-get").args([
                "indextargets",
                "--format",
                "$(LABEL) $(REPO_URI)",
                "Created-By: Packages",
            ]))
        };
        // Before the first update, apt knows no labels.
        if let Some(found) = Self::parse(&query()?) {
            return Ok(found);
        }
        apt.update();
        Self::parse(&query()?).context("the apt sources of this machine hold no suite of Debian")
    }

    fn parse(text: &str) -> Option<Self> {
        let find = |label: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find_map(|(own, uri)| (own == label).then(|| uri.to_owned()))
        };
        Some(Self { main: find("Debian")?, security: find("Debian-Security") })
    }
}

/// The lines of a sources.list(5) for a suite, from the machine's mirrors.
pub(super) fn sources_of(apt: &mut Apt, suite: &str) -> Result<String> {
    Ok(sources(&Mirrors::find(apt)?, suite))
}

fn sources(mirrors: &Mirrors, suite: &str) -> String {
    let line = |uri: &str, suite: &str| format!("deb [signed-by={KEYRING}] {uri} {suite} main\n");
    let mut lines = line(&mirrors.main, suite);
    if !UNSTABLE.contains(&suite) {
        lines += &line(&mirrors.main, &format!("{suite}-updates"));
        if let Some(security) = &mirrors.security {
            lines += &line(security, &format!("{suite}-security"));
        }
    }
    lines
}

/// `Depends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)` names the kernel's package.
fn kernel_of(line: &str) -> Option<&str> {
    line.strip_prefix("Depends: ")?.split([' ', ',']).find(|word| word.starts_with("linux-image-"))
}

/// Unpacks a package into a directory, which is emptied first.
pub(super) fn unpack(deb: &Path, into: &Path) -> Result<()> {
    remove_dir(into)?;
    let mut command = process::command("dpkg-deb");
    process::capture(command.arg("-x").arg(deb).arg(into)).map(drop)
}

/// Moves a file or directory, creating the directories above the new path.
pub(super) fn move_into(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    rename(from, to)
}

/// Moves a file or directory.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)
        .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

/// Writes a text file.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The last part of a path; empty if it has none.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Contents of a directory, sorted.
pub(super) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(dir).and_then(|entries| {
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()
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

    #[test]
    fn mirrors_are_told_apart_by_their_labels() {
        let text = "other.example http://other/\nDebian http://a/debian/\n\
                    Debian http://b/debian/\nDebian-Security http://c/security/\n";
        let mirrors = Mirrors::parse(text).unwrap();
        assert_eq!(mirrors.main, "http://a/debian/");
        assert_eq!(mirrors.security.as_deref(), Some("http://c/security/"));
        assert_eq!(Mirrors::parse("$(LABEL) http://a/debian/\n"), None);
        let lines = sources(&mirrors, "stable");
        let expected = [
            "http://a/debian/ stable main",
            "http://a/debian/ stable-updates main",
            "http://c/security/ stable-security main",
        ];
        for (line, expected) in lines.lines().zip(expected) {
            assert!(line.ends_with(expected), "{line}");
        }
        assert_eq!(lines.lines().count(), 3);
        assert_eq!(sources(&mirrors, "sid").lines().count(), 1);
    }
}
