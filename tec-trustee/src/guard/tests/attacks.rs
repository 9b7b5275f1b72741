//! Attacks by the owner of a registered machine, or by anyone with a connection. The double behind the guard
//! would release everything.

use super::*;
use crate::testing::disguised;

fn with_bearer(request: Request<Body>, token: &str) -> Request<Body> {
    with(request, "authorization", &format!("Bearer {token}"))
}

impl World {
    /// The request gets no further than the guard.
    async fn is_stopped(&self, request: Request<Body>) {
        let before = self.lax.paths().len();
        let what = format!("{request:?}");
        let (status, _, body) = self.ask(request).await;
        assert!(status.is_client_error(), "{what}: {status}");
        assert!(!error(&body).kind.is_empty(), "{what}");
        assert_eq!(self.lax.paths().len(), before, "{what}");
    }
}

#[tokio::test]
async fn a_session_cannot_carry_a_forged_token_past_the_guard() {
    let world = World::new().await;
    let (id, ..) = world.attest(1).await;
    let forged = "eyJhbGciOiJFUzI1NiJ9.e30.AA";
    world.is_stopped(with_bearer(with_cookie(get(1), &id), forged)).await;
    // Nor by having the cookie removed on the way.
    let request = with_bearer(with_cookie(get(1), &id), forged);
    world.is_stopped(with(request, "connection", "cookie")).await;
    let request = with_bearer(with_bearer(get(1), "token 1"), forged);
    world.is_stopped(request).await;
    // The session's own token in addition to its cookie is consistent.
    let request = with_bearer(with_cookie(get(1), &id), "token 1");
    assert_eq!(world.ask(request).await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_token_and_the_cookie_of_another_machine_are_not_one_session() {
    let world = World::new().await;
    let (one, ..) = world.attest(1).await;
    let (two, ..) = world.attest(2).await;
    for (cookie, token) in [(&one, "token 2"), (&two, "token 1")] {
        for path in [get(1), get(2)] {
            let request = with_bearer(with_cookie(path, cookie), token);
            world.is_stopped(request).await;
        }
    }
    let encoded = format!("kbs%2Dsession-id={two}; kbs-session-id={one}");
    world.is_stopped(with(get(1), "cookie", &encoded)).await;
}

/// A machine that talks to the wrong server signs that server's nonce. An attacker with a session for that
/// nonce, and a token for a key of their own, could impersonate that machine.
#[tokio::test]
async fn evidence_of_another_machine_does_not_change_whose_session_it_is() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    for (key, seed) in [(1, 9), (2, 10)] {
        let sent = evidence_with(&nonce, key, seed).await;
        let (status, ..) = world.ask(with_cookie(post("attest", &sent), &id)).await;
        assert_eq!(status, StatusCode::OK);
    }
    assert_eq!(world.get(1, &id).await.0, StatusCode::OK);
    let before = world.lax.paths().len();
    let (status, _, body) = world.get(2, &id).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::ReleaseDenied));
    assert_eq!(world.lax.paths().len(), before);
}

#[tokio::test]
async fn evidence_replayed_in_another_session_is_stopped() {
    let world = World::new().await;
    let (_, nonce) = world.auth().await;
    let sent = evidence(&nonce, 1).await;
    let (other, _) = world.auth().await;
    let request = with_cookie(post("attest", &sent), &other);
    let (status, _, body) = world.ask(request).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(error(&body).code(), Some(Code::QuoteInvalid));
    world.is_stopped(with_cookie(get(1), &other)).await;
}

/// An id that someone else chose is not a session: nothing was begun under it.
#[tokio::test]
async fn a_session_that_the_broker_did_not_open_is_none() {
    let world = World::new().await;
    let chosen = "ffffffffffffffffffffffffffffffff";
    let request = with_cookie(post("auth", AUTH), chosen);
    let (_, headers, body) = world.ask(request).await;
    assert!(!headers["set-cookie"].to_str().unwrap().contains(chosen));
    let body: Value = serde_json::from_slice(&body).unwrap();
    let sent = evidence(body["nonce"].as_str().unwrap(), 1).await;
    world.is_stopped(with_cookie(post("attest", &sent), chosen)).await;
}

#[tokio::test]
async fn a_member_that_occurs_twice_is_stopped_however_deep() {
    let world = World::new().await;
    let spoils: [(&str, &str); 5] = [
        ("\"init-data\"", "\"init-data\": null, \"init-data\""),
        ("\"nonce\"", "\"nonce\": \"x\", \"nonce\""),
        ("\"crv\"", "\"crv\": \"P-521\", \"crv\""),
        ("\"key\"", "\"key\": 2, \"key\""),
        ("\"bound\"", "\"bou\\u006ed\": \"00\", \"bound\""),
    ];
    for (member, twice) in spoils {
        let (id, nonce) = world.auth().await;
        let sent = evidence(&nonce, 1).await;
        assert!(sent.contains(member), "{sent}");
        let sent = sent.replacen(member, twice, 1);
        world.is_stopped(with_cookie(post("attest", &sent), &id)).await;
    }
    let twice = AUTH.replacen("\"tee\"", "\"tee\":\"sample\",\"tee\"", 1);
    world.is_stopped(post("auth", &twice)).await;
}

