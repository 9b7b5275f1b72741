//! `tec-protogen <proto dir> <out dir> [<descriptors>]`: writes one Rust file per package of the `.proto`
//! files in a directory and, for servers with reflection, a file with their descriptors. A separate program,
//! so that xtask stays light; called by `cargo xtask codegen`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message as _;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(protos), Some(out), descriptors, None) =
        (arguments.next(), arguments.next(), arguments.next(), arguments.next())
    else {
        anyhow::bail!("usage: tec-protogen <proto dir> <out dir> [<descriptors>]");
    };
    let files = protox::compile(sources(&protos)?, [&protos])
        .with_context(|| format!("cannot compile the files in {}", protos.display()))?;
    if let Some(descriptors) = descriptors {
        // A FileDescriptorSet as text, like every generated file.
        std::fs::write(&descriptors, BASE64.encode(files.encode_to_vec()) + "\n")
            .with_context(|| format!("cannot write {}", descriptors.display()))?;
    }
    tonic_prost_build::configure()
        .build_transport(false)
        // Messages carry secrets: nothing may print one by accident.
        .skip_debug(["."])
        .out_dir(&out)
        .compile_fds(files)
        .with_context(|| format!("cannot write to {}", out.display()))
}

/// Sorted by name: the same input yields the same bytes.
fn sources(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
