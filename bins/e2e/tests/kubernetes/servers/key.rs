//! Keys.

use reqwest::StatusCode;
use serde_json::json;
use tec_core::testing::sample;
use tec_k8s::render::Component;

use super::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn of_equal_keys_at_the_same_moment_one_is_kept() {
    let world = World::new("race").await;
    world.cluster("c", &json!({ "publicTrusteeAddr": "kbs.example" })).await;
    let id = world.machine(1).await;
    // Two replicas that know nothing of each other.
    let one = world.server(Component::AttestationKeyRegister, &[]).await;
    let two = world.server(Component::AttestationKeyRegister, &[]).await;
    let body = json!({ "public_key": sample::public_key(1).to_pem(), "uuid": id });
    let calls = (0..16).map(|number| world.put(if number % 2 == 0 { &one } else { &two }, &body));
    let answers = futures::future::join_all(calls).await;
    let created = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
    let conflicts = answers.iter().filter(|(status, _)| *status == StatusCode::CONFLICT).count();
    assert_eq!((created, conflicts), (1, 15), "{answers:?}");
    assert_eq!(world.keys().await.len(), 1);
}
