//! CoreDNS, reduced to the plugins that kubeadm configures: the others bring the libraries of four clouds, which
//! take longer to compile than everything else.

use anyhow::Result;

use super::{Tools, go, provide};
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
    let program = program();
    let wanted = format!("{MODULE}{program}");
    provide(tools, (NAME, &wanted), &tools.cache.join("bin").join(NAME), |dir| {
        term::note("go build of CoreDNS (about a minute on two cores)");
        let files = [("go.mod", MODULE), ("main.go", &program)];
        go::build(tools, dir, &files, "-s -w", NAME, &["."])?;
        Ok(dir.join(NAME))
    })
}

fn program() -> String {
    let import = |plugin| format!("\t_ \"github.com/coredns/coredns/plugin/{plugin}\"\n");
    let imports: String = PLUGINS.into_iter().map(import).collect();
    format!(
        "package main\n\nimport (\n{imports}\n\t\"github.com/coredns/coredns/coremain\"\n)\n\n\
         func main() {{ coremain.Run() }}\n"
    )
}
