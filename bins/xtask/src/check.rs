//! `cargo xtask check`: everything that needs no running program. Formatting, lints, documentation,
//! architecture, WebAssembly, generated files, words, and the supply chain if cargo-deny is installed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cargo::cargo;
use crate::tools::targets;
use crate::{arch, codegen, process, programs, term, words};

/// Libraries whose smallest feature set must build by itself. For tec-core and tec-tpm,
/// [WebAssembly](webassembly) covers this.
const SMALLEST: [&str; 2] = ["tec-trustee", "tec-k8s"];

/// Runs all checks and stops at the first failure.
pub(crate) fn run(root: &Path) -> Result<()> {
    term::step("check: formatting");
    process::run(cargo(root).args(["fmt", "--all", "--check"])).context("run `cargo fmt --all`")?;
    arch::print_lines(root)?;
    arch::run(root)?;
    term::step("check: lints, all features");
    clippy(root, &[&programs::ALL[..], &["--all-targets"]].concat())?;
    // Tests that run only by name are not part of all targets.
    clippy(root, &[&programs::ALL[..], &["--test", "opensearch"]].concat())?;
    term::step("check: lints, what ships");
    clippy(root, &[])?;
    for library in SMALLEST {
        term::step(&format!("check: lints, {library} without features"));
        clippy(root, &["--package", library, "--no-default-features"])?;
    }
    webassembly(root)?;
    term::step("check: documentation");
    let mut doc = cargo(root);
    doc.args(["doc", "--quiet", "--no-deps"]).args(programs::ALL);
    process::run(doc.env("RUSTDOCFLAGS", "--deny warnings"))?;
    codegen::check(root)?;
    words::check(root)?;
    deny(root)
}

/// Verification needs no operating system: tec-tpm with default features builds for targets without one.
fn webassembly(root: &Path) -> Result<()> {
    let target = targets::WEBASSEMBLY;
    targets::ensure(root, &[target])?;
    term::step(&format!("check: lints, tec-tpm for {target}"));
    clippy(root, &["--package", "tec-tpm", "--target", target])
}

fn clippy(root: &Path, which: &[&str]) -> Result<()> {
    let mut command: Command = cargo(root);
    command.args(["clippy", "--quiet"]).args(which);
    process::run(command.args(["--", "--deny", "warnings"]))
}

/// cargo-deny takes minutes to compile and needs an advisory database from the network, so it is not one of
/// the tools; `arch` checks bans, sources and the allow-list of cryptography.
fn deny(root: &Path) -> Result<()> {
    term::step("check: cargo-deny");
    if process::which("cargo-deny").is_none() {
        term::note(
            "not installed: advisories and licences are not looked up here; bans, sources and \
             cryptography were checked by arch (`cargo install cargo-deny` for the rest)",
        );
        return Ok(());
    }
    process::run(cargo(root).args(["deny", "--all-features", "check"]))
}
