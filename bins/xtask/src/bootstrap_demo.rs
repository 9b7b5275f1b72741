//! `cargo xtask bootstrap-demo`: a cluster made by real kubeadm in namespaces of this machine.

use std::path::Path;

use anyhow::Result;

use crate::tools::Tools;
use crate::{process, programs, term, tools};

/// The programs on the hosts, the one that plays them, and the admin's.
const PROGRAMS: [&str; 5] = ["bootstrap-demo", "bootstrapper", "host-stub", "join-service", "tec"];

/// Tools, build, play.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_kubernetes(&tools)?;
    programs::build(root, &PROGRAMS)?;
    play(root, &tools)
}

/// Plays it with what was built; namespaces take root.
pub(crate) fn play(root: &Path, tools: &Tools) -> Result<()> {
    term::step("bootstrap demo");
    let bin_dir = programs::directory(root)?;
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
