//! Images of the services' chart with third-party programs, as archives that any registry or containerd
//! accepts: the tools used by the tests, with their libraries, on an empty base. For amd64.

use std::path::Path;

use anyhow::Result;

use crate::tools::Tools;
use crate::{process, programs, term, tools};

/// Names of the images.
pub(crate) const NAMES: [&str; 3] = ["tec-nats", "tec-collector", "tec-opensearch"];

/// Builds the named images below a folder, or all of them if none is named.
pub(crate) fn build(root: &Path, tools: &Tools, folder: &Path, named: &[String]) -> Result<()> {
    let is_chosen = |name: &&str| named.is_empty() || named.iter().any(|named| named == name);
    let names: Vec<&str> = NAMES.into_iter().filter(is_chosen).collect();
    if names.is_empty() {
        return Ok(());
    }
    tools::ensure_services(tools)?;
    tools::ensure_opensearch(tools)?;
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
