//! The Job's second step: writes the measurements in a file to the status of an ApprovedImage.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tec_core::image::ExpectedPcrs;
use tec_core::port::Clock as _;
use tec_k8s::api::{ApprovedImage, BootSpec};
use tec_support::SystemClock;
use tec_support::exit::{NO_CLIENT, OK};

use crate::cli::PublishArgs;

/// Largest file. An object cannot hold as much (etcd, 1.5 MiB by default).
const LONGEST: u64 = 1 << 20;

pub(crate) fn run(args: &PublishArgs) -> anyhow::Result<u8> {
    // Fails only if a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let expected =
        read(&args.from).with_context(|| format!("cannot read {}", args.from.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(write(args, &expected))?;
    Ok(OK)
}

/// The program that wrote the file had read untrusted input.
fn read(file: &Path) -> anyhow::Result<ExpectedPcrs> {
    let mut text = Vec::new();
    let mut file = File::open(file)?.take(LONGEST + 1);
    let length = u64::try_from(file.read_to_end(&mut text)?)?;
    ensure!(length <= LONGEST, "the file is larger than {LONGEST} bytes");
    let expected: ExpectedPcrs = serde_json::from_slice(&text)?;
    ensure!(!expected.pcrs.is_empty(), "the file contains no measurements");
    ensure!(expected.is_sound(), "the measurements in the file do not produce its PCR values");
    Ok(expected)
}

/// Writes the measurements; status fields of other owners stay.
async fn write(args: &PublishArgs, expected: &ExpectedPcrs) -> anyhow::Result<()> {
    let client = Client::try_default().await.context(NO_CLIENT)?;
    let namespace = args.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let images: Api<ApprovedImage> = Api::namespaced(client, &namespace);
    let name = &args.approved_image;
    let image = images.get(name).await;
    let image = image.with_context(|| format!("cannot read the ApprovedImage {name}"))?;
    ensure!(
        image.spec.image == args.image,
        "the ApprovedImage {name} was replaced in the meantime: {}",
        image.spec.image
    );
    let boot = image.spec.boot.as_ref().map(BootSpec::flags).unwrap_or_default();
    ensure!(boot == args.boot, "the ApprovedImage {name} was replaced in the meantime: {boot:?}");
    let now = SystemClock.now().to_string();
    let patch = json!({
        // An object that was removed and created again is a different one.
        "metadata": { "uid": image.metadata.uid },
        "status": { "pcrs": expected.pcrs, "rootHash": expected.root_hash, "firstSeen": now },
    });
    images
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("cannot write the status of the ApprovedImage {name}"))?;
    let registers = expected.pcrs.len();
    tracing::info!(image = name, registers, "measurements written");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_within_limits_and_must_say_something() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("measurements");
        let good = tec_core::testing::sample::image(1).expected;
        std::fs::write(&file, serde_json::to_vec(&good).unwrap()).unwrap();
        assert_eq!(read(&file).unwrap(), good);
        std::fs::write(&file, "{\"pcrs\":[]}").unwrap();
        let none = read(&file).unwrap_err().to_string();
        assert_eq!(none, "the file contains no measurements");
        let mut other = serde_json::to_value(&good).unwrap();
        other["pcrs"][0]["value"] = "00".repeat(32).into();
        std::fs::write(&file, other.to_string()).unwrap();
        let unsound = read(&file).unwrap_err().to_string();
        assert_eq!(unsound, "the measurements in the file do not produce its PCR values");
        let long = vec![b' '; usize::try_from(LONGEST).unwrap() + 1];
        std::fs::write(&file, long).unwrap();
        let long = read(&file).unwrap_err().to_string();
        assert_eq!(long, "the file is larger than 1048576 bytes");
    }
}
