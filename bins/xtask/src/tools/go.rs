//! Programs built from their Go modules, and a Go that is new enough.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Tools, provide, remove_dir, scratch};
use crate::{process, term};

/// A program in a Go module.
struct Program {
    name: &'static str,
    /// Argument of `go install`: package and version.
    module: &'static str,
    /// Name that `go install` gives the result.
    built: &'static str,
    /// Linker settings.
    linker: &'static str,
    /// Build time on two cores.
    takes: &'static str,
}

/// Validates Ignition configs.
const IGNITION_VALIDATE: Program = Program {
    name: "ignition-validate",
    // The first release with the final spec 3.6.0 and with custom Clevis pins of any name.
    module: "github.com/coreos/ignition/v2/validate@v2.27.0",
    built: "validate",
    linker: "",
    takes: "half a minute",
};

/// The engine of the same release, for virtual machines: it is in the package `internal`. The machines have
/// no SELinux, which the engine would configure unless disabled at build time.
const IGNITION: Program = Program {
    name: "ignition",
    module: "github.com/coreos/ignition/v2/internal@v2.27.0",
    built: "internal",
    linker: "-s -w -X github.com/coreos/ignition/v2/internal/version.Raw=v2.27.0 \
             -X github.com/coreos/ignition/v2/internal/distro.selinuxRelabel=false",
    takes: "two minutes",
};

/// Checks the pages for words that the project avoids. The module has moved from errata-ai.
const VALE: Program = Program {
    name: "vale",
    module: "github.com/vale-cli/vale/v3/cmd/vale@v3.21.0",
    built: "vale",
    linker: "-s -w",
    takes: "two minutes",
};

/// Minor version of the Go that the modules here and Kubernetes need.
const MINOR: u32 = 26;
/// The same as a module, as which any Go can fetch it, verified by the checksum database (go.dev/doc/toolchain). Debian
/// 12 has 1.19, which cannot do that by itself.
const TOOLCHAIN: &str = "golang.org/toolchain@v0.0.1-go1.26.0.linux";

/// Fetches a Go if that of this machine is too old. Tests find it first in their PATH.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    let version = process::capture(go(tools).arg("version"))?;
    if minor(&version).is_some_and(|minor| minor >= MINOR) {
        return Ok(());
    }
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let module = format!("{TOOLCHAIN}-{arch}");
    term::note(&format!("go mod download {module}"));
    let dir = scratch(tools, "go")?;
    let mut download = go(tools);
    download.args(["mod", "download", "-modcacherw", &module]).env("GOMODCACHE", &dir);
    process::capture(download.current_dir(&dir).env("GOFLAGS", ""))?;
    let made = dir.join(&module);
    // Modules have no permissions.
    for folder in [made.join("bin"), made.join(format!("pkg/tool/linux_{arch}"))] {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o755))?;
        }
    }
    let place = tools.cache.join("go");
    remove_dir(&place)?;
    fs::rename(&made, &place).with_context(|| format!("cannot move {}", made.display()))?;
    let link = own(tools);
    let _ = fs::remove_file(&link);
    symlink("../go/bin/go", &link).with_context(|| format!("cannot write {}", link.display()))?;
    remove_dir(&dir)
}

fn own(tools: &Tools) -> PathBuf {
    tools.cache.join("bin/go")
}

fn go(tools: &Tools) -> Command {
    let own = own(tools);
    process::command(if own.is_file() { own } else { "go".into() })
}

/// `go version go1.26.8 linux/amd64`
fn minor(version: &str) -> Option<u32> {
    let (_, number) = version.split_once("go1.")?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Builds Vale if it is not there yet.
pub(super) fn ensure_vale(tools: &Tools) -> Result<()> {
    install(tools, &VALE)
}

/// Builds Ignition's engine if it is not there yet; it links libblkid.
pub(super) fn ensure_ignition(tools: &Tools) -> Result<()> {
    install(tools, &IGNITION)
}

/// Builds ignition-validate if it is not there yet.
pub(super) fn ensure_ignition_validate(tools: &Tools) -> Result<()> {
    install(tools, &IGNITION_VALIDATE)
}

fn install(tools: &Tools, program: &Program) -> Result<()> {
    let Program { name, module, built, linker, takes } = program;
    let wanted = format!("{module}{linker}");
    provide(tools, (name, &wanted), &tools.cache.join("bin").join(name), |dir| {
        term::note(&format!("go install {module} (about {takes})"));
        ensure(tools)?;
        let mut install = go(tools);
        install.args(["install", "-ldflags", linker, module]).env("GOBIN", dir);
        // Modules whose own files declare a different minimum Go version.
        install.env("GOFLAGS", "-mod=mod");
        process::capture(&mut install).with_context(|| format!("cannot build {name}"))?;
        Ok(dir.join(built))
    })
}

/// Writes a module into `dir` and builds packages there, into `output`: with the versions of its `go.sum`, or with
/// those that its `go.mod` selects, which Go verifies against its checksum database.
pub(super) fn build(
    tools: &Tools,
    dir: &Path,
    files: &[(&str, &str)],
    linker: &str,
    output: &str,
    packages: &[&str],
) -> Result<()> {
    for (name, text) in files {
        let file = dir.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let is_pinned = files.iter().any(|(name, _)| *name == "go.sum");
    let mode = if is_pinned { "-mod=readonly" } else { "-mod=mod" };
    ensure(tools)?;
    let mut build = go(tools);
    build
        .current_dir(dir)
        .args(["build", mode, "-trimpath", "-ldflags", linker, "-o", output])
        .args(packages)
        .env("CGO_ENABLED", "0");
    process::capture(&mut build).with_context(|| format!("cannot build {output}")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::minor;

    #[test]
    fn the_version_of_go_is_read() {
        for (said, expected) in [
            ("go version go1.19.8 linux/amd64\n", Some(19)),
            ("go version go1.26.0 linux/amd64", Some(26)),
            ("go version go1.27rc1 linux/arm64", Some(27)),
            ("go version devel", None),
        ] {
            assert_eq!(minor(said), expected, "{said}");
        }
    }
}
