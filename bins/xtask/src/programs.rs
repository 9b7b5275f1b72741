//! Programs of the workspace, built for tests and demos.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cargo::{Metadata, cargo};
use crate::{process, term};

/// One set of features for programs, tests and lints. Another selection of packages has other
/// features in the libraries below them, and everything is compiled a second time.
pub(crate) const ALL: [&str; 2] = ["--workspace", "--all-features"];

/// A small example, built with every program: where one target may use dependencies of tests,
/// cargo takes their features into account for all, as it does when it builds tests.
const LIKE_TESTS: [&str; 2] = ["--example", "crds"];

/// What runs in a cluster, beside the command line: tests and scenes on Kubernetes start them.
pub(crate) const OF_CLUSTERS: [&str; 6] = [
    "attestation-key-register",
    "compute-pcrs",
    "kbs-guard",
    "key-broker",
    "operator",
    "register-server",
];

/// Builds these binaries, and returns the directory that they are in.
///
/// The development profile is used: its dependencies are optimized where that matters, and it
/// builds in a fraction of the release profile's time.
pub(crate) fn build(root: &Path, binaries: &[&str]) -> Result<PathBuf> {
    term::step("build the programs");
    targets(root, &["--bin"], binaries)
}

/// Builds these examples, and returns the directory that they are in.
pub(crate) fn examples(root: &Path, names: &[&str]) -> Result<PathBuf> {
    Ok(targets(root, &["--example"], names)?.join("examples"))
}

/// Builds every program of the workspace, examples too.
pub(crate) fn build_all(root: &Path) -> Result<PathBuf> {
    term::step("build all programs");
    targets(root, &["--bins", "--examples"], &[])
}

/// Where [`build`] puts programs.
pub(crate) fn directory(root: &Path) -> Result<PathBuf> {
    Ok(Metadata::workspace(root)?.target_dir()?.join("debug"))
}

fn targets(root: &Path, kind: &[&str], names: &[&str]) -> Result<PathBuf> {
    let mut command = cargo(root);
    command.arg("build").args(ALL).args(LIKE_TESTS);
    match names {
        [] => command.args(kind),
        names => command.args(names.iter().flat_map(|name| kind.iter().chain([name]))),
    };
    process::run(&mut command)?;
    directory(root)
}
