//! etcd in the version that kubeadm requires, from its Go module: the distribution's version is older.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::{Tools, go, is_stamped, remove_dir, scratch, stamp};
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
    let place = program(tools);
    if is_stamped(tools, NAME, VERSION) && place.is_file() {
        return Ok(());
    }
    term::note(&format!("go build of etcd {VERSION} (about a minute on two cores)"));
    let dir = scratch(tools, NAME)?;
    let module = format!("module tec-etcd\n\ngo 1.24.0\n\nrequire {MODULE} {VERSION}\n");
    go::build(tools, &dir, &[("go.mod", &module)], "-s -w", NAME, &[MODULE])?;
    let folder = tools.cache.join(NAME);
    fs::create_dir_all(&folder)
        .and_then(|()| fs::rename(dir.join(NAME), &place))
        .with_context(|| format!("cannot move etcd to {}", place.display()))?;
    stamp(tools, NAME, VERSION)?;
    remove_dir(&dir)
}
