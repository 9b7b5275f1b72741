//! `cargo xtask check`: all checks that need no running program. Formatting, lints, documentation,
//! architecture, WebAssembly, generated files, words, and what is linked: licenses and advisories.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cargo::cargo;
use crate::count::Count;
use crate::tools::{self, targets};
use crate::{arch, codegen, needs, outside, process, programs, term, words};

/// Packages whose smallest feature set must build by itself. For tec-core and tec-tpm,
/// [WebAssembly](webassembly) covers this.
const SMALLEST: [&str; 8] = [
    "tec",
    "tec-trustee",
    "tec-k8s",
    "tec-services",
    "tec-node",
    "tec-operator",
    "tec-registry",
    "tec-agent",
];

/// `cargo xtask check`.
pub(crate) fn run(root: &Path) -> Result<()> {
    let count = all(root)?;
    if count.number_not_run() > 0 {
        needs::report(&count);
    }
    Ok(())
}

/// Runs all checks and stops at the first failure.
pub(crate) fn all(root: &Path) -> Result<Count> {
    term::step("check: formatting");
    process::run(cargo(root).args(["fmt", "--all", "--check"])).context("run `cargo fmt --all`")?;
    outside::check_formatting(root)?;
    arch::print_lines(root)?;
    arch::run(root)?;
    term::step("check: lints, all features");
    clippy(root, &[&programs::ALL[..], &["--all-targets"]].concat())?;
    // Tests that run only by name are not part of all targets.
    clippy(root, &[&programs::ALL[..], &["--test", "opensearch"]].concat())?;
    for package in SMALLEST {
        term::step(&format!("check: lints, {package} without features"));
        clippy(root, &["--package", package, "--no-default-features"])?;
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

/// Licenses, duplicates and sources of all that is linked; advisories where their database can be fetched.
fn deny(root: &Path) -> Result<Count> {
    let tools = tools::locate()?;
    tools::ensure_deny(&tools)?;
    let deny = |words: &[&str]| {
        let mut deny = process::command(tools.cache.join("bin/cargo-deny"));
        deny.current_dir(root)
            .args(["--log-level", "error", "--all-features", "--offline"])
            .args(words);
        deny
    };
    term::step("check: licenses, duplicates and sources (cargo-deny)");
    // A build fetches only the packages of this platform, and the lock file names those of all.
    process::run(cargo(root).args(["fetch", "--locked", "--quiet"]))?;
    let show = ["check", "--hide-inclusion-graph"];
    process::run(&mut deny(&[&show[..], &["bans", "licenses", "sources"]].concat()))?;
    term::step("check: advisories (cargo-deny)");
    let mut fetch = process::command(tools.cache.join("bin/cargo-deny"));
    if process::capture(fetch.current_dir(root).args(["fetch", "db"])).is_err() {
        let mut count = Count::passed();
        count.add(Count::not_run(needs::ADVISORIES, "advisories of cargo-deny"));
        return Ok(count);
    }
    process::run(&mut deny(&[&show[..], &["advisories"]].concat())).map(|()| Count::passed())
}
