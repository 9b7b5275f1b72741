//! `cargo xtask dist`: builds the contents of a release in `<target>/dist-files`.
//!
//! ```text
//!   static programs ──┬─► tec-<version>-linux-<arch>.tar.gz, kubectl-tec-linux-<arch>.tar.gz
//!   man, completions ─┼─► .deb and .rpm of each bins/*/deploy/package.yaml
//!                     ├─► <program>-<arch>.cdx.json, what is linked into it
//!                     └─► <image>.oci.tar
//!   deploy/ ────────────► charts, kustomize, OLM bundle
//!                         SHA256SUMS, and SHA256SUMS.sig with --sign-key
//! ```
//!
//! The same commit and tools yield the same bytes, wherever the checkout is; `--check` compares.

mod archive;
mod install;
mod package;
mod page;
mod sums;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cargo::Metadata;
use crate::tools::Tools;
use crate::tools::targets::Arch;
use crate::{images, process, term, tools};

pub(crate) use self::install::check as check_install;

/// The node's program, which is optimized for size because an initramfs carries it.
const NODE: &str = "node-agent";
const NODE_PROFILE: &str = "node";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Architectures
    #[arg(long, value_delimiter = ',', default_value = "amd64,arm64")]
    arch: Vec<Arch>,
    /// Private key in PEM (EC P-256) to sign SHA256SUMS with; verify with `cosign verify-blob --key`
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Skip the images
    #[arg(long)]
    without_images: bool,
    /// Build everything a second time, in a different directory, and compare
    #[arg(long)]
    check: bool,
}

/// Where a release is assembled.
pub(crate) struct Dist<'a> {
    root: &'a Path,
    tools: &'a Tools,
    version: String,
    /// Released files.
    out: PathBuf,
    /// Manual pages, completions, and trees that become archives.
    stage: PathBuf,
    /// Time of the commit in seconds since 1970, used as the time of every file.
    time: String,
}

/// `cargo xtask dist`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    ensure!(
        args.arch.contains(&Arch::Amd64),
        "manual pages are written by the programs for amd64: add it to --arch"
    );
    let tools = tools::ensure()?;
    tools::ensure_images(&tools, &args.arch)?;
    tools::ensure_dist(&tools)?;
    let dist = Dist::new(root, &tools)?;
    let mut built = Vec::new();
    for &arch in &args.arch {
        built.push((arch, dist.programs(arch)?));
    }
    for (arch, programs) in &built {
        if *arch == Arch::Amd64 {
            page::write(&dist, programs)?;
        }
    }
    for (arch, programs) in &built {
        archive::programs(&dist, *arch, programs)?;
        package::all(&dist, *arch, programs)?;
        sums::materials(&dist, *arch, programs)?;
    }
    archive::manifests(&dist)?;
    if !args.without_images {
        let layouts = images::layouts(root, &args.arch)?;
        archive::images(&dist, &layouts)?;
    }
    sums::write(&dist.out, args.sign_key.as_deref())?;
    if args.check {
        again(&dist, args)?;
    }
    term::success(&format!("the release is in {}", dist.out.display()));
    Ok(())
}

/// Builds the node's program; returns its path.
pub(crate) fn node_agent(root: &Path, tools: &Tools, arch: Arch) -> Result<PathBuf> {
    let chosen = ["--package", NODE, "--bin", NODE];
    images::build_static(root, tools, arch, NODE_PROFILE, &chosen)
}

/// Builds the Debian package of the node's program; returns its path.
pub(crate) fn node_package(root: &Path, tools: &Tools) -> Result<PathBuf> {
    tools::ensure_images(tools, &[Arch::Amd64])?;
    tools::ensure_dist(tools)?;
    let dist = Dist::new(root, tools)?;
    let programs = node_agent(root, tools, Arch::Amd64)?;
    page::of_help(&dist, &programs, NODE)?;
    package::build(&dist, package::NODE_AGENT, "deb", Arch::Amd64, &programs)
}

impl<'a> Dist<'a> {
    pub(crate) fn new(root: &'a Path, tools: &'a Tools) -> Result<Self> {
        let metadata = Metadata::workspace(root)?;
        let out = metadata.target_dir()?.join("dist-files");
        let mut time = process::command("git");
        time.current_dir(root).args(["log", "-1", "--format=%ct"]);
        let dist = Self {
            root,
            tools,
            version: metadata.version("tec")?.to_owned(),
            stage: out.join("stage"),
            time: process::capture(&mut time)?.trim().to_owned(),
            out,
        };
        if dist.out.exists() {
            fs::remove_dir_all(&dist.out)
                .with_context(|| format!("cannot remove {}", dist.out.display()))?;
        }
        fs::create_dir_all(&dist.stage)?;
        Ok(dist)
    }

    /// All programs of an architecture in one folder.
    fn programs(&self, arch: Arch) -> Result<PathBuf> {
        let into = self.stage.join("programs").join(arch.name());
        fs::create_dir_all(&into)?;
        let all = images::programs(self.root)?;
        let bins: Vec<&str> = all.iter().map(String::as_str).collect();
        let both = [
            (images::compile(self.root, self.tools, arch, images::PROFILE, &bins)?, all.clone()),
            (node_agent(self.root, self.tools, arch)?, vec![NODE.to_owned()]),
        ];
        for (from, programs) in both {
            for program in programs {
                fs::copy(from.join(&program), into.join(&program))
                    .with_context(|| format!("cannot copy {program} to {}", into.display()))?;
            }
        }
        Ok(into)
    }

    /// A program that creates files, with the time of the commit.
    fn tool(&self, program: &str) -> Result<std::process::Command> {
        let mut command = process::command(program);
        self.tools.environment(&mut command)?;
        command.current_dir(self.root).env("SOURCE_DATE_EPOCH", &self.time);
        Ok(command)
    }
}

/// Builds the same from a clone elsewhere, which has its own target directory.
fn again(dist: &Dist<'_>, args: &Args) -> Result<()> {
    term::step("the same once more, in a clone");
    let clone = dist.stage.join("clone");
    let mut git = process::command("git");
    process::capture(git.args(["clone", "--quiet"]).arg(dist.root).arg(&clone))?;
    let mut second = crate::cargo::cargo(&clone);
    second.args(["xtask", "dist", "--arch"]);
    let arches: Vec<&str> = args.arch.iter().map(|arch| arch.name()).collect();
    second.arg(arches.join(",")).env_remove("CARGO_TARGET_DIR");
    second.args(args.without_images.then_some("--without-images"));
    process::run(&mut second)?;
    let other = Metadata::workspace(&clone)?.target_dir()?.join("dist-files");
    sums::same(&dist.out, &other)?;
    term::success("both runs made the same bytes");
    Ok(())
}
