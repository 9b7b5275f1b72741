//! `cargo xtask bootstrap-demo`: a cluster of real kubelets in namespaces of this machine.

use std::path::Path;

use anyhow::Result;

use crate::tools::Tools;
use crate::tools::etcd;
use crate::{images, process, programs, term, tools};

/// The programs on the hosts, the program that plays the hosts, and the admin's.
const PROGRAMS: [&str; 3] = ["bootstrap-demo", "bootstrapper", "tec"];
/// The program that runs in a pod, and is therefore static.
pub(crate) const IN_A_POD: &str = "join-service";

/// Sets up tools, builds, and plays.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_pods(&tools)?;
    programs::build(root, &PROGRAMS)?;
    images::compile_for_tests(root, &[IN_A_POD])?;
    play(root, &tools)
}

/// Plays the demo with the programs already built; namespaces require root.
pub(crate) fn play(root: &Path, tools: &Tools) -> Result<()> {
    term::step("bootstrap demo");
    let bin_dir = programs::directory(root)?;
    let mut demo = process::command(bin_dir.join("bootstrap-demo"));
    demo.current_dir(root)
        .arg("--bin-dir")
        .arg(&bin_dir)
        .arg("--join-service")
        .arg(images::for_tests(root)?.join(IN_A_POD))
        .arg("--kubernetes")
        .arg(tools.cache.join("bin"))
        .arg("--etcd")
        .arg(etcd::program(tools))
        .arg("--crds")
        .arg(root.join("tec-k8s/crds"))
        .arg("--manifest")
        .arg(root.join("bins/bootstrapper/deploy/join-service.yaml"));
    tools.environment(&mut demo)?;
    process::run(&mut demo)
}