#[tokio::test]
async fn what_hands_something_out_is_never_passed_unseen() {
    let world = World::new().await;
    for method in ["GET", "HEAD", "PUT", "PATCH", "OPTIONS", "get"] {
        for path in [
            "/kbs/v0/resource/a/b/c",
            "/kbs/v0/resource",
            "/kbs/v0/pkcs11/wrap-key",
            "/kbs/v0/nebula-ca/credential",
        ] {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(Body::empty()).unwrap();
            world.is_stopped(with_bearer(request, "x.y.z")).await;
        }
    }
}

#[tokio::test]
async fn one_address_cannot_take_all_sessions() {
    use axum::extract::ConnectInfo;
    let world = World::with(|config| config.with_limits(8, 1 << 20, Duration::from_secs(9))).await;
    let from = |last: u8| {
        let mut request = post("auth", AUTH);
        let address = SocketAddr::from(([192, 0, 2, last], 40_000));
        request.extensions_mut().insert(ConnectInfo(address));
        request
    };
    for allowed in [true, true, false, false] {
        let (status, ..) = world.ask(from(1)).await;
        assert_eq!(status == StatusCode::OK, allowed, "{status}");
    }
    assert_eq!(world.ask(from(2)).await.0, StatusCode::OK);
    assert_eq!(world.lax.paths().len(), 3);
}

#[tokio::test]
async fn no_spelling_of_a_path_gets_past_the_look_at_it() {
    let world = World::new().await;
    let (id, ..) = world.attest(1).await;
    let (own, other) = (sample::machine_id(1), sample::machine_id(2));
    // Longer than a path may be here; the Trustee has no such limit.
    let long = format!("a/b/{}", "x".repeat(800));
    let more = [long, "a/b".to_owned(), String::new()];
    for path in disguised(own, other).into_iter().chain(more) {
        let uri = format!("/kbs/v0/resource/{path}");
        let request = Request::get(&uri).body(Body::empty()).unwrap();
        world.is_stopped(with_cookie(request, &id)).await;
    }
    for verb in ["Resource", "RESOURCE", "resource%2f", "resource;", "../v0/resource"] {
        let uri = format!("/kbs/v0/{verb}/default/{other}/root");
        let request = Request::get(uri).body(Body::empty()).unwrap();
        world.is_stopped(with_cookie(request, &id)).await;
    }
    assert_eq!(world.audit(AuditAction::KeyReleased), 0);
    let absolute = format!("http://elsewhere/kbs/v0/resource/default/{own}/root?a=b#c");
    let request = Request::get(absolute).body(Body::empty()).unwrap();
    assert_eq!(
        world.ask(with_cookie(request, &id)).await.0,
        StatusCode::OK,
        "the own path, at whatever host"
    );
}

#[tokio::test]
async fn a_session_brings_three_pieces_of_evidence_at_most() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    for key in [3, 3, 3] {
        let sent = evidence(&nonce, key).await;
        world.is_stopped(with_cookie(post("attest", &sent), &id)).await;
    }
    let sent = evidence(&nonce, 1).await;
    world.is_stopped(with_cookie(post("attest", &sent), &id)).await;
}

#[tokio::test]
async fn a_token_in_another_place_than_the_header_is_none() {
    let world = World::new().await;
    world.attest(1).await;
    for value in [
        "token 1",
        "Bearer",
        "Bearer ",
        "Bearer\ttoken 1",
        "Basic token 1",
        "Bearer token 1, Bearer token 1",
        "Bearer \"token 1\"",
    ] {
        world.is_stopped(with(get(1), "authorization", value)).await;
    }
    for name in ["x-authorization", "proxy-authorization", "kbs-session-id"] {
        world.is_stopped(with(get(1), name, "Bearer token 1")).await;
    }
    let uri = format!("/kbs/v0/resource/{}?token=token%201", sample::secret_path(1));
    world.is_stopped(Request::get(uri).body(Body::empty()).unwrap()).await;
}

#[tokio::test]
async fn the_nonce_of_a_session_that_ended_is_worth_nothing() {
    let world = World::new().await;
    let (id, nonce) = world.auth().await;
    let sent = evidence(&nonce, 1).await;
    world.clock.advance_seconds(300);
    world.is_stopped(with_cookie(post("attest", &sent), &id)).await;
    let (new, _) = world.auth().await;
    world.is_stopped(with_cookie(post("attest", &sent), &new)).await;
}
