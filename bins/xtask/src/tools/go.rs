//! `ignition-validate`, built from its Go module.

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

const NAME: &str = "ignition-validate";
/// The first release whose spec 3.6.0 is final and knows custom Clevis pins by any name.
const MODULE: &str = "github.com/coreos/ignition/v2/validate@v2.27.0";

/// Builds the validator unless it is there.
pub(super) fn ensure_ignition_validate(tools: &Tools) -> Result<()> {
    if is_stamped(tools, NAME, MODULE) && tools.ignition_validate.is_file() {
        return Ok(());
    }
    term::note(&format!("go install {MODULE} (about half a minute)"));
    let dir = scratch(tools, NAME)?;
    let mut install = process::command("go");
    install.args(["install", MODULE]).env("GOBIN", &dir);
    process::capture(&mut install).with_context(|| {
        format!("cannot build {NAME}; a Go toolchain as new as the module asks for is needed")
    })?;
    let built = dir.join("validate");
    fs::rename(&built, &tools.ignition_validate).with_context(|| {
        let place = tools.ignition_validate.display();
        format!("cannot move {} to {place}", built.display())
    })?;
    stamp(tools, NAME, MODULE)?;
    remove_dir(&dir)
}
