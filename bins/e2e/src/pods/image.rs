//! Images from programs of this machine, without a registry: an OCI layout in a tar file, as `ctr`
//! imports it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;

/// User of programs that need no rights, as in the images of releases.
const NOBODY: &str = "65532:65532";

/// What becomes an image of one layer.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "every part is the caller's")]
pub struct Image {
    /// Name and tag.
    pub tag: String,
    /// Programs, which get into `/usr/bin`; the first one is what runs.
    pub programs: Vec<PathBuf>,
    /// Words after the program, before those of a pod.
    pub words: Vec<String>,
    /// User and group, by number.
    pub user: String,
    /// Further files, by their path from the root.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Image {
    /// An image of one program.
    pub fn of(tag: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let (programs, user) = (vec![program.into()], NOBODY.to_owned());
        Self { tag: tag.into(), programs, words: Vec::new(), user, files: Vec::new() }
    }

    /// The same with another file, `etc/motd` for example.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.into(), content.into()));
        self
    }

    /// The same, as root.
    #[must_use]
    pub fn as_root(self) -> Self {
        Self { user: "0:0".to_owned(), ..self }
    }

    /// Writes the layout into a tar file below this folder, which is made for it.
    pub(super) fn write(&self, work: &Path) -> anyhow::Result<PathBuf> {
        let (root, layout) = (work.join("root"), work.join("layout"));
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        self.fill(&root)?;
        let layer = work.join("layer.tar");
        tar(&root, &layer)?;
        let content = fs::read(&layer)?;
        let diff = Sha256Digest::of(&content);
        let layer = blob(&blobs, "application/vnd.oci.image.layer.v1.tar", &content)?;
        let config = blob_of(
            &blobs,
            "application/vnd.oci.image.config.v1+json",
            &json!({
                "architecture": "amd64",
                "os": "linux",
                "config": {"Entrypoint": self.entrypoint()?, "User": self.user},
                "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
            }),
        )?;
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest =
            json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]});
        let mut manifest = blob_of(&blobs, kind, &manifest)?;
        manifest["annotations"] = json!({"io.containerd.image.name": self.tag});
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        fs::write(layout.join("index.json"), index.to_string())?;
        fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let file = work.join("image.tar");
        tar(&layout, &file)?;
        Ok(file)
    }

    fn entrypoint(&self) -> anyhow::Result<Vec<String>> {
        let first = self.programs.first().context("an image needs a program")?;
        let first = format!("/usr/bin/{}", name(first)?);
        Ok([first].into_iter().chain(self.words.iter().cloned()).collect())
    }

    /// The programs and the libraries that they load.
    fn fill(&self, root: &Path) -> anyhow::Result<()> {
        for folder in ["usr/bin", "etc", "tmp"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        fs::write(root.join("etc/passwd"), "nonroot:x:65532:65532::/:/sbin/nologin\n")?;
        for (path, content) in &self.files {
            let place = root.join(path);
            fs::create_dir_all(place.parent().unwrap_or(root))?;
            fs::write(place, content)?;
        }
        for program in &self.programs {
            let place = root.join("usr/bin").join(name(program)?);
            fs::copy(program, &place).with_context(|| format!("copy {}", program.display()))?;
            // Debugging information is most of a program that is built for tests.
            let _ = Command::new("strip").arg(&place).output();
            for library in libraries(program)? {
                let place = root.join(library.strip_prefix("/")?);
                fs::create_dir_all(place.parent().unwrap_or(root))?;
                fs::copy(&library, place)?;
            }
        }
        Ok(())
    }
}

fn name(program: &Path) -> anyhow::Result<&str> {
    let name = program.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("{} is no file with a name", program.display()))
}

/// What the loader would load; nothing for static programs, about which ldd complains.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let files = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(files.filter(|file| !file.ends_with(':')).map(PathBuf::from).collect())
}

/// The same files give the same bytes.
fn tar(folder: &Path, file: &Path) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    let output = tar.arg("-C").arg(folder).arg("-cf").arg(file).arg(".").output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "tar of {}: {words}", folder.display());
    Ok(())
}

fn blob_of(blobs: &Path, kind: &str, value: &Value) -> anyhow::Result<Value> {
    blob(blobs, kind, value.to_string().as_bytes())
}

/// Writes a blob, and describes it (OCI image specification 1.1, "OCI Content Descriptors").
fn blob(blobs: &Path, kind: &str, content: &[u8]) -> anyhow::Result<Value> {
    let digest = Sha256Digest::of(content).to_string();
    fs::write(blobs.join(&digest), content)?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len()}))
}
