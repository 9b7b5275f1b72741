//! The standard library for WebAssembly: what `tec-tpm` and its example must build for.

use std::path::Path;

use anyhow::Context as _;
use anyhow::Result;
use anyhow::bail;

use crate::process;
use crate::term;

/// Neither has an operating system below it; the second one has standard input and output.
pub(crate) const TARGETS: [&str; 2] = ["wasm32-unknown-unknown", "wasm32-wasip1"];

/// Installs the targets that the toolchain of the workspace lacks, with rustup.
pub(crate) fn ensure_targets(root: &Path) -> Result<()> {
    let mut rustc = process::command("rustc");
    let sysroot = process::capture(rustc.current_dir(root).args(["--print", "sysroot"]))?;
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib");
    let is_missing = |target: &&str| !libraries.join(target).join("lib").is_dir();
    let missing: Vec<&str> = TARGETS.into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if process::which("rustup").is_none() {
        bail!("Rust's standard library is missing for {list}, and so is rustup to install it");
    }
    term::note(&format!("rustup target add {list}"));
    let mut rustup = process::command("rustup");
    let adding = rustup
        .current_dir(root)
        .args(["target", "add"])
        .args(missing);
    process::capture(adding)
        .map(drop)
        .with_context(|| format!("cannot install Rust's standard library for {list}"))
}
