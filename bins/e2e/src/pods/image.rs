//! Images without a registry: those of a release, built by buildah from its own Containerfile, and images of
//! this machine's programs. They are archives, which `ctr` imports.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::output;
use crate::kube::static_program;
use crate::packages::directory;

/// Static programs run only on this architecture.
const ARCH: &str = "amd64";

/// The images of a release, from static programs built for tests.
#[derive(Debug)]
pub(super) struct Release {
    work: tempfile::TempDir,
}

impl Release {
    /// Inputs of the Containerfile: these programs, and this CA instead of public ones.
    pub(super) fn new(
        work: tempfile::TempDir,
        programs: &[&str],
        ca: &str,
    ) -> anyhow::Result<Self> {
        let context = work.path().join("context");
        fs::create_dir_all(context.join(ARCH))?;
        fs::write(context.join("ca-certificates.crt"), ca)?;
        for program in programs {
            place(&static_program(program)?, &context.join(ARCH).join(program))?;
        }
        Ok(Self { work })
    }

    /// Builds a target; returns its archive.
    pub(super) fn build(&self, target: &str, tag: &str) -> anyhow::Result<PathBuf> {
        let containerfile = directory().join("image/Containerfile");
        let platform = format!("linux/{ARCH}");
        let words = ["--target", target, "--platform", &platform];
        build(self.work.path(), &containerfile, &words, tag)
    }
}

/// An image of a program.
#[derive(Clone, Debug)]
pub struct Image {
    /// Name and tag.
    pub tag: String,
    /// The program it runs, included together with its libraries.
    pub program: PathBuf,
    /// Folder of the programs in the image.
    pub folder: PathBuf,
    /// Additional programs in the same folder.
    pub beside: Vec<PathBuf>,
    /// Folders of this machine, with their paths in the image.
    pub trees: Vec<(PathBuf, PathBuf)>,
    /// Additional names of the program, in the same folder.
    pub links: Vec<String>,
    /// Arguments after the program, before those of a pod.
    pub words: Vec<String>,
    /// User and group, by number.
    pub user: String,
}

impl Image {
    /// An image of one program, run as nobody.
    pub fn of(tag: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            tag: tag.into(),
            program: program.into(),
            folder: "usr/bin".into(),
            beside: Vec::new(),
            trees: Vec::new(),
            links: Vec::new(),
            words: Vec::new(),
            user: "65532:65532".to_owned(),
        }
    }

    /// Runs it as root.
    pub fn as_root(self) -> Self {
        Self { user: "0:0".to_owned(), ..self }
    }

    /// Adds a program.
    pub fn with(mut self, program: impl Into<PathBuf>) -> Self {
        self.beside.push(program.into());
        self
    }

    /// Adds a folder, and the libraries that its programs need.
    pub fn with_tree(mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Self {
        self.trees.push((from.into(), to.into()));
        self
    }

    /// Builds it in this folder, which exists for this purpose; returns the archive.
    pub fn build(&self, work: &Path) -> anyhow::Result<PathBuf> {
        let root = work.join("root");
        let folder = root.join(&self.folder);
        fs::create_dir_all(&folder)?;
        for program in std::iter::once(&self.program).chain(&self.beside) {
            place(program, &folder.join(name(program)?))?;
            place_libraries(program, &root)?;
        }
        for (from, to) in &self.trees {
            place_tree(from, &root.join(to), &root)?;
        }
        let name = name(&self.program)?;
        for link in &self.links {
            symlink(name, folder.join(link))?;
        }
        let program = Path::new("/").join(&self.folder).join(name);
        let entrypoint: Vec<String> = std::iter::once(program.display().to_string())
            .chain(self.words.iter().cloned())
            .collect();
        archive(work, &self.tag, &json!({"User": self.user, "Entrypoint": entrypoint}))
    }
}

/// The archive of an image with a single layer, the folder `root` (Docker Image Specification v1.2).
fn archive(work: &Path, tag: &str, config: &Value) -> anyhow::Result<PathBuf> {
    let tar = || {
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
        tar
    };
    let layer = work.join("layer.tar");
    output(tar().arg("-cf").arg(&layer).arg("-C").arg(work.join("root")).arg("."))?;
    let digest = output(Command::new("sha256sum").arg(&layer))?;
    let digest = digest.split(' ').next().unwrap_or_default();
    let config = json!({
        "architecture": ARCH, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest = json!([
        {"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]},
    ]);
    fs::write(work.join("config.json"), config.to_string())?;
    fs::write(work.join("manifest.json"), manifest.to_string())?;
    let (archive, files) = (work.join("image.tar"), ["manifest.json", "config.json", "layer.tar"]);
    output(tar().arg("-cf").arg(&archive).arg("-C").arg(work).args(files))?;
    fs::remove_file(layer)?;
    fs::remove_dir_all(work.join("root"))?;
    Ok(archive)
}

fn name(program: &Path) -> anyhow::Result<&str> {
    let name = program.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("no file name: {}", program.display()))
}

fn build(work: &Path, file: &Path, words: &[&str], tag: &str) -> anyhow::Result<PathBuf> {
    let buildah = || {
        let mut command = Command::new("buildah");
        command.arg("--root").arg(work.join("storage")).arg("--runroot").arg(work.join("run"));
        command.args(["--storage-driver", "vfs"]);
        command
    };
    let mut build = buildah();
    build.args(["build", "--quiet", "--timestamp", "0", "--tag", tag]).args(words);
    output(build.arg("--file").arg(file).arg(work.join("context")))?;
    let archive = work.join("image.tar");
    if archive.exists() {
        fs::remove_file(&archive)?;
    }
    let to = format!("docker-archive:{}:{tag}", archive.display());
    output(buildah().args(["push", "--quiet", tag, &to]))?;
    Ok(archive)
}

/// Strips debugging information, which is most of a program built for tests.
fn place(program: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(program, to).with_context(|| format!("cannot copy {}", program.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    let _ = Command::new("strip").arg(to).output();
    Ok(())
}

fn place_libraries(program: &Path, root: &Path) -> anyhow::Result<()> {
    for library in libraries(program)? {
        let to = root.join(library.strip_prefix("/")?);
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(&library, to)?;
    }
    Ok(())
}

/// Links are replaced with their targets; dangling links are left out.
fn place_tree(from: &Path, to: &Path, root: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match fs::metadata(&from) {
            Ok(found) if found.is_dir() => place_tree(&from, &to, root)?,
            Ok(found) => {
                fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
                if found.permissions().mode() & 0o111 != 0 || is_library(&from) {
                    place_libraries(&from, root)?;
                }
            }
            Err(_) => {}
        }
    }
    Ok(())
}

fn is_library(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "so")
}

/// The libraries that the loader would load; empty for static programs, about which ldd complains.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let files = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(files.filter(|file| !file.ends_with(':')).map(PathBuf::from).collect())
}
