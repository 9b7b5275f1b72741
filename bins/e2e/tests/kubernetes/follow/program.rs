//! The program `operator` and a real registry.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, cluster, eventually};
use tec_e2e::wire::provider;
use tec_k8s::api::{ApprovedImage, FollowedImage};
use tec_registry::testing::{Access, Content, RealRegistry, gzip};

use super::world::followed;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_follows_a_tag_in_a_real_registry() {
    let registry = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let bench = Bench::new().await.unwrap();
    bench.create(&cluster("cluster")).await.unwrap();
    let mut content = Content::default();
    let mut image = |number: u64| {
        let label = serde_json::to_string(&sample::image(number).expected).unwrap();
        let layer = gzip(&[("etc/motd", label.as_bytes())]).unwrap();
        content.image(&json!({"org.coreos.pcrs": label}), &[layer])
    };
    let (one, two) = (image(1), image(2));
    registry.push("team/os", &content).await.unwrap();
    registry.tag("team/os", &content, &one, "44").await.unwrap();
    let flags = ["--dangerous-plain-registry", registry.host()];
    let _operator = bench.start_program("one", &flags).unwrap();
    let reference = format!("{}/team/os:44", registry.host());
    let spec = json!({"reference": reference, "dangerouslyUnsigned": true});
    bench.create(&followed(&spec)).await.unwrap();
    let images = bench.objects::<ApprovedImage>().unwrap();
    let approved = async |digest: &str| {
        let short = &digest.strip_prefix("sha256:").unwrap()[..16];
        eventually(&format!("{digest} is approved"), async || {
            let image = images.get_opt(&format!("os-{short}")).await?;
            let status = image.and_then(|image| image.status).unwrap_or_default();
            Ok(status.conditions.iter().any(|c| c.type_ == "Committed" && c.status == "True"))
        })
        .await
        .unwrap();
    };
    approved(&one).await;
    registry.tag("team/os", &content, &two, "44").await.unwrap();
    // An admin's change makes the operator look immediately.
    let tags = bench.objects::<FollowedImage>().unwrap();
    let patch = Patch::Merge(json!({"spec": {"keep": 3}}));
    tags.patch("os", &PatchParams::default(), &patch).await.unwrap();
    approved(&two).await;
}
