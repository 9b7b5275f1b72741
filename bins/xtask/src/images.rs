//! `cargo xtask images`: builds the images of a release from static programs, without a registry.
//!
//! ```text
//!   cargo build ──► context/amd64, context/arm64 ──┐
//!   root certificates ──► context/ca-certificates.crt ├─► buildah ─► <target>/images/<name>, an OCI layout
//!   bins/operator/deploy/image/Containerfile ─────────┘              of all architectures
//! ```
//!
//! The same commit, toolchain and buildah yield the same digests, wherever the checkout is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::cargo::{Metadata, cargo};
use crate::tools::targets::Arch;
use crate::tools::{Tools, musl};
use crate::{foreign, process, term, tools};

const CONTAINERFILE: &str = "bins/operator/deploy/image/Containerfile";
/// Below the target directory.
const FOLDER: &str = "images";
/// Profile of distributed programs.
pub(crate) const PROFILE: &str = "dist";
/// Features that the documentation promises for programs in images.
const FEATURES: &str = "bootstrapper/aws";
/// The toolchain's own: it links for every architecture, and packs relocations.
const LINKER: &str = "rust-lld";
/// The program itself relocates its addresses when it starts; packed, they need a hundredth of the room.
const PACK: &str = "-Clink-arg=--pack-dyn-relocs=relr";
/// A program that is in no image, because it runs before there are pods.
const BOOTSTRAPPER: &str = "bootstrapper";
/// The only image with a third-party program.
const VAULT: &str = "tec-services";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Architectures of the images
    #[arg(long, value_delimiter = ',', default_value = "amd64,arm64")]
    arch: Vec<Arch>,
    /// Build only this image (default: all); repeatable
    #[arg(long = "image", value_name = "NAME")]
    images: Vec<String>,
    /// Cargo profile of the programs; `dev` builds fastest
    #[arg(long, value_name = "NAME", default_value = PROFILE)]
    profile: String,
    /// Base image of the vault in tec-services, by digest (default: do not build tec-services)
    #[arg(long, value_name = "REFERENCE")]
    vault_image: Option<String>,
}

/// Compilers for C where those of this machine are found automatically only for its own architecture.
fn compilers(arch: Arch, tools: &Tools, command: &mut Command) {
    if arch == Arch::Amd64 {
        return;
    }
    let flags = format!("-nostdlibinc -isystem {}", musl::headers(tools).display());
    command
        .env("CC_aarch64_unknown_linux_musl", "clang")
        .env("CFLAGS_aarch64_unknown_linux_musl", flags)
        .env("AR_aarch64_unknown_linux_musl", "ar")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", LINKER);
}

/// An image in the Containerfile.
#[derive(Debug, PartialEq, Eq)]
struct Image {
    name: String,
    programs: Vec<String>,
}

/// `cargo xtask images`.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    build(root, args).map(drop)
}

/// Builds the images of a release, except those that need third-party programs; returns the paths of their
/// layouts.
pub(crate) fn layouts(root: &Path, arches: &[Arch]) -> Result<Vec<PathBuf>> {
    let all = images(&fs::read_to_string(root.join(CONTAINERFILE))?);
    let args = Args {
        arch: arches.to_vec(),
        images: all.into_iter().map(|image| image.name).filter(|name| name != VAULT).collect(),
        profile: PROFILE.to_owned(),
        vault_image: None,
    };
    build(root, &args)
}

/// Programs in images, each of which is part of a release.
pub(crate) fn programs(root: &Path) -> Result<Vec<String>> {
    let all = images(&fs::read_to_string(root.join(CONTAINERFILE))?);
    let mut programs: Vec<String> = all.into_iter().flat_map(|image| image.programs).collect();
    programs.push(BOOTSTRAPPER.to_owned());
    Ok(programs)
}

fn build(root: &Path, args: &Args) -> Result<Vec<PathBuf>> {
    let all = images(&fs::read_to_string(root.join(CONTAINERFILE))?);
    let chosen = chosen(&all, args)?;
    let tools = tools::locate()?;
    tools::ensure_images(&tools, &args.arch)?;
    let folder = Metadata::workspace(root)?.target_dir()?.join(FOLDER);
    fs::create_dir_all(&folder)?;
    foreign::build(root, &tools, &folder, &args.images)?;
    if chosen.is_empty() {
        return Ok(Vec::new());
    }
    tools::ensure_dist(&tools)?;
    let bins: Vec<&str> = chosen.iter().flat_map(|image| &image.programs).map(|p| &**p).collect();
    let context = folder.join("context");
    fs::create_dir_all(&context)?;
    fs::write(context.join("ca-certificates.crt"), root_certificates())?;
    for &arch in &args.arch {
        let built = compile(root, &tools, arch, &args.profile, &bins)?;
        let into = context.join(arch.name());
        fs::create_dir_all(&into)?;
        for program in &bins {
            fs::copy(built.join(program), into.join(program))
                .with_context(|| format!("cannot copy {program} to {}", into.display()))?;
        }
    }
    term::step("build the images");
    let mut rows = Vec::new();
    for image in &chosen {
        let digest = assemble(root, &folder, &image.name, args)?;
        rows.push(vec![image.name.clone(), digest]);
    }
    term::table(&["image", "digest"], &rows);
    term::out(&format!("OCI layouts are in {}", folder.display()));
    Ok(chosen.iter().map(|image| folder.join(&image.name)).collect())
}

