//! Archives: sorted names, one time and one owner, so that the same files yield the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Dist;
use crate::tools::targets::Arch;
use crate::{process, term};

/// Charts, each in a folder of its name.
const CHARTS: [&str; 3] = [
    "bins/operator/deploy/helm/tec-crds",
    "bins/operator/deploy/helm/tec-operator",
    "bins/services/deploy/helm/tec-services",
];
/// Other ways to set up a cluster, and the names of their archives.
const MANIFESTS: [(&str, &str); 3] = [
    ("bins/operator/deploy/kustomize", "tec-kustomize"),
    ("bins/operator/deploy/monitoring", "tec-monitoring"),
    ("bins/operator/deploy/olm", "tec-olm-bundle"),
];
/// Files that belong to the node's program.
const NODE: &str = "bins/node-agent/deploy";

/// All programs of one architecture, and the plugin of kubectl alone.
pub(super) fn programs(dist: &Dist<'_>, arch: Arch, programs: &Path) -> Result<()> {
    term::step(&format!("archives for {}", arch.name()));
    let name = format!("tec-{}-linux-{}", dist.version, arch.name());
    let tree = dist.stage.join("tree").join(&name);
    fs::create_dir_all(&tree)?;
    let copies = [
        (programs.to_owned(), "bin"),
        (dist.stage.join("man"), "man"),
        (dist.stage.join("completion"), "completion"),
        (dist.root.join(NODE), "node-agent"),
        (dist.root.join("LICENSE"), "LICENSE"),
        (dist.root.join("README.md"), "README.md"),
    ];
    for (from, to) in copies {
        copy(&from, &tree.join(to))?;
    }
    pack(dist, &tree, &dist.out.join(format!("{name}.tar.gz")))?;
    let plugin = dist.stage.join("plugin").join(arch.name());
    fs::create_dir_all(&plugin)?;
    copy(&programs.join("tec"), &plugin.join("kubectl-tec"))?;
    copy(&dist.root.join("LICENSE"), &plugin.join("LICENSE"))?;
    pack_contents(
        dist,
        &plugin,
        &dist.out.join(format!("kubectl-tec-linux-{}.tar.gz", arch.name())),
    )
}

/// Charts and manifests. A chart is an archive of its folder, named after its version.
pub(super) fn manifests(dist: &Dist<'_>) -> Result<()> {
    term::step("charts and manifests");
    for chart in CHARTS {
        let folder = dist.root.join(chart);
        let name = folder.file_name().context("a chart has a name")?.to_string_lossy().into_owned();
        let to = dist.out.join(format!("{name}-{}.tgz", dist.version));
        pack(dist, &folder, &to)?;
        process::capture(dist.tool("helm")?.args(["show", "chart"]).arg(&to))?;
    }
    for (folder, name) in MANIFESTS {
        let to = dist.out.join(format!("{name}-{}.tar.gz", dist.version));
        pack_contents(dist, &dist.root.join(folder), &to)?;
    }
    Ok(())
}

/// An OCI layout as a single file, which `skopeo copy oci-archive:…` accepts.
pub(super) fn images(dist: &Dist<'_>, layouts: &[PathBuf]) -> Result<()> {
    for layout in layouts {
        let name =
            layout.file_name().context("a layout has a name")?.to_string_lossy().into_owned();
        let mut tar = tar(dist, &dist.out.join(format!("{name}.oci.tar")))?;
        process::capture(tar.arg("-C").arg(layout).arg("."))?;
    }
    Ok(())
}

/// A folder under its own name.
fn pack(dist: &Dist<'_>, folder: &Path, to: &Path) -> Result<()> {
    let parent = folder.parent().context("a folder has a parent")?;
    let name = folder.file_name().context("a folder has a name")?;
    let mut tar = tar(dist, to)?;
    process::capture(tar.arg("--gzip").arg("-C").arg(parent).arg(name)).map(drop)
}

/// The contents of a folder.
fn pack_contents(dist: &Dist<'_>, folder: &Path, to: &Path) -> Result<()> {
    let mut tar = tar(dist, to)?;
    process::capture(tar.arg("--gzip").arg("-C").arg(folder).arg(".")).map(drop)
}

fn tar(dist: &Dist<'_>, to: &Path) -> Result<std::process::Command> {
    let mut tar = dist.tool("tar")?;
    tar.arg("--create").arg("--file").arg(to);
    tar.args(["--sort=name", "--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mode=u+rw,go-w,a+rX"]).arg(format!("--mtime=@{}", dist.time));
    // gzip writes neither a name nor a time.
    tar.env("GZIP", "-n");
    Ok(tar)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut copy = process::command("cp");
    process::capture(copy.args(["--recursive", "--preserve=mode,links"]).arg(from).arg(to))
        .map(drop)
}
