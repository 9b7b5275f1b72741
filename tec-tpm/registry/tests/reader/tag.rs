//! Tags, and where they point to.

use serde_json::json;
use tec_core::code::Code;
use tec_registry::testing::{Access, Content, INDEX, RealRegistry, USER, gzip};
use tec_registry::{Credentials, RegistryError, RegistryOptions};

use crate::fake::{Behaviour, Fake};
use crate::provider;
use crate::real::reader;

fn image(content: &mut Content, text: &str) -> String {
    content.image(&json!({}), &[gzip(&[("etc/motd", text.as_bytes())]).unwrap()])
}

async fn resolve(hosts: &[&str], reference: &str) -> Result<String, RegistryError> {
    let registry = reader(hosts, RegistryOptions::default());
    registry.resolve(&reference.parse().unwrap()).await.map(|image| image.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_moves_is_followed_to_images_and_to_indexes() {
    let server = RealRegistry::start(Access::Everybody, &provider()).await.unwrap();
    let mut content = Content::default();
    let (one, two) = (image(&mut content, "one"), image(&mut content, "two"));
    let listed = json!({
        "mediaType": tec_registry::testing::MANIFEST, "digest": two,
        "size": content.manifests[&two].1.len(),
        "platform": {"os": "linux", "architecture": "amd64"},
    });
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [listed]});
    let index = content.manifest(INDEX, &index);
    server.push("team/os", &content).await.unwrap();
    let reference = format!("{}/team/os:44", server.host());
    for digest in [&one, &index, &two] {
        server.tag("team/os", &content, digest, "44").await.unwrap();
        let expected = format!("{}/team/os@{digest}", server.host());
        assert_eq!(resolve(&[server.host()], &reference).await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_is_not_there_and_one_that_is_private_are_told_apart() {
    let server = RealRegistry::start(Access::User, &provider()).await.unwrap();
    let mut content = Content::default();
    let digest = image(&mut content, "one");
    server.push("os", &content).await.unwrap();
    server.tag("os", &content, &digest, "44").await.unwrap();
    let hosts = [server.host()];
    let private = resolve(&hosts, &format!("{}/os:44", server.host())).await.unwrap_err();
    assert_eq!(private.code(), Code::ImageDenied);
    let auths = json!({"auths": {server.host(): {"username": USER.0, "password": USER.1}}});
    let options = RegistryOptions {
        credentials: Credentials::parse(auths.to_string().as_bytes()).unwrap(),
        ..RegistryOptions::default()
    };
    let registry = reader(&hosts, options);
    let reference = |tag: &str| format!("{}/os:{tag}", server.host()).parse().unwrap();
    let found = registry.resolve(&reference("44")).await.unwrap();
    assert_eq!(format!("sha256:{}", found.digest()), digest);
    let absent = registry.resolve(&reference("45")).await.unwrap_err();
    assert_eq!(absent.code(), Code::ImageAbsent);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_tells_when_it_was_built_if_its_configuration_does() {
    let mut content = Content::default();
    let built_at = async |created: serde_json::Value, content: &mut Content| {
        let config = json!({"architecture": "amd64", "os": "linux", "created": created});
        let config = content.blob(config.to_string().as_bytes());
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": []});
        let digest = content.manifest(tec_registry::testing::MANIFEST, &manifest);
        let fake = Fake::start(content, Behaviour::default()).await;
        let registry = reader(&[&fake.host], RegistryOptions::default());
        let reference = format!("{}/os@{digest}", fake.host).parse().unwrap();
        registry.find(&reference).await.unwrap().built_at().map(|time| time.to_string())
    };
    let precise = built_at("2026-11-21T09:00:00.123456789Z".into(), &mut content).await;
    assert_eq!(precise.as_deref(), Some("2026-11-21T09:00:00Z"));
    for none in [json!(null), json!("yesterday")] {
        assert_eq!(built_at(none, &mut content).await, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_is_asked_for_a_tag_before_the_registry() {
    let mut content = Content::default();
    let digest = image(&mut content, "one");
    let stored = content.manifests[&digest].clone();
    content.manifests.insert("44".to_owned(), stored);
    let mirror = Fake::start(&content, Behaviour::default()).await;
    let options = RegistryOptions {
        mirrors: vec![format!("registry.invalid={}/copies", mirror.host).parse().unwrap()],
        ..RegistryOptions::default()
    };
    let registry = reader(&[&mirror.host], options);
    let found = registry.resolve(&"registry.invalid/os:44".parse().unwrap()).await.unwrap();
    assert_eq!(found.to_string(), format!("registry.invalid/os@{digest}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_points_to_no_image_is_refused() {
    let mut content = Content::default();
    let garbage = (tec_registry::testing::MANIFEST.to_owned(), b"hello".to_vec());
    content.manifests.insert("44".to_owned(), garbage);
    let fake = Fake::start(&content, Behaviour::default()).await;
    let refused = resolve(&[&fake.host], &format!("{}/os:44", fake.host)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ImageUnreadable);
}
