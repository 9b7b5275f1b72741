//! Programs of the workspace, built for tests and demos.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cargo::{Metadata, cargo};
use crate::{process, term};

/// One set of features for programs, tests and lints. A different selection of packages changes the features
/// of the libraries below them, and everything would be compiled twice.
pub(crate) const ALL: [&str; 2] = ["--workspace", "--all-features"];

/// Programs that run in a cluster, besides the command line: tests and scenes on Kubernetes start them.
pub(crate) const OF_CLUSTERS: [&str; 6] = [
    "attestation-key-register",
    "compute-pcrs",
    "kbs-guard",
    "key-broker",
    "operator",
    "register-server",
];

/// Builds these binaries, and returns their directory.
///
/// Uses the development profile: its dependencies are optimized where that matters, and it builds in a
/// fraction of the release profile's time.
pub(crate) fn build(root: &Path, binaries: &[&str]) -> Result<PathBuf> {
    term::step("build the programs");
    targets(root, &["--bin"], binaries)
}

/// Builds these examples, and returns their directory.
pub(crate) fn examples(root: &Path, names: &[&str]) -> Result<PathBuf> {
    Ok(targets(root, &["--example"], names)?.join("examples"))
}

/// Builds every program of the workspace, including examples.
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
    command.arg("build").args(ALL);
    match names {
        [] => command.args(kind),
        names => command.args(names.iter().flat_map(|name| kind.iter().chain([name]))),
    };
    process::run(&mut command)?;
    directory(root)
}
