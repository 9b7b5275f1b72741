//! `cargo xtask outside`: tests the libraries as dependents get them. They are packaged, documented as on
//! docs.rs, and used by programs outside this workspace.
//!
//! ```text
//!   cargo package ─► target/package/*.crate ─► target/outside/crates/   documentation
//!   examples/outside/* ──────────────────────► target/outside/programs/ tests, against the crates
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::api::Snapshots;
use crate::cargo::{Metadata, cargo};
use crate::count::Count;
use crate::tools::{make_executable, targets};
use crate::{api, needs, process, suites, term};

const LIBRARIES: [&str; 4] = ["tec-core", "tec-tpm", "tec-trustee", "tec-k8s"];
/// The library whose documentation needs more than all of its features: see its `[package.metadata.docs.rs]`.
const ON_KUBERNETES: &str = "tec-k8s";
const KUBERNETES_API: &str = "k8s-openapi/v1_33";
const PROGRAMS: &str = "examples/outside";
/// Only nightly compilers write JSON, unless they are told otherwise. Building dependencies is not told: build
/// scripts would then choose what only nightly compilers have.
const RUSTDOC: &str = "rustdoc";
const RUSTDOC_SCRIPT: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only write the snapshots of the public interfaces, docs/reference/api
    #[arg(long)]
    write_api: bool,
}

/// Packages, documents, builds and tests; returns the number of tests.
pub(crate) fn run(root: &Path, args: Args) -> Result<Count> {
    targets::ensure(root, &[targets::WASI])?;
    let place = Place::packed(root)?;
    if args.write_api {
        place.interfaces(Snapshots::Replace)?;
        return Ok(Count::passed());
    }
    term::step("the packed libraries and their documentation, all features");
    place.document(&["check"], "--deny warnings")?;
    place.document(&["doc", "--no-deps"], "--deny warnings")?;
    place.interfaces(Snapshots::Compare)?;
    let mut count = place.oldest()?;
    for program in folders(&root.join(PROGRAMS))? {
        term::step(&format!("outside: {program}"));
        count.add(place.test(&program)?);
    }
    Ok(count)
}

/// Compares the public interfaces with their snapshots.
pub(crate) fn interfaces(root: &Path) -> Result<()> {
    Place::packed(root)?.interfaces(Snapshots::Compare)
}

struct Place<'a> {
    root: &'a Path,
    target: PathBuf,
    folder: PathBuf,
}

impl<'a> Place<'a> {
    /// With the libraries as dependents get them.
    fn packed(root: &'a Path) -> Result<Self> {
        let target = Metadata::workspace(root)?.target_dir()?;
        let place = Self { root, folder: target.join("outside"), target };
        term::step("pack the libraries");
        place.pack()?;
        Ok(place)
    }

    fn crates(&self) -> PathBuf {
        self.folder.join("crates")
    }

    /// The files of each packaged library, in a workspace of their own.
    fn pack(&self) -> Result<()> {
        let mut package = cargo(self.root);
        // The programs below build them, so building them here is unnecessary.
        package.args(["package", "--quiet", "--no-verify", "--allow-dirty"]);
        for library in LIBRARIES {
            package.args(["--package", library]);
        }
        process::run(&mut package)?;
        let unpacked = self.folder.join("unpacked");
        let _ = fs::remove_dir_all(&unpacked);
        fs::create_dir_all(&unpacked)?;
        let mut patches = String::from("[patch.crates-io]\n");
        for library in LIBRARIES {
            let packed = format!("{library}-{}", self.version(library)?);
            let file = self.target.join("package").join(format!("{packed}.crate"));
            let mut tar = process::command("tar");
            process::run(tar.arg("-xzf").arg(file).arg("-C").arg(&unpacked))?;
            mirror(&unpacked.join(&packed), &self.crates().join(library))?;
            writeln!(patches, "{library} = {{ path = \"crates/{library}\" }}")?;
        }
        write(&self.folder.join(".cargo/config.toml"), &patches)?;
        let rustdoc = self.folder.join(RUSTDOC);
        write(&rustdoc, RUSTDOC_SCRIPT)?;
        make_executable(&rustdoc)?;
        let members = format!("[workspace]\nresolver = \"3\"\nmembers = {LIBRARIES:?}\n");
        write(&self.crates().join("Cargo.toml"), &members)?;
        self.lock(&self.crates())
    }

    fn version(&self, library: &str) -> Result<String> {
        let metadata = Metadata::workspace(self.root)?;
        let found = metadata.members().find(|member| member.name() == library);
        let version = found.map(|member| member.text("version").to_owned());
        version.with_context(|| format!("the workspace has no package {library}"))
    }

    /// Uses the same versions of third-party crates.
    fn lock(&self, folder: &Path) -> Result<()> {
        write(&folder.join("Cargo.lock"), &fs::read(self.root.join("Cargo.lock"))?)
    }

    fn cargo(&self, folder: &Path) -> Command {
        let mut command = cargo(folder);
        command.env("CARGO_TARGET_DIR", self.folder.join("target"));
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
        // Dependents do not have the settings of this repository's builds.
        command.env("K8S_OPENAPI_ENABLED_VERSION", "").env("CARGO_NET_OFFLINE", "true");
        command
    }

