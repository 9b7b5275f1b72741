//! CoreDNS, reduced to the plugins that kubeadm configures: the others bring the libraries of four clouds, which
//! take longer to compile than everything else.

use std::fs;

use anyhow::{Context as _, Result};

use super::{Tools, go, is_stamped, remove_dir, scratch, stamp};
use crate::term;

const NAME: &str = "coredns";
const MODULE: &str =
    "module tec-coredns\n\ngo 1.24.0\n\nrequire github.com/coredns/coredns v1.12.4\n";
/// Those of the Corefile in `kubeadm init phase addon coredns --print-manifest`.
const PLUGINS: [&str; 10] = [
    "cache",
    "errors",
    "forward",
    "health",
    "kubernetes",
    "loadbalance",
    "loop",
    "metrics",
    "ready",
    "reload",
];

/// Builds it unless it exists.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    let place = tools.cache.join("bin").join(NAME);
    let program = program();
    let wanted = format!("{MODULE}{program}");
    if is_stamped(tools, NAME, &wanted) && place.is_file() {
        return Ok(());
    }
    term::note("go build of CoreDNS (about a minute on two cores)");
    let dir = scratch(tools, NAME)?;
    let files = [("go.mod", MODULE), ("main.go", &program)];
    go::build(tools, &dir, &files, "-s -w", NAME, &["."])?;
    fs::rename(dir.join(NAME), &place)
        .with_context(|| format!("cannot move {NAME} to {}", place.display()))?;
    stamp(tools, NAME, &wanted)?;
    remove_dir(&dir)
}

fn program() -> String {
    let import = |plugin| format!("\t_ \"github.com/coredns/coredns/plugin/{plugin}\"\n");
    let imports: String = PLUGINS.into_iter().map(import).collect();
    format!(
        "package main\n\nimport (\n{imports}\n\t\"github.com/coredns/coredns/coremain\"\n)\n\n\
         func main() {{ coremain.Run() }}\n"
    )
}
