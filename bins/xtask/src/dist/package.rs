//! Distribution packages, built with nfpm: one description yields both the Debian and the RPM package.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Dist;
use crate::tools::targets::Arch;
use crate::{process, term};

/// Descriptions of the packages.
const DESCRIPTIONS: [&str; 3] = [
    "bins/tec/deploy/package.yaml",
    "bins/node-agent/deploy/package.yaml",
    "bins/bootstrapper/deploy/package.yaml",
];
pub(super) const NODE_AGENT: &str = DESCRIPTIONS[1];

/// Builds all packages.
pub(super) fn all(dist: &Dist<'_>, arch: Arch, programs: &Path) -> Result<()> {
    term::step(&format!("packages for {}", arch.name()));
    for description in DESCRIPTIONS {
        for kind in ["deb", "rpm"] {
            build(dist, description, kind, arch, programs)?;
        }
    }
    Ok(())
}

/// Builds one package; returns its path.
pub(super) fn build(
    dist: &Dist<'_>,
    description: &str,
    kind: &str,
    arch: Arch,
    programs: &Path,
) -> Result<PathBuf> {
    let mut nfpm = dist.tool("nfpm")?;
    nfpm.args(["package", "--config", description, "--packager", kind, "--target"]).arg(&dist.out);
    nfpm.env("ARCH", arch.name()).env("VERSION", &dist.version);
    nfpm.env("PROGRAMS", programs).env("STAGE", &dist.stage);
    let said = process::capture(&mut nfpm)?;
    let place = said.lines().find_map(|line| line.strip_prefix("created package: "));
    place.map(PathBuf::from).with_context(|| format!("nfpm names no package: {said}"))
}
