//! The standard library for other targets.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::{process, term};

/// Target that `tec-tpm` must build for: it has no operating system.
pub(crate) const WEBASSEMBLY: &str = "wasm32-unknown-unknown";
/// Target that a program around it must build for: it has standard input and output, and little else.
pub(crate) const WASI: &str = "wasm32-wasip1";
/// Target of static programs: those in images, and node-agent in an initramfs.
pub(crate) const NODE: &str = "x86_64-unknown-linux-musl";

/// An architecture, named as in images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// Its name in images.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's name for static programs on it.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => NODE,
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }
}

/// Installs the targets that the toolchain of the workspace lacks, with rustup.
pub(crate) fn ensure(root: &Path, targets: &[&str]) -> Result<()> {
    let mut rustc = process::command("rustc");
    let sysroot = process::capture(rustc.current_dir(root).args(["--print", "sysroot"]))?;
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib");
    let is_missing = |target: &&str| !libraries.join(target).join("lib").is_dir();
    let missing: Vec<&str> = targets.iter().copied().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if process::which("rustup").is_none() {
        bail!("Rust's standard library is missing for {list}, and so is rustup to install it");
    }
    term::note(&format!("rustup target add {list}"));
    let mut rustup = process::command("rustup");
    let adding = rustup.current_dir(root).args(["target", "add"]).args(missing);
    process::capture(adding)
        .map(drop)
        .with_context(|| format!("cannot install Rust's standard library for {list}"))
}

/// Installs an older toolchain with rustup, unless it exists.
pub(crate) fn ensure_toolchain(version: &str) -> Result<()> {
    let listed = process::capture(process::command("rustup").args(["toolchain", "list"]))?;
    if listed.lines().any(|line| line.starts_with(&format!("{version}-"))) {
        return Ok(());
    }
    term::note(&format!("rustup toolchain install {version}"));
    let mut rustup = process::command("rustup");
    rustup.args(["toolchain", "install", version, "--profile", "minimal", "--no-self-update"]);
    process::capture(&mut rustup)
        .map(drop)
        .with_context(|| format!("cannot install Rust {version}"))
}
