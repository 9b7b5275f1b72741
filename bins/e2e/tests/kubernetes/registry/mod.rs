//! From an image in a real registry to reference values at a Trustee: operator and Job are the real programs,
//! with the permissions that their packages grant; the tests play the kubelet.

mod world;

use std::process::Output;

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tec_core::image::ExpectedPcrs;
use tec_core::reference::{BootImage as _, PcrComputer as _};
use tec_e2e::wire::provider;
use tec_registry::testing::{Access, Content, RealRegistry, Signer, claim, gzip};
use tec_tpm::compute::testing::debian_chain;
use tec_tpm::compute::{ChainComputer, MemoryImage, SecureBoot};
use tec_tpm::output;

use self::world::World;

const REPOSITORY: &str = "team/os";

fn expected(image: &MemoryImage) -> ExpectedPcrs {
    ChainComputer::new(SecureBoot::On).compute(image).unwrap()
}

/// A layer with an image's boot files.
fn content(image: &MemoryImage, labels: &Value) -> (Content, String) {
    let paths = image.files("").unwrap();
    let files: Vec<(&str, &[u8])> =
        paths.iter().map(|path| (path.as_str(), image.content(path).unwrap())).collect();
    let mut content = Content::default();
    let digest = content.image(labels, &[gzip(&files).unwrap()]);
    (content, digest)
}

fn reference(registry: &str, digest: &str) -> String {
    format!("{registry}/{REPOSITORY}@{digest}")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_in_the_registry_becomes_reference_values() {
    let registry = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    // The label is enough: the layer contains something else.
    let labeled = expected(&debian_chain("2.06"));
    let label = json!({ "org.coreos.pcrs": output::label(&labeled).unwrap() });
    let (content, digest) = content(&debian_chain("2.12"), &label);
    registry.push(REPOSITORY, &content).await.unwrap();
    let world = World::start(&[registry.host()], &[]).await;
    world.approve("labeled", &reference(registry.host(), &digest)).await;
    world.says("labeled", "ImageCommitted", &[]).await;
    world.releases(&labeled).await;
    assert!(world.jobs().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_told_releases_nothing_and_is_read_later() {
    let registry = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let down = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let (gone, host) = (down.host().to_owned(), registry.host().to_owned());
    drop(down);
    let image = debian_chain("2.12");
    let (content, digest) = content(&image, &json!({}));
    let world = World::start(&[&host, &gone], &[]).await;
    let nowhere = reference(&gone, &format!("sha256:{}", "ab".repeat(32)));
    world.approve("absent", &reference(&host, &digest)).await;
    world.says("absent", "Computing", &["TEC-I414"]).await;
    let job = world.job().await;
    world.approve("nowhere", &nowhere).await;
    world.says("nowhere", "Computing", &["TEC-I503"]).await;

    let output = world.run(&job).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("TEC-I414"), "{}", stderr(&output));
    world.report_failure(&job, &stderr(&output)).await;
    world.says("absent", "ComputationFailed", &["TEC-I414"]).await;
    assert!(world.values().await.is_empty());

    // As soon as it exists, an attempt that is still running uses it.
    registry.push(REPOSITORY, &content).await.unwrap();
    let output = world.run(&job).await;
    assert!(output.status.success(), "{}", stderr(&output));
    world.says("absent", "ImageCommitted", &[]).await;
    world.releases(&expected(&image)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_must_be_signed_where_the_cluster_demands_it() {
    let registry = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let image = debian_chain("2.12");
    // A label and another object with the same digest are no way around.
    let label = json!({ "org.coreos.pcrs": output::label(&expected(&image)).unwrap() });
    let (mut content, digest) = content(&image, &label);
    registry.push(REPOSITORY, &content).await.unwrap();
    let settings = json!({ "imageSignatures": { "configMap": "signers" } });
    let world = World::with_settings(&[registry.host()], &[], &settings).await;
    let (own, other) = (Signer::new(1).unwrap(), Signer::new(2).unwrap());
    let signers: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": "signers" }, "data": { "cosign.pub": own.public_pem().unwrap() },
    }))
    .unwrap();
    world.bench.create(&signers).await.unwrap();
    world.approve("signed", &reference(registry.host(), &digest)).await;
    world.says("signed", "Computing", &["must be signed"]).await;
    let job = world.job().await;

    for signer in [None, Some(&other)] {
        if let Some(signer) = signer {
            content.signatures(&digest, &[signer.sign(&claim(&digest))]);
            registry.push(REPOSITORY, &content).await.unwrap();
        }
        let refused = world.run(&job).await;
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains("TEC-I426"), "{}", stderr(&refused));
        assert!(world.values().await.is_empty());
    }
    content.signatures(&digest, &[other.sign(&claim(&digest)), own.sign(&claim(&digest))]);
    registry.push(REPOSITORY, &content).await.unwrap();
    let output = world.run(&job).await;
    assert!(output.status.success(), "{}", stderr(&output));
    world.says("signed", "ImageCommitted", &[]).await;
    world.releases(&expected(&image)).await;
    let again = "with-the-same-digest";
    world.approve(again, &reference(registry.host(), &digest)).await;
    world.says(again, "Computing", &["must be signed"]).await;
}
