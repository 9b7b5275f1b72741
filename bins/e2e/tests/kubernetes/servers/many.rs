//! Many replicas and many strangers.

use reqwest::StatusCode;
use serde_json::json;
use tec_core::testing::sample;
use tec_e2e::kube::Server;
use tec_k8s::render::Component;

use super::world::{CONFIG, World, assert_has_line, id_of, pin};

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_serves_any_node_at_once() {
    let world = World::new("replicas").await;
    world.cluster("c", &json!({ "publicTrusteeAddr": "kbs.example" })).await;
    let first = world.server(Component::RegisterServer, &[]).await;
    let second = world.server(Component::RegisterServer, &[]).await;
    let keys = [
        world.server(Component::AttestationKeyRegister, &[]).await,
        world.server(Component::AttestationKeyRegister, &[]).await,
    ];
    let register = async |server: &Server| id_of(&pin(&world.until(server, StatusCode::OK).await));
    // No replica of one server can know yet what a replica of the other has accepted.
    for number in 0..8 {
        let server = if number % 2 == 0 { &first } else { &second };
        let body = json!({
            "public_key": sample::public_key(number).to_pem(), "uuid": register(server).await,
        });
        let keys = &keys[usize::from(number / 2 % 2 == 0)];
        assert_eq!(world.put(keys, &body).await.0, StatusCode::CREATED);
    }
    // A replica that stops takes nothing with it.
    drop(first);
    register(&second).await;
    assert_eq!(world.machines().await.len(), 9);
    assert_eq!(world.keys().await.len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_cannot_fill_the_cluster() {
    let world = World::new("limits").await;
    world
        .cluster(
            "c",
            &json!({
                "publicTrusteeAddr": "kbs.example", "registration": { "maxUnclaimed": 3 },
            }),
        )
        .await;
    let server = world.server(Component::RegisterServer, &[]).await;
    world.until(&server, StatusCode::OK).await;
    let calls = (0..20).map(|_| world.get(&server, CONFIG));
    let answers = futures::future::join_all(calls).await;
    let refused = answers.iter().filter(|(status, _)| *status == StatusCode::TOO_MANY_REQUESTS);
    // One place is left for another network, and none for this one.
    assert_eq!(refused.count(), 19, "{answers:?}");
    assert_eq!(world.machines().await.len(), 2);
    let metrics = world.metrics(&server).await;
    assert_has_line(&metrics, "tec_register_requests_total{code=\"TEC-R430\"} 19");

    let id = world.machines().await[0].spec.id.clone();
    let keys = world.server(Component::AttestationKeyRegister, &[]).await;
    for number in 1..=6 {
        let key = sample::public_key(number).to_pem();
        let (status, _) = world.put(&keys, &json!({ "public_key": key, "uuid": id })).await;
        let expected =
            if number <= 2 { StatusCode::CREATED } else { StatusCode::TOO_MANY_REQUESTS };
        assert_eq!(status, expected, "{number}");
    }
    let metrics = world.metrics(&keys).await;
    for line in [
        "tec_ak_register_requests_total{code=\"ok\"} 2",
        "tec_ak_register_requests_total{code=\"TEC-R430\"} 4",
        "tec_ak_register_request_duration_seconds_count 6",
    ] {
        assert_has_line(&metrics, line);
    }
    assert!(!metrics.contains(&id));
}
