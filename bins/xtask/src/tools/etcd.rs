//! etcd in the version that kubeadm requires, from its Go module: the distribution's version is older.

use std::path::PathBuf;

use anyhow::Result;

use super::{Tools, go, provide};
use crate::term;

const NAME: &str = "etcd";
/// As listed by `kubeadm config images list`.
const VERSION: &str = "v3.6.5";
/// Its module replaces others with directories of its own repository, so `go install` refuses it; as a
/// dependency it builds.
const MODULE: &str = "go.etcd.io/etcd/server/v3";

/// Path of the program, whether built or not: separate from the programs found by PATH.
pub(crate) fn program(tools: &Tools) -> PathBuf {
    tools.cache.join(NAME).join(NAME)
}

/// Builds it unless it exists.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    provide(tools, (NAME, VERSION), &program(tools), |dir| {
        term::note(&format!("go build of etcd {VERSION} (about a minute on two cores)"));
        let module = format!("module tec-etcd\n\ngo 1.24.0\n\nrequire {MODULE} {VERSION}\n");
        go::build(tools, dir, &[("go.mod", &module)], "-s -w", NAME, &[MODULE])?;
        Ok(dir.join(NAME))
    })
}
