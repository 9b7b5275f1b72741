//! `cargo xtask bootstrap-demo`: a cluster made by real kubeadm in namespaces of this machine.

use std::path::Path;

use anyhow::Result;

use crate::cargo::{Metadata, cargo};
use crate::tools::Tools;
use crate::{process, term, tools};

/// The programs on the hosts, the one that plays them, and the admin's.
pub(crate) const PROGRAMS: [&str; 3] = ["bootstrapper", "bootstrap-demo", "tec"];

/// Tools, build, play.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_kubernetes(&tools)?;
    term::step("build the programs");
    let packages = PROGRAMS.iter().flat_map(|package| ["--package", package]);
    process::run(cargo(root).args(["build", "--bins"]).args(packages))?;
    play(root, &tools)
}

/// Plays it with what was built; namespaces take root.
pub(crate) fn play(root: &Path, tools: &Tools) -> Result<()> {
    term::step("bootstrap demo");
    let bin_dir = Metadata::workspace(root)?.target_dir()?.join("debug");
    let mut demo = process::command(bin_dir.join("bootstrap-demo"));
    demo.current_dir(root)
        .arg("--bin-dir")
        .arg(&bin_dir)
        .arg("--kubernetes")
        .arg(tools.cache.join("bin"))
        .arg("--crds")
        .arg(root.join("tec-k8s/crds"))
        .arg("--manifest")
        .arg(root.join("bins/bootstrapper/deploy/join-service.yaml"));
    tools.environment(&mut demo)?;
    process::run(&mut demo)
}
