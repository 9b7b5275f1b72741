//! What the guard answers itself: CAs, and reports about which CAs machines trust.

use tec_core::digest::Sha256Digest;

use super::*;
use crate::testing::FakeAuthorities;

fn report(body: &Value) -> Request<Body> {
    let request = Request::put("/kbs/v0/authorities");
    request.body(Body::from(body.to_string())).unwrap()
}

fn question() -> Request<Body> {
    Request::get("/kbs/v0/authorities").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn the_guard_tells_cas_and_records_reports_and_the_trustee_hears_of_neither() {
    let authorities = Arc::new(FakeAuthorities::default());
    let known = Arc::clone(&authorities);
    let world = World::with(|config| config.with_authorities(known as _)).await;
    let (status, _, body) = world.ask(question()).await;
    assert_eq!((status, body.as_slice()), (StatusCode::OK, &br#"{"certificates":"PEM"}"#[..]));

    let digest = Sha256Digest::of("a CA");
    let body = json!({"sha256": [digest]});
    assert_eq!(world.ask(report(&body)).await.0, StatusCode::UNAUTHORIZED);
    let (begun, _) = world.auth().await;
    let early = with_cookie(report(&body), &begun);
    assert_eq!(world.ask(early).await.0, StatusCode::UNAUTHORIZED, "nothing is attested yet");
    assert_eq!(authorities.reports(), []);

    let (cookie, ..) = world.attest(2).await;
    assert_eq!(world.ask(with_cookie(report(&body), &cookie)).await.0, StatusCode::OK);
    assert_eq!(authorities.reports(), [(sample::machine_id(2), [digest].into())]);
    assert!(!world.lax.paths().iter().any(|path| path.contains("authorities")));
}

#[tokio::test]
async fn a_guard_without_a_ca_of_its_own_has_no_such_path() {
    let world = World::new().await;
    assert_eq!(world.ask(question()).await.0, StatusCode::NOT_FOUND);
    assert!(world.lax.paths().is_empty());
}
