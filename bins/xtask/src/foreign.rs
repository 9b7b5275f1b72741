//! Images of the services' chart with programs of other projects, as archives that any registry or
//! containerd takes: the tools that the tests run, with their libraries, on nothing. For amd64.

use std::path::Path;

use anyhow::Result;

use crate::tools::{OpenSearch, Tools};
use crate::{process, programs, term, tools};

/// Names of the images.
pub(crate) const NAMES: [&str; 3] = ["tec-nats", "tec-collector", "tec-opensearch"];

/// Builds those that are named below a folder; all of them if no image is named.
pub(crate) fn build(root: &Path, tools: &Tools, folder: &Path, named: &[String]) -> Result<()> {
    let is_chosen = |name: &&str| named.is_empty() || named.iter().any(|named| named == name);
    let names: Vec<&str> = NAMES.into_iter().filter(is_chosen).collect();
    if names.is_empty() {
        return Ok(());
    }
    tools::ensure_services(tools, OpenSearch::With)?;
    let programs = programs::build(root, &["cluster"])?;
    for name in names {
        let archive = folder.join(format!("{name}.tar"));
        let mut build = process::command(programs.join("cluster"));
        build.arg("--dir").arg(folder).arg("--kubernetes").arg(tools.cache.join("bin"));
        build.args(["image", name]).arg(&archive);
        tools.environment(&mut build)?;
        process::run(&mut build)?;
        term::out(&format!("{name} is in {}", archive.display()));
    }
    Ok(())
}