/// Builds the programs that the tests run in pods, statically as in a release; returns their directory.
pub(crate) fn compile_for_tests(root: &Path, programs: &[&str]) -> Result<PathBuf> {
    compile(root, &tools::locate()?, Arch::Amd64, "dev", programs)
}

/// Where [`compile_for_tests`] puts programs.
pub(crate) fn for_tests(root: &Path) -> Result<PathBuf> {
    Ok(Metadata::workspace(root)?.target_dir()?.join(Arch::Amd64.target()).join("debug"))
}

fn chosen<'a>(all: &'a [Image], args: &Args) -> Result<Vec<&'a Image>> {
    for name in &args.images {
        let is_ours = all.iter().any(|image| image.name == *name);
        let is_there = is_ours || foreign::NAMES.contains(&name.as_str());
        ensure!(is_there, "there is no image {name}");
        ensure!(name != VAULT || args.vault_image.is_some(), "{VAULT} needs --vault-image");
    }
    let is_chosen = |image: &&Image| match args.images.as_slice() {
        [] => image.name != VAULT || args.vault_image.is_some(),
        names => names.contains(&image.name),
    };
    Ok(all.iter().filter(is_chosen).collect())
}

/// The images of a Containerfile, and the programs of this workspace they contain.
fn images(containerfile: &str) -> Vec<Image> {
    let mut found: Vec<Image> = Vec::new();
    for line in containerfile.lines() {
        if let Some(name) = line.strip_prefix("FROM scratch AS ") {
            found.push(Image { name: name.to_owned(), programs: Vec::new() });
        }
        let programs = line.split(' ').filter_map(|word| word.strip_prefix("${TARGETARCH}/"));
        if let Some(image) = found.last_mut() {
            image.programs.extend(programs.map(str::to_owned));
        }
    }
    found
}

/// Builds static programs for images; returns their directory. The set of packages is always the same,
/// because the features of one change the libraries of all.
pub(crate) fn compile(
    root: &Path,
    tools: &Tools,
    arch: Arch,
    profile: &str,
    bins: &[&str],
) -> Result<PathBuf> {
    let in_images = programs(root)?;
    let metadata = Metadata::workspace(root)?;
    let mut packages = Vec::new();
    for member in metadata.members() {
        let name = member.text("name");
        if metadata.binaries(name)?.iter().any(|program| in_images.contains(program)) {
            packages.extend(["--package", name]);
        }
    }
    packages.extend(["--features", FEATURES]);
    packages.extend(bins.iter().flat_map(|program| ["--bin", program]));
    build_static(root, tools, arch, profile, &packages)
}

/// Builds static programs; `chosen` are the Cargo flags that select them.
pub(crate) fn build_static(
    root: &Path,
    tools: &Tools,
    arch: Arch,
    profile: &str,
    chosen: &[&str],
) -> Result<PathBuf> {
    term::step(&format!("build static programs for {}", arch.name()));
    let metadata = Metadata::workspace(root)?;
    let target_dir = metadata.target_dir()?;
    let is_release = profile != "dev";
    let mut command = cargo(root);
    tools.environment(&mut command)?;
    // A released program contains the list of what is linked into it.
    command.args(is_release.then_some("auditable")).args(["build", "--locked"]);
    command.args(["--profile", profile, "--target", arch.target()]).args(chosen);
    let mut flags = flags(&target_dir)?;
    compilers(arch, tools, &mut command);
    if is_release {
        flags.push(PACK.to_owned());
        command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER", LINKER);
        command.env("TEC_VERSION", version(root, &metadata)?);
    } else {
        // The features of what ships are those of no other step.
        flags.push("-Dwarnings".to_owned());
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    process::run(&mut command)?;
    Ok(target_dir.join(arch.target()).join(if is_release { profile } else { "debug" }))
}

/// Version and commit, as `tec --version` prints them.
fn version(root: &Path, metadata: &Metadata) -> Result<String> {
    let mut head = process::command("git");
    let head = process::capture(head.current_dir(root).args(["rev-parse", "HEAD"]))?;
    Ok(format!("{} ({})", metadata.version("tec")?, head.trim()))
}

/// Keeps paths of this machine out of programs. If several match, the last one counts. Sources of the workspace
/// have relative paths; with the root as a flag, each checkout would compile all dependencies again.
fn flags(target_dir: &Path) -> Result<Vec<String>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    let is_static = "-Ctarget-feature=+crt-static".to_owned();
    Ok(vec![is_static, remap(&home, "/cargo"), remap(target_dir, "/tec/target")])
}

