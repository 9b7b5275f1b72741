//! Images without a registry: those of a release, from its own Containerfile, and single programs of this
//! machine. buildah writes them as archives, which `ctr` imports.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::output;
use crate::kube::static_program;
use crate::packages::directory;

/// Static programs run on this architecture alone.
const ARCH: &str = "amd64";

/// The images of a release, from static programs that were built for tests.
#[derive(Debug)]
pub(super) struct Release {
    work: tempfile::TempDir,
}

impl Release {
    /// What the Containerfile copies: these programs, and this authority in place of public ones.
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

    /// Builds a target; its archive.
    pub(super) fn build(&self, target: &str, tag: &str) -> anyhow::Result<PathBuf> {
        let containerfile = directory().join("image/Containerfile");
        let platform = format!("linux/{ARCH}");
        let words = ["--target", target, "--platform", &platform];
        build(self.work.path(), &containerfile, &words, tag)
    }
}

/// An image of one program.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "every part is the caller's")]
pub struct Image {
    /// Name and tag.
    pub tag: String,
    /// The program; its libraries come with it.
    pub program: PathBuf,
    /// Words after the program, before those of a pod.
    pub words: Vec<String>,
    /// User and group, by number.
    pub user: String,
}

impl Image {
    /// An image of one program, which runs as nobody.
    pub fn of(tag: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let (tag, program) = (tag.into(), program.into());
        Self { tag, program, words: Vec::new(), user: "65532:65532".to_owned() }
    }

    /// The same, as root.
    #[must_use]
    pub fn as_root(self) -> Self {
        Self { user: "0:0".to_owned(), ..self }
    }

    /// Builds it below this folder, which was made for it; its archive.
    pub(super) fn build(&self, work: &Path) -> anyhow::Result<PathBuf> {
        let name = self.program.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("no file name: {}", self.program.display()))?;
        let entrypoint = [format!("/usr/bin/{name}")].into_iter().chain(self.words.iter().cloned());
        let entrypoint: Vec<String> = entrypoint.collect();
        let root = work.join("context/root");
        fs::create_dir_all(root.join("usr/bin"))?;
        place(&self.program, &root.join("usr/bin").join(name))?;
        for library in libraries(&self.program)? {
            let to = root.join(library.strip_prefix("/")?);
            fs::create_dir_all(to.parent().unwrap_or(&root))?;
            fs::copy(&library, to)?;
        }
        let containerfile = work.join("Containerfile");
        let (user, entrypoint) = (&self.user, serde_json::to_string(&entrypoint)?);
        let text = format!("FROM scratch\nCOPY root /\nUSER {user}\nENTRYPOINT {entrypoint}\n");
        fs::write(&containerfile, text)?;
        build(work, &containerfile, &[], &self.tag)
    }
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

/// Debugging information is most of a program that is built for tests.
fn place(program: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(program, to).with_context(|| format!("copy {}", program.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    let _ = Command::new("strip").arg(to).output();
    Ok(())
}

/// What the loader would load; nothing for static programs, about which ldd complains.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let files = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(files.filter(|file| !file.ends_with(':')).map(PathBuf::from).collect())
}
