//! Programs built from crates.

use anyhow::{Context as _, Result};

use super::{Tools, provide};
use crate::{process, term};

/// A program in a crate.
pub(super) struct Crate {
    pub(super) program: &'static str,
    /// Argument of `cargo install`: name and version.
    pub(super) version: &'static str,
    pub(super) flags: &'static [&'static str],
    /// Build time on two cores.
    pub(super) takes: &'static str,
}

/// Tools for a release: lists of what is linked into programs.
pub(super) const DIST: [Crate; 2] = [
    Crate {
        program: "cargo-auditable",
        version: "cargo-auditable@0.7.7",
        flags: &[],
        takes: "a minute",
    },
    Crate {
        program: "auditable2cdx",
        version: "auditable2cdx@0.1.0",
        flags: &[],
        takes: "a minute",
    },
];

/// Reads licenses, advisories and duplicates of what is linked.
pub(super) const DENY: Crate =
    Crate { program: "cargo-deny", version: "cargo-deny@0.20.2", flags: &[], takes: "two minutes" };

/// Builds it unless it exists.
pub(super) fn ensure(tools: &Tools, wanted: &Crate) -> Result<()> {
    let Crate { program, version, flags, takes } = wanted;
    provide(tools, (program, version), &tools.cache.join("bin").join(program), |dir| {
        term::note(&format!("cargo install {version} (about {takes})"));
        let mut install = process::command("cargo");
        // Built once and run for seconds: compiling matters, and speed does not.
        install.args(["install", version, "--locked", "--debug"]).args(*flags);
        install.arg("--root").arg(dir).current_dir(dir);
        install.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR");
        process::capture(&mut install).with_context(|| format!("cannot build {program}"))?;
        Ok(dir.join("bin").join(program))
    })
}
