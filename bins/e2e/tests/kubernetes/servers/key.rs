//! Keys.

use kube::ResourceExt as _;
use reqwest::StatusCode;
use serde_json::json;
use tec_core::testing::sample;
use tec_k8s::render::Component;

use super::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_taken_once_and_only_for_machines_that_wait() {
    let world = World::new("keys").await;
    world.cluster("c", &json!({ "publicTrusteeAddr": "kbs.example" })).await;
    let (id, other) = (world.machine(1).await, world.machine(2).await);
    let server = world.server(Component::AttestationKeyRegister, &[]).await;
    let key = |number| sample::public_key(number).to_pem();

    let body = json!({ "public_key": key(1), "uuid": id });
    let (status, answer) = world.put(&server, &body).await;
    assert_eq!((status, answer), (StatusCode::CREATED, json!({ "status": "success" })));
    for uuid in [&id, &other] {
        let (status, answer) =
            world.put(&server, &json!({ "public_key": key(1), "uuid": uuid })).await;
        assert_eq!((status, &answer["status"]), (StatusCode::CONFLICT, &json!("error")));
    }
    let (_, answer) = world.put(&server, &body).await;
    assert_eq!(answer["message"], "Public key already registered");
    let alias = json!({ "attestation_key": key(2), "uuid": other });
    assert_eq!(world.put(&server, &alias).await.0, StatusCode::CREATED);

    // Nothing is kept that can never be matched.
    let unknown = sample::machine_id(9).to_string();
    for (body, expected) in [
        (json!({ "public_key": key(3) }), 404),
        (json!({ "public_key": key(3), "uuid": unknown }), 404),
        (json!({ "public_key": key(3), "uuid": "x" }), 400),
        (json!({ "public_key": "no key", "uuid": id }), 422),
        (json!({ "uuid": id }), 400),
    ] {
        let (status, answer) = world.put(&server, &body).await;
        assert_eq!((status.as_u16(), &answer["status"]), (expected, &json!("error")), "{body}");
    }
    let keys = world.keys().await;
    assert_eq!(keys.len(), 2);
    for object in keys {
        assert!(object.name_any().starts_with("ak-"));
        assert_eq!(object.owner_references().len(), 1);
        assert!(object.public().is_ok());
    }
}

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
