//! Writes the definitions of the custom resources, one YAML file each, to the given directory.
//! `cargo xtask codegen` runs it.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

fn main() -> Result<()> {
    let dir: PathBuf = std::env::args_os().nth(1).context("usage: crds <directory>")?.into();
    for crd in tec_k8s::api::crds() {
        let yaml = serde_saphyr::to_string(&crd)?;
        let name = crd.metadata.name.as_deref().context("a definition has no name")?;
        let text = format!("# Written by `cargo xtask codegen` from tec-k8s/src/api.\n{yaml}");
        let path = dir.join(format!("{name}.yaml"));
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