/// Builds one image for all architectures, and writes it as an OCI layout; returns its digest.
fn assemble(root: &Path, folder: &Path, name: &str, args: &Args) -> Result<String> {
    let layout = folder.join(name);
    let storage = folder.join("storage");
    for old in [&layout, &storage] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    let buildah = || {
        let mut command = process::command("buildah");
        command.arg("--root").arg(storage.join("root")).arg("--runroot").arg(storage.join("run"));
        command.args(["--storage-driver", "vfs"]);
        command
    };
    // One architecture after another: buildah lists those of one call in random order.
    for arch in &args.arch {
        let mut build = buildah();
        // Keeps the time and the version of buildah out of the image.
        build.args(["build", "--quiet", "--timestamp", "0", "--identity-label=false"]);
        build.args(["--platform", &format!("linux/{}", arch.name())]);
        build.args(["--manifest", name, "--target", name]);
        if let Some(vault) = &args.vault_image {
            build.arg("--build-arg").arg(format!("VAULT_IMAGE={vault}"));
        }
        build.arg("--file").arg(root.join(CONTAINERFILE)).arg(folder.join("context"));
        process::capture(&mut build)?;
    }
    let to = format!("oci:{}", layout.display());
    process::capture(buildah().args(["manifest", "push", "--all", "--quiet", name, &to]))?;
    fs::remove_dir_all(&storage)?;
    digest(&layout)
}

fn digest(layout: &Path) -> Result<String> {
    let index = fs::read_to_string(layout.join("index.json"))?;
    let index: serde_json::Value = serde_json::from_str(&index)?;
    match index.pointer("/manifests/0/digest").and_then(serde_json::Value::as_str) {
        Some(digest) => Ok(digest.to_owned()),
        None => bail!("{} names no manifest", layout.display()),
    }
}

/// Public CAs, as listed by Mozilla, PEM.
fn root_certificates() -> String {
    let mut text = String::new();
    for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(certificate);
        // RFC 7468, section 2: 64 characters per line.
        for line in encoded.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn containerfile() -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        fs::read_to_string(root.join(CONTAINERFILE)).unwrap()
    }

    #[test]
    fn only_the_vault_is_fetched_and_nothing_runs() {
        let text = containerfile();
        let lines_of = |word: &str| -> Vec<&str> {
            let begin = format!("{word} ");
            text.lines().filter_map(|line| line.strip_prefix(&begin)).collect()
        };
        let (bases, images) = (lines_of("FROM"), images(&text));
        let (services, others) = bases.split_last().unwrap();
        let (vault, others) = others.split_last().unwrap();
        assert_eq!(*services, format!("scratch AS {VAULT}"), "last, so that no other needs a base");
        assert_eq!(*vault, "${VAULT_IMAGE} AS vault");
        assert!(others.iter().all(|base| base.starts_with("scratch AS ")), "{others:?}");
        assert_eq!(images.len(), bases.len() - 1);
        for word in ["RUN", "ADD"] {
            assert_eq!(lines_of(word), Vec::<&str>::new());
        }
        for copied in lines_of("COPY") {
            let from = copied.split(' ').find_map(|word| word.strip_prefix("--from="));
            assert!(from.is_none_or(|from| from == "vault"), "{copied}");
        }
    }

    #[test]
    fn every_image_has_programs_and_a_user_by_number() {
        let text = containerfile();
        let images = images(&text);
        assert!(images.iter().all(|image| !image.programs.is_empty()), "{images:?}");
        let is_number = |part: &str| part.parse::<u32>().is_ok();
        let users = text.lines().filter_map(|line| line.strip_prefix("USER "));
        let numbers = users.filter(|user| user.split(':').all(is_number));
        assert_eq!(numbers.count(), images.len());
    }

    #[test]
    fn the_vault_is_fetched_only_where_it_is_named() {
        let all = images(&containerfile());
        let args = |images: &[&str], vault: Option<&str>| Args {
            arch: vec![Arch::Amd64],
            profile: PROFILE.to_owned(),
            images: images.iter().map(|&name| name.to_owned()).collect(),
            vault_image: vault.map(str::to_owned),
        };
        let default = chosen(&all, &args(&[], None)).unwrap();
        assert!(default.iter().all(|image| image.name != VAULT));
        assert!(chosen(&all, &args(&[VAULT], None)).is_err());
        let with = chosen(&all, &args(&[], Some("vault.example/bao@sha256:00"))).unwrap();
        assert_eq!(with.len(), default.len() + 1);
        assert!(chosen(&all, &args(&["no-such-image"], None)).is_err());
    }
}
