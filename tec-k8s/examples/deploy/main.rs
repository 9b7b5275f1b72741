//! Writes the operator's packages, and the pages about its reports, below the given directory.
//! `cargo xtask codegen` runs it.
//!
//! ```text
//! render::operator, api::crds ─┬─► deploy/kustomize    bases and overlays
//!                              ├─► deploy/helm         two charts, the CRDs apart
//!                              └─► deploy/olm          a bundle
//! signal::{Metric, Event, Alert} ┬─► deploy/monitoring and the chart's own copy
//!                                └─► pages: reference and runbooks
//! ```

mod dashboard;
mod helm;
mod image;
mod kustomize;
mod monitoring;
mod olm;
mod pages;
mod values;
mod yaml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Text by path below one directory.
type Files = BTreeMap<String, String>;

/// Version of this release.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// URL of the documentation site, if there is one: the packages contain no link without it.
fn base_url() -> Option<String> {
    let url = std::env::var_os("TEC_BASE_URL")?.into_string().ok()?;
    (!url.is_empty()).then(|| url.trim_end_matches('/').to_owned())
}

fn main() -> Result<()> {
    let dir: PathBuf = std::env::args_os().nth(1).context("usage: deploy <directory>")?.into();
    for (name, files) in [
        ("kustomize", kustomize::files()?),
        ("helm", helm::files()?),
        ("olm", olm::files()?),
        ("monitoring", monitoring::files()?),
        ("image", image::files()),
        ("reference", pages::reference()),
        ("runbooks", pages::runbooks()),
    ] {
        write(&dir.join(name), &files)?;
    }
    Ok(())
}

fn write(dir: &Path, files: &Files) -> Result<()> {
    for (name, text) in files {
        let path = dir.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("cannot create {}", parent.display()))?;
        }
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
