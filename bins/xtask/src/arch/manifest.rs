//! Rules over the text of the manifests and the lock file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use toml::{Table, Value};

use super::{ADAPTERS, CORE, Violation};

/// The only source of third-party code.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
const DEPENDENCY_TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

pub(super) struct Manifest {
    /// Relative to the root.
    file: String,
    text: String,
    table: Table,
}

impl Manifest {
    fn package(&self) -> &str {
        self.table
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Whether cargo would publish the package.
    fn is_library(&self) -> bool {
        let publish = self.table.get("package").and_then(|package| package.get("publish"));
        publish.and_then(Value::as_bool) != Some(false)
    }

    /// Where the package is; `None` for the root.
    fn folder(&self) -> Option<&str> {
        self.file.strip_suffix("/Cargo.toml")
    }

    /// The line that starts with `key`, or the first line of the file.
    fn line_of(&self, key: &str) -> usize {
        let begins = |line: &str| {
            let rest = line.trim_start().strip_prefix(key);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
        };
        self.text.lines().position(begins).map_or(1, |index| index + 1)
    }

    /// Name and value of each dependency, of every kind and for every platform.
    fn dependencies(&self) -> Vec<(&str, &Value)> {
        let platforms = self.table.get("target").and_then(Value::as_table);
        let tables = std::iter::once(&self.table)
            .chain(platforms.into_iter().flat_map(Table::values).filter_map(Value::as_table));
        tables
            .flat_map(|table| DEPENDENCY_TABLES.iter().filter_map(|kind| table.get(*kind)))
            .filter_map(Value::as_table)
            .flatten()
            .map(|(name, value)| (name.as_str(), value))
            .collect()
    }
}

pub(super) struct Manifests {
    root: Manifest,
    members: Vec<Manifest>,
    lock: String,
}

impl Manifests {
    /// Folders of the libraries: what cargo would publish.
    pub(super) fn libraries(&self) -> Vec<&str> {
        let libraries = self.members.iter().filter(|member| member.is_library());
        libraries.filter_map(Manifest::folder).collect()
    }
}

pub(super) fn read_all(root: &Path) -> Result<Manifests> {
    let top = read(root, "Cargo.toml")?;
    let names = top
        .table
        .get("workspace")
        .and_then(|workspace| workspace.get("members"))
        .and_then(Value::as_array)
        .context("the root Cargo.toml lists no workspace members")?;
    let members = names
        .iter()
        .filter_map(Value::as_str)
        .map(|member| read(root, &format!("{member}/Cargo.toml")))
        .collect::<Result<_>>()?;
    let lock = root.join("Cargo.lock");
    Ok(Manifests {
        root: top,
        members,
        lock: fs::read_to_string(&lock)
            .with_context(|| format!("cannot read {}", lock.display()))?,
    })
}

fn read(root: &Path, file: &str) -> Result<Manifest> {
    let text =
        fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
    let table = text.parse().with_context(|| format!("{file} is not a manifest"))?;
    Ok(Manifest { file: file.to_owned(), text, table })
}

/// Folders of our packages by name.
type Paths<'a> = BTreeMap<&'a str, &'a str>;

pub(super) fn check(manifests: &Manifests) -> Vec<Violation> {
    let mut found = Vec::new();
    let paths = manifests.members.iter();
    let paths = paths.filter_map(|member| Some((member.package(), member.folder()?)));
    let paths = paths.collect::<Paths<'_>>();
    for manifest in &manifests.members {
        inherits_from_workspace(manifest, &mut found);
        adapters_are_apart(manifest, &mut found);
        programs_are_apart(manifest, &paths, &mut found);
        xtask_is_light(manifest, &mut found);
        no_build_script(manifest, &mut found);
        no_choice_in_features(manifest, &mut found);
    }
    for manifest in std::iter::once(&manifests.root).chain(&manifests.members) {
        no_git(manifest, &mut found);
    }
    foreign_sources(&manifests.lock, &mut found);
    found
}

fn inherits_from_workspace(manifest: &Manifest, found: &mut Vec<Violation>) {
    let inherits = |value: &Value| value.get("workspace").and_then(Value::as_bool) == Some(true);
    for (name, value) in manifest.dependencies() {
        if !inherits(value) {
            found.push(Violation::new(
                "workspace-dependency",
                &manifest.file,
                manifest.line_of(name),
                format!("the dependency {name} does not take its version from the workspace"),
                "name version and source in [workspace.dependencies], and say `workspace = true`",
            ));
        }
    }
    if !manifest.table.get("lints").is_some_and(inherits) {
        found.push(Violation::new(
            "workspace-lints",
            &manifest.file,
            manifest.line_of("[lints"),
            "the package does not take the workspace's lints",
            "add `[lints]` with `workspace = true`",
        ));
    }
}

fn adapters_are_apart(manifest: &Manifest, found: &mut Vec<Violation>) {
    let package = manifest.package();
    if package != CORE && !ADAPTERS.contains(&package) {
        return;
    }
    for (name, _) in manifest.dependencies() {
        if ADAPTERS.contains(&name) && name != package {
            found.push(Violation::new(
                "adapters-apart",
                &manifest.file,
                manifest.line_of(name),
                format!("{package} depends on the adapter {name}"),
                "meet through a port or a type of tec-core, or in a binary; tests that need both \
                 belong to bins/e2e",
            ));
        }
    }
}

/// Programs that play other programs, for tests and measurements.
const PLAYERS: [&str; 3] = ["bins/e2e", "bins/xtask", "benches"];
/// What all programs share, and the parts of `bootstrapper`, which `tec` also runs.
const SHARED: [&str; 2] = ["bins/bootstrapper", "bins/support"];

/// Programs only compose: what two of them need is a library.
fn programs_are_apart(manifest: &Manifest, paths: &Paths<'_>, found: &mut Vec<Violation>) {
    let package = manifest.package();
    let Some(folder) = manifest.folder() else {
        return;
    };
    if PLAYERS.contains(&folder) {
        return;
    }
    for (name, _) in manifest.dependencies() {
        let is_program = |path: &&str| path.starts_with("bins/") && !SHARED.contains(path);
        if let Some(path) = paths.get(name).copied().filter(is_program)
            && name != package
        {
            found.push(Violation::new(
                "programs-apart",
                &manifest.file,
                manifest.line_of(name),
                format!("{package} depends on {name} in {path}"),
                "move what both want into a library: one of the adapters, or one nested in them",
            ));
        }
    }
}

fn xtask_is_light(manifest: &Manifest, found: &mut Vec<Violation>) {
    if manifest.package() != "xtask" {
        return;
    }
    for (name, _) in manifest.dependencies() {
        if name.starts_with("tec-") && name != CORE {
            found.push(Violation::new(
                "xtask-light",
                &manifest.file,
                manifest.line_of(name),
                format!("xtask depends on {name}, which may need what xtask is to install"),
                "run a program of that package instead, as codegen does",
            ));
        }
    }
}

fn no_build_script(manifest: &Manifest, found: &mut Vec<Violation>) {
    let package = manifest.table.get("package");
    let named = package.and_then(|package| package.get("build")).is_some();
    if manifest.is_library() && named {
        found.push(Violation::new(
            "no-build-script",
            &manifest.file,
            manifest.line_of("build"),
            "a library names a build script",
            "commit what it generates and let `cargo xtask codegen` write it",
        ));
    }
}

/// Features of a library that enable a choice that is left to binaries.
fn no_choice_in_features(manifest: &Manifest, found: &mut Vec<Violation>) {
    let features = manifest.table.get("features").and_then(Value::as_table);
    if !manifest.is_library() {
        return;
    }
    for (feature, members) in features.into_iter().flatten() {
        for member in members.as_array().into_iter().flatten() {
            let Some((dependency, inner)) = member.as_str().and_then(|m| m.split_once('/')) else {
                continue;
            };
            if super::graph::is_choice_of_binaries(dependency.trim_end_matches('?'), inner) {
                found.push(Violation::new(
                    "no-choice",
                    &manifest.file,
                    manifest.line_of(feature),
                    format!("the feature {feature} picks {dependency}/{inner}"),
                    "leave API version and TLS provider to the binary",
                ));
            }
        }
    }
}

fn no_git(manifest: &Manifest, found: &mut Vec<Violation>) {
    for (index, line) in manifest.text.lines().enumerate() {
        let code = line.split('#').next().unwrap_or_default();
        let names_git =
            code.split(['{', ',', ' ']).any(|word| word == "git" || word.starts_with("git="));
        if names_git && code.contains('=') {
            found.push(Violation::new(
                "no-git",
                &manifest.file,
                index + 1,
                "a dependency comes from git",
                "depend on a release on crates.io",
            ));
        }
    }
}

fn foreign_sources(lock: &str, found: &mut Vec<Violation>) {
    for (index, line) in lock.lines().enumerate() {
        let source = line.strip_prefix("source = \"").and_then(|rest| rest.strip_suffix('"'));
        if let Some(source) = source.filter(|source| *source != REGISTRY) {
            found.push(Violation::new(
                "no-git",
                "Cargo.lock",
                index + 1,
                format!("a package comes from {source}"),
                "depend on a release on crates.io",
            ));
        }
    }
}