    /// Downloads the crates that a program needs and this workspace does not need, unless they are already
    /// there.
    fn fetch(&self, folder: &Path) -> Result<()> {
        if process::capture(self.cargo(folder).args(["fetch", "--quiet"])).is_ok() {
            return Ok(());
        }
        let mut online = self.cargo(folder);
        process::run(online.args(["fetch", "--quiet"]).env_remove("CARGO_NET_OFFLINE"))
    }

    /// Runs a command of cargo for all libraries with all features, as on docs.rs.
    fn document(&self, verb: &[&str], flags: &str) -> Result<()> {
        let mut all = self.cargo(&self.crates());
        all.args(verb).args(["--workspace", "--exclude", ON_KUBERNETES]);
        let mut last = self.cargo(&self.crates().join(ON_KUBERNETES));
        last.args(verb).args(["--features", KUBERNETES_API]);
        for command in [&mut all, &mut last] {
            command.args(["--quiet", "--all-features"]).env("RUSTDOC", self.folder.join(RUSTDOC));
            process::run(command.env("RUSTDOCFLAGS", flags))?;
        }
        Ok(())
    }

    /// The public interfaces, from documentation as JSON.
    fn interfaces(&self, snapshots: Snapshots) -> Result<()> {
        term::step("public interfaces");
        self.document(&["doc", "--no-deps"], "-Zunstable-options --output-format=json")?;
        let documentation = self.folder.join("target/doc");
        api::check(self.root, &LIBRARIES, &documentation, snapshots)
    }

    /// With the minimum supported compiler of each library, if it differs from the workspace's.
    fn oldest(&self) -> Result<Count> {
        let mut count = Count::passed();
        let metadata = Metadata::workspace(self.root)?;
        let named = |name| metadata.members().find(|member| member.name() == name);
        let ours = named("xtask").map(|member| member.text("rust_version"));
        for library in LIBRARIES.iter().copied().filter_map(named) {
            let (name, version) = (library.name(), library.text("rust_version"));
            if Some(version) == ours {
                continue;
            }
            term::step(&format!("{name} with Rust {version}"));
            if process::which("rustup").is_none() {
                let what = format!("{name} with Rust {version}");
                count.add(Count::not_run(needs::RUST_VERSIONS, what));
                continue;
            }
            targets::ensure_toolchain(version)?;
            let mut check = self.cargo(&self.crates().join(name));
            check.arg(format!("+{version}")).args(["check", "--quiet", "--all-features"]);
            if name == ON_KUBERNETES {
                check.args(["--features", KUBERNETES_API]);
            }
            process::run(&mut check)?;
        }
        Ok(count)
    }

    fn test(&self, program: &str) -> Result<Count> {
        let here = self.root.join(PROGRAMS).join(program);
        let folder = self.folder.join("programs").join(program);
        mirror(&here, &folder)?;
        self.lock(&folder)?;
        self.fetch(&folder)?;
        suites::counted(self.cargo(&folder).args(["test", "--quiet", "--no-fail-fast"]))
    }
}

/// Formatting of the packages that are no members of the workspace.
pub(crate) fn check_formatting(root: &Path) -> Result<()> {
    let programs = root.join(PROGRAMS);
    let programs = folders(&programs)?.into_iter().map(|program| programs.join(program));
    for package in programs.chain([root.join("tec-trustee/crosscheck")]) {
        process::run(cargo(&package).args(["fmt", "--check"]))
            .with_context(|| format!("run `cargo fmt` in {}", package.display()))?;
    }
    Ok(())
}

/// Names of the subfolders that contain a manifest, in order.
fn folders(folder: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in entries(folder)? {
        if folder.join(&entry).join("Cargo.toml").is_file() {
            found.insert(entry);
        }
    }
    if found.is_empty() {
        bail!("no programs in {}", folder.display());
    }
    Ok(found)
}

/// Makes `to` identical to `from`. Unchanged files keep their time, so that cargo builds only what changed;
/// cargo's own output there stays.
fn mirror(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let (ours, theirs) = (entries(from)?, entries(to)?);
    for stale in theirs.difference(&ours).filter(|name| *name != "Cargo.lock") {
        let stale = to.join(stale);
        if stale.is_dir() { fs::remove_dir_all(stale) } else { fs::remove_file(stale) }?;
    }
    for name in ours.iter().filter(|name| *name != "target") {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            mirror(&from, &to)?;
        } else if name != "Cargo.lock" {
            write(&to, &fs::read(from)?)?;
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<BTreeSet<String>> {
    let found = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    found.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Writes a file, unless it already has this content.
fn write(file: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if fs::read(file).is_ok_and(|old| old == content.as_ref()) {
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, content).with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_what_there_is_and_touches_only_what_changed() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        for (file, text) in [("a", "1"), ("src/b", "2"), ("Cargo.lock", "of the checkout")] {
            write(&from.join(file), text).unwrap();
        }
        mirror(&from, &to).unwrap();
        write(&to.join("Cargo.lock"), "ours").unwrap();
        let time = |file: &str| fs::metadata(to.join(file)).unwrap().modified().unwrap();
        let before = (time("a"), time("Cargo.lock"));
        fs::remove_file(from.join("src/b")).unwrap();
        write(&from.join("src/c"), "3").unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!((time("a"), time("Cargo.lock")), before);
        assert_eq!(entries(&to.join("src")).unwrap(), BTreeSet::from(["c".to_owned()]));
    }
}
