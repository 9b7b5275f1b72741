//! Programs that are built from their Go modules.

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

/// A program of a Go module.
struct Program {
    name: &'static str,
    /// What `go install` takes: package and version.
    module: &'static str,
    /// What `go install` calls the result.
    built: &'static str,
    /// How long that takes on two cores.
    takes: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program {
        name: "ignition-validate",
        // The first release whose spec 3.6.0 is final and knows custom Clevis pins by any name.
        module: "github.com/coreos/ignition/v2/validate@v2.27.0",
        built: "validate",
        takes: "half a minute",
    },
    Program {
        name: "helm",
        module: "helm.sh/helm/v3/cmd/helm@v3.22.0",
        built: "helm",
        takes: "two minutes",
    },
];

/// Builds what is not there yet.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    PROGRAMS
        .iter()
        .try_for_each(|program| install(tools, program))
}

fn install(tools: &Tools, program: &Program) -> Result<()> {
    let Program {
        name,
        module,
        built,
        takes,
    } = program;
    let place = tools.cache.join("bin").join(name);
    if is_stamped(tools, name, module) && place.is_file() {
        return Ok(());
    }
    term::note(&format!("go install {module} (about {takes})"));
    let dir = scratch(tools, name)?;
    let mut install = process::command("go");
    install.args(["install", module]).env("GOBIN", &dir);
    process::capture(&mut install).with_context(|| {
        format!("cannot build {name}; a Go toolchain as new as the module asks for is needed")
    })?;
    let built = dir.join(built);
    fs::rename(&built, &place)
        .with_context(|| format!("cannot move {} to {}", built.display(), place.display()))?;
    stamp(tools, name, module)?;
    remove_dir(&dir)
}
