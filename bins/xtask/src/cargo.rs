//! Cargo, called from a program that cargo itself started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::process;

/// What `cargo run` sets for the program it runs. Build scripts of dependencies watch some of
/// these, so leaving them in place would rebuild those dependencies whenever xtask and plain cargo
/// take turns.
const SET_BY_CARGO_RUN: [&str; 5] =
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"];

/// The nearest ancestor directory whose Cargo.toml is a workspace.
pub(crate) fn workspace_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("cannot read the current directory")?;
    here.ancestors()
        .find(|dir| {
            std::fs::read_to_string(dir.join("Cargo.toml"))
                .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
        })
        .map(Path::to_path_buf)
        .with_context(|| format!("{} is in no cargo workspace", here.display()))
}

/// `cargo` in the workspace, with the environment that a shell would give it.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = process::command("cargo");
    command.current_dir(root);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if SET_BY_CARGO_RUN.iter().any(|set| name.starts_with(set)) {
            command.env_remove(name.as_ref());
        }
    }
    command
}

/// Output of `cargo metadata` for the workspace.
#[derive(Debug)]
pub(crate) struct Metadata(Value);

/// One package of the workspace or one of its dependencies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package<'a>(&'a Value);

/// Dependencies for other platforms are never downloaded, so they are left out.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

impl Metadata {
    /// The workspace only.
    pub(crate) fn workspace(root: &Path) -> Result<Self> {
        Self::read(root, &["--no-deps"])
    }

    /// Includes every dependency in the lock file.
    pub(crate) fn full(root: &Path) -> Result<Self> {
        Self::read(root, &["--all-features", "--filter-platform", PLATFORM])
    }

    fn read(root: &Path, more: &[&str]) -> Result<Self> {
        let text =
            process::capture(cargo(root).args(["metadata", "--format-version", "1"]).args(more))?;
        let value = serde_json::from_str(&text).context("cargo metadata printed no JSON")?;
        Ok(Self(value))
    }

    /// Target directory of cargo.
    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        match self.0.get("target_directory").and_then(Value::as_str) {
            Some(dir) => Ok(PathBuf::from(dir)),
            None => bail!("cargo metadata names no target directory"),
        }
    }

    /// The version of a package.
    pub(crate) fn version(&self, package: &str) -> Result<&str> {
        let found = self.packages().find(|found| found.name() == package);
        Ok(found.with_context(|| format!("there is no package {package}"))?.text("version"))
    }

    /// Every package in the metadata.
    pub(crate) fn packages(&self) -> impl Iterator<Item = Package<'_>> {
        array(&self.0, "packages").map(Package::new)
    }

    /// Packages of the workspace.
    pub(crate) fn members(&self) -> impl Iterator<Item = Package<'_>> {
        let members: Vec<&str> =
            array(&self.0, "workspace_members").filter_map(Value::as_str).collect();
        self.packages().filter(move |package| members.contains(&package.text("id")))
    }

    /// The binaries of one package of the workspace, sorted.
    pub(crate) fn binaries(&self, package: &str) -> Result<Vec<String>> {
        let found = self
            .members()
            .find(|member| member.name() == package)
            .with_context(|| format!("the workspace has no package {package}"))?;
        let mut names: Vec<String> = found
            .targets()
            .filter(|target| array(target, "kind").any(|kind| kind == "bin"))
            .map(|target| text(target, "name").to_owned())
            .collect();
        names.sort();
        Ok(names)
    }
}

impl<'a> Package<'a> {
    /// One entry of the metadata's `packages`.
    pub(crate) fn new(value: &'a Value) -> Self {
        Self(value)
    }

    /// Its name.
    pub(crate) fn name(self) -> &'a str {
        self.text("name")
    }

    /// Its manifest.
    pub(crate) fn manifest(self) -> &'a Path {
        Path::new(self.text("manifest_path"))
    }

    /// Whether cargo would publish it: unless `publish` lists no registry.
    pub(crate) fn is_published(self) -> bool {
        !self.0.get("publish").and_then(Value::as_array).is_some_and(Vec::is_empty)
    }

    /// Its direct dependencies, of every kind.
    pub(crate) fn dependencies(self) -> impl Iterator<Item = &'a Value> {
        array(self.0, "dependencies")
    }

    /// Its targets.
    pub(crate) fn targets(self) -> impl Iterator<Item = &'a Value> {
        array(self.0, "targets")
    }

    /// Strings in a list member.
    pub(crate) fn texts(self, member: &str) -> impl Iterator<Item = &'a str> {
        array(self.0, member).filter_map(Value::as_str)
    }

    /// A string member, empty when absent.
    pub(crate) fn text(self, member: &str) -> &'a str {
        text(self.0, member)
    }
}

/// A string member of a JSON object, empty when absent.
pub(crate) fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value.get(member).and_then(Value::as_str).unwrap_or_default()
}

/// A list member of a JSON object, empty when absent.
pub(crate) fn array<'a>(
    value: &'a Value,
    member: &str,
) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.get(member).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default().iter()
}
