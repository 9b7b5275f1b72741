//! OpenSearch with its security plugin, from Maven Central: archives that are verified by their digests, and
//! assembled by OpenSearch's own installer.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use super::{JAVA, Tools, archive, make_executable, provide, remove_dir};
use crate::{process, term};

/// Location below the cache.
pub(super) const PLACE: &str = "opensearch";
/// Fetches archives. Releases other than this one have different parameters.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy";

/// An archive.
struct Archive {
    /// Group, artifact, version, kind.
    artifact: &'static str,
    /// Name of the file.
    file: &'static str,
    /// SHA-256 of the file.
    digest: &'static str,
}

/// Everything except plugins. The regular distribution is not in Maven Central; this one is for plugin tests,
/// and has no modules.
const DISTRIBUTION: Archive = Archive {
    artifact: "org.opensearch.distribution.integ-test-zip:opensearch:2.19.4:zip",
    file: "opensearch-2.19.4.zip",
    digest: "3902e642715210d1d9d7cbdcc8f5abd6f931d1d7a679cea3750937becf16c406",
};
/// Only this version is compatible.
const SECURITY: Archive = Archive {
    artifact: "org.opensearch.plugin:opensearch-security:2.19.4.0:zip",
    file: "opensearch-security-2.19.4.0.zip",
    digest: "1f673622c462c4171a8c53f9b1ad20e5b839834cb79b0d3b388da180a0e514e8",
};

/// Assembles it unless it exists.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    let wanted = format!("{} {}", DISTRIBUTION.digest, SECURITY.digest);
    provide(tools, (PLACE, &wanted), &tools.cache.join(PLACE), |dir| {
        let distribution = fetch(dir, &DISTRIBUTION)?;
        let security = fetch(dir, &SECURITY)?;
        let home = unpack(&distribution, dir)?;
        install(&home, &security)?;
        Ok(home)
    })
}

fn fetch(dir: &Path, archive: &Archive) -> Result<PathBuf> {
    let Archive { artifact, file, .. } = archive;
    term::note(&format!("mvn dependency:copy {artifact}"));
    let mut copy = process::command("mvn");
    copy.args(["--batch-mode", "--quiet", COPY])
        .arg(format!("-Dartifact={artifact}"))
        .arg(format!("-DoutputDirectory={}", dir.display()))
        // Ignores any project in the parent directories.
        .current_dir(dir);
    process::capture(&mut copy).with_context(|| format!("cannot download {artifact}"))?;
    let path = dir.join(file);
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let digest = hex::encode(Sha256::digest(&bytes));
    if digest != archive.digest {
        bail!(
            "{file} has the digest {digest}, not {}: it is not the archive that was looked at",
            archive.digest
        );
    }
    Ok(path)
}

/// Unpacks into the directory; returns the only directory in the archive.
fn unpack(archive: &Path, dir: &Path) -> Result<PathBuf> {
    let mut unpack = process::command("python3");
    unpack.args(["-m", "zipfile", "--extract"]);
    process::capture(unpack.arg(archive).arg(dir))
        .with_context(|| format!("cannot unpack {}", archive.display()))?;
    let home = archive.with_extension("");
    // Python does not restore the file modes of the archive.
    for program in archive::entries(&home.join("bin"))? {
        make_executable(&program)?;
    }
    Ok(home)
}

/// Installs the plugin with OpenSearch's own program, and removes the demo users that come with it.
fn install(home: &Path, plugin: &Path) -> Result<()> {
    let java = Path::new(JAVA).ancestors().nth(2).context("Java's home")?;
    let jdk = home.join("jdk");
    std::os::unix::fs::symlink(java, &jdk)
        .with_context(|| format!("cannot link {}", jdk.display()))?;
    term::note("opensearch-plugin install opensearch-security");
    let mut install = process::command(home.join("bin/opensearch-plugin"));
    install
        .args(["install", "--batch"])
        .arg(format!("file://{}", plugin.display()))
        .env("OPENSEARCH_JAVA_HOME", &jdk);
    process::capture(&mut install).context("cannot install the security plugin")?;
    remove_dir(&home.join("config"))
}
