//! Manual pages and completions, by the programs themselves.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Dist;
use crate::{process, term};

/// Shells, and what the file for each is called.
const SHELLS: [(&str, &str); 3] = [("bash", "tec.bash"), ("zsh", "tec.zsh"), ("fish", "tec.fish")];
/// Programs with packages of their own, whose one page is made of their help.
const HELPED: [&str; 2] = ["node-agent", "bootstrapper"];

/// `programs` must run on this machine.
pub(super) fn write(dist: &Dist<'_>, programs: &Path) -> Result<()> {
    term::step("manual pages and completions");
    let (man, completion) = (dist.stage.join("man"), dist.stage.join("completion"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completion)?;
    let tec = programs.join("tec");
    let mut reference = process::command(&tec);
    process::capture(reference.args(["reference", "--man"]).arg(&man))?;
    for (shell, name) in SHELLS {
        let script = process::capture(process::command(&tec).args(["completion", shell]))?;
        fs::write(completion.join(name), script)?;
    }
    for program in HELPED {
        of_help(dist, programs, program)?;
        let page = format!("{program}.1");
        fs::copy(dist.stage.join(format!("man-{program}")).join(&page), man.join(&page))?;
    }
    Ok(())
}

/// One page from what a program says of itself.
pub(super) fn of_help(dist: &Dist<'_>, programs: &Path, program: &str) -> Result<()> {
    let folder = dist.stage.join(format!("man-{program}"));
    fs::create_dir_all(&folder)?;
    let mut help = dist.tool("help2man")?;
    help.args(["--no-info", "--section=1"]).arg(programs.join(program));
    let file = folder.join(format!("{program}.1"));
    fs::write(&file, process::capture(&mut help)?)
        .with_context(|| format!("cannot write {}", file.display()))
}
