//! `cargo xtask codegen`: files that are committed, and written by a program.
//!
//! * `docs/errors/`: one page per error code, from the table in tec-core;
//! * `docs/reference/commands/`: all commands and flags, as `tec reference` prints them, and those of
//!   the services' programs;
//! * `tec-k8s/src/generated/`, `tec-k8s/node/src/generated/`: messages and services, from the
//!   `proto/` beside them, by `tec-protogen`;
//! * `tec-k8s/crds/`: the custom resources, from the types in tec-k8s;
//! * `bins/operator/deploy/`: the packages of the operator, from the objects that tec-k8s renders;
//! * `docs/runbooks/`, `docs/reference/kubernetes/`: alerts, metrics and Events, from its tables.
//!
//! Examples of tec-k8s write the last three, and one of tec-services its commands, so that xtask itself
//! needs no Kubernetes crates.

mod errors;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo::Metadata;
use crate::{process, programs, term};

const ERRORS: &str = "docs/errors";
const COMMANDS: &str = "docs/reference/commands";
const CRDS: &str = "tec-k8s/crds";
/// Where `.proto` files are, where their Rust is, and the name of the file with their descriptors
/// for servers with reflection.
const MESSAGES: [(&str, &str, Option<&str>); 2] = [
    ("tec-k8s/proto", "tec-k8s/src/generated", Some("descriptors")),
    ("tec-k8s/node/proto", "tec-k8s/node/src/generated", None),
];
/// What the example `deploy` writes: its name for a directory, and where that belongs.
const DEPLOY: [(&str, &str); 8] = [
    ("helm", "bins/operator/deploy/helm"),
    ("image", "bins/operator/deploy/image"),
    ("krew", "bins/operator/deploy/krew"),
    ("kustomize", "bins/operator/deploy/kustomize"),
    ("monitoring", "bins/operator/deploy/monitoring"),
    ("olm", "bins/operator/deploy/olm"),
    ("reference", "docs/reference/kubernetes"),
    ("runbooks", "docs/runbooks"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if a committed file differs from what would be written
    #[arg(long)]
    check: bool,
}

/// Files of a directory by their path below it.
type Files = BTreeMap<String, String>;
/// Directories, each with its files.
type Generated = BTreeMap<&'static str, Files>;

/// `cargo xtask codegen`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    if args.check {
        return check(root);
    }
    term::step("codegen");
    for (dir, files) in generate(root)? {
        let dir = root.join(dir);
        for stale in stale(&dir, &files)? {
            term::note(&format!("remove {}", stale.display()));
            fs::remove_file(&stale)
                .with_context(|| format!("cannot remove {}", stale.display()))?;
        }
        for (name, text) in files {
            write(&dir.join(name), &text)?;
        }
    }
    term::success("generated files are up to date");
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if read(path)?.as_deref() == Some(text) {
        return Ok(());
    }
    term::note(&format!("write {}", path.display()));
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Compares what is committed with what would be written.
pub(crate) fn check(root: &Path) -> Result<()> {
    term::step("check: generated files");
    let mut differing = Vec::new();
    for (dir, files) in generate(root)? {
        let dir = root.join(dir);
        differing.extend(stale(&dir, &files)?);
        for (name, text) in &files {
            let path = dir.join(name);
            if read(&path)?.as_ref() != Some(text) {
                differing.push(path);
            }
        }
    }
    if differing.is_empty() {
        return Ok(());
    }
    for path in &differing {
        term::note(&format!("differs: {}", path.display()));
    }
    bail!("generated files are not up to date: run `cargo xtask codegen` and commit the result")
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Files in a generated directory that nothing generates any more.
fn stale(dir: &Path, files: &Files) -> Result<Vec<PathBuf>> {
    Ok(names(dir)?
        .into_iter()
        .filter(|name| !files.contains_key(name))
        .map(|name| dir.join(name))
        .collect())
}

/// Paths of all files below a directory, sorted.
fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    walk(dir, "", &mut names)?;
    names.sort();
    Ok(names)
}

fn walk(dir: &Path, below: &str, names: &mut Vec<String>) -> Result<()> {
    let entries = match fs::read_dir(dir.join(below)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", dir.display())),
    };
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", dir.display()))?;
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            walk(dir, &format!("{name}/"), names)?;
        } else {
            names.push(name);
        }
    }
    Ok(())
}

fn generate(root: &Path) -> Result<Generated> {
    let mut generated = Generated::from([
        (ERRORS, errors::pages()),
        (COMMANDS, commands(root)?),
        (CRDS, example(root, "crds")?),
    ]);
    for (protos, dir, descriptors) in MESSAGES {
        generated.insert(dir, messages(root, protos, descriptors)?);
    }
    let deploy = example(root, "deploy")?;
    for (name, dir) in DEPLOY {
        let prefix = format!("{name}/");
        let files = deploy.iter().filter_map(|(path, text)| {
            let path = path.strip_prefix(&prefix)?;
            Some((path.to_owned(), text.clone()))
        });
        generated.insert(dir, files.collect());
    }
    Ok(generated)
}

/// Asks the programs themselves.
fn commands(root: &Path) -> Result<Files> {
    let tec = programs::build(root, &["tec"])?.join("tec");
    let page = process::capture(process::command(tec).arg("reference"))?;
    let mut pages = example(root, "services-reference")?;
    pages.insert("tec.md".to_owned(), page);
    Ok(pages)
}

/// Lets an example write its files.
fn example(root: &Path, name: &str) -> Result<Files> {
    let program = programs::examples(root, &[name])?.join(name);
    written_by(root, name, &program, |command, dir| {
        command.arg(dir);
    })
}

/// Lets the program for that write the Rust of the `.proto` files.
fn messages(root: &Path, protos: &str, descriptors: Option<&str>) -> Result<Files> {
    let program = programs::build(root, &["tec-protogen"])?.join("tec-protogen");
    written_by(root, "generated", &program, |command, dir| {
        command.arg(root.join(protos)).arg(dir);
        command.args(descriptors.map(|name| dir.join(name)));
    })
}

/// What a program writes into a new directory under the target directory.
fn written_by(
    root: &Path,
    name: &str,
    program: &Path,
    arguments: impl FnOnce(&mut Command, &Path),
) -> Result<Files> {
    let dir = Metadata::workspace(root)?.target_dir()?.join("codegen").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut command = process::command(program);
    command.current_dir(root);
    arguments(&mut command, &dir);
    process::run(&mut command)?;
    let mut files = Files::new();
    for name in names(&dir)? {
        let text = read(&dir.join(&name))?.unwrap_or_default();
        files.insert(name, text);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_a_code_that_is_gone_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("TEC-X000.md"), "").unwrap();
        let stale = stale(dir.path(), &errors::pages()).unwrap();
        assert_eq!(stale, [dir.path().join("TEC-X000.md")]);
    }
}
