//! Which CAs nodes should trust, and reports about which CAs they trust.

use super::*;
use crate::testing::FakeAuthorities;

async fn world() -> (World, Arc<FakeAuthorities>) {
    let mut world = World::new().await;
    let authorities = Arc::new(FakeAuthorities::default());
    let backend = LiveBackend::new(ports(&world.registry, &world.clock), &intent());
    let config = config(Arc::new(backend), &world.clock);
    world.kbs = Kbs::new(config.with_authorities(Arc::clone(&authorities) as _));
    (world, authorities)
}

fn report(body: &str) -> Ask {
    Ask { method: "PUT", ..post("authorities", body) }
}

#[tokio::test]
async fn a_machine_is_told_which_cas_to_trust_and_reports_what_it_trusts() {
    let (world, authorities) = world().await;
    let told = get("authorities").of(&world.kbs).await;
    assert_eq!(told.json(), json!({"certificates": "PEM"}));
    let cookie = attest(&world).await;
    let digest = tec_core::digest::Sha256Digest::of("a CA");
    let body = json!({"sha256": [digest]}).to_string();
    for _ in 0..2 {
        let answer = report(&body).cookie(&cookie).of(&world.kbs).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    assert_eq!(authorities.reports(), [(sample::machine_id(1), [digest].into())]);
}

#[tokio::test]
async fn who_did_not_attest_well_reports_nothing() {
    let (world, authorities) = world().await;
    let body = json!({"sha256": []}).to_string();
    report(&body).of(&world.kbs).await.is_error(401, &ErrorKind::TokenNotFound);
    let (refused, _) = attest_with(&world, &FakeAttester::new(1, 2)).await;
    let answer = report(&body).cookie(&refused).of(&world.kbs).await;
    assert_eq!(answer.error().code(), Some(Code::PcrMismatch));
    let cookie = attest(&world).await;
    let many: Vec<_> = (0..9u8).map(|n| tec_core::digest::Sha256Digest::of([n])).collect();
    for bad in [json!({}), json!({"sha256": ["x"]}), json!({"sha256": many})] {
        let answer = report(&bad.to_string()).cookie(&cookie).of(&world.kbs).await;
        answer.is_error(401, &ErrorKind::SerdeError);
    }
    assert_eq!(authorities.reports(), []);
}

#[tokio::test]
async fn a_server_without_a_ca_of_its_own_has_no_such_path() {
    let world = World::new().await;
    get("authorities").of(&world.kbs).await.is_error(404, &ErrorKind::PluginNotFound);
}
