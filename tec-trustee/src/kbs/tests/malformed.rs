//! Every malformed request of docs/reference/trustee.md, with its status and its exact body.

use super::*;

const ERRORS: &str = "https://github.com/confidential-containers/kbs/errors";

/// A request, and the expected answer.
struct Case {
    ask: Ask,
    status: u16,
    kind: &'static str,
    detail: &'static str,
}

fn case(ask: Ask, status: u16, kind: &'static str, detail: &'static str) -> Case {
    Case { ask, status, kind, detail }
}

impl Case {
    async fn hold(self, kbs: &Kbs) {
        let what = format!("{} {} {}", self.ask.method, self.ask.path, self.detail);
        let answer = self.ask.of(kbs).await;
        let body = format!(r#"{{"type":"{ERRORS}/{}","detail":"{}"}}"#, self.kind, self.detail);
        let given = String::from_utf8(answer.body).unwrap();
        assert_eq!(given, body, "{what}");
        assert_eq!(answer.status.as_u16(), self.status, "{what}");
        assert_eq!((answer.content_type, answer.cookie), (None, None), "{what}");
    }
}

const ATTESTATION: &str = "AttestationError";
const MALFORMED: &str = "TEC-A400 the evidence is malformed";
const VERSION: &str = "KBS Client Protocol Version Mismatch: expect =0.4.0";
const SORT: &str = "evidence of this sort is not accepted";

#[tokio::test]
async fn auth_is_refused_to_the_byte() {
    let kbs = World::new().await.kbs;
    for (body, detail) in [
        ("", MALFORMED),
        ("{", MALFORMED),
        ("[]", MALFORMED),
        ("null", MALFORMED),
        ("\u{feff}{}", MALFORMED),
        (r#"{"version":"0.4.0","tee":"tpm"}"#, MALFORMED),
        (r#"{"version":"0.4.0","extra-params":{}}"#, MALFORMED),
        (r#"{"tee":"tpm","extra-params":{}}"#, MALFORMED),
        (r#"{"version":4,"tee":"tpm","extra-params":{}}"#, MALFORMED),
        (r#"{"version":"0.4.0","tee":["tpm"],"extra-params":{}}"#, MALFORMED),
        (r#"{"version":"0.4.0","tee":"tpm","tee":"tpm","extra-params":{}}"#, MALFORMED),
        (r#"{"version":"0.4.1","tee":"tpm","extra-params":{}}"#, VERSION),
        (r#"{"version":"0.3.0","tee":"tpm","extra-params":{}}"#, VERSION),
        (r#"{"version":"0.1.0","tee":"tpm","extra-params":""}"#, VERSION),
        (r#"{"version":"","tee":"tpm","extra-params":{}}"#, VERSION),
        (r#"{"version":"0.4.0","tee":"wizard","extra-params":{}}"#, SORT),
        (r#"{"version":"0.4.0","tee":"TPM","extra-params":{}}"#, SORT),
        (r#"{"version":"0.4.0","tee":"sample","extra-params":{}}"#, SORT),
        (r#"{"version":"0.4.0","tee":"az-snp-vtpm","extra-params":{}}"#, SORT),
    ] {
        case(post("auth", body), 401, ATTESTATION, detail).hold(&kbs).await;
    }
}

#[tokio::test]
async fn attest_without_a_session_is_refused_to_the_byte() {
    let world = World::new().await;
    let kbs = &world.kbs;
    let unknown = "00000000000040008000000000000000";
    for (cookie, detail) in [
        (None, "cookie not found"),
        (Some(""), "cookie not found"),
        (Some("0123"), "cookie not found"),
        (Some("ZZ000000000040008000000000000000"), "cookie not found"),
        (Some(unknown), "session not found"),
    ] {
        for body in ["", "{}", "garbage"] {
            let mut ask = post("attest", body);
            ask.cookie = cookie.map(str::to_owned);
            case(ask, 401, ATTESTATION, detail).hold(kbs).await;
        }
        // However large it is, up to the limit for any body.
        let mut ask = post("attest", vec![b' '; 1 << 20]);
        ask.cookie = cookie.map(str::to_owned);
        case(ask, 401, ATTESTATION, detail).hold(kbs).await;
    }
    let (cookie, _) = auth(kbs).await;
    world.clock.advance_seconds(300);
    let expired = post("attest", "{}").cookie(&cookie);
    case(expired, 401, ATTESTATION, "session not found").hold(kbs).await;
}

#[tokio::test]
async fn bad_evidence_is_refused_with_code_and_attempt() {
    let world = World::new().await;
    for (body, code) in [
        ("", Code::EvidenceMalformed),
        ("{}", Code::EvidenceMalformed),
        (
            r#"{"init-data":null,"init-data":null,"runtime-data":{"nonce":"","tee-pubkey":{}},"tee-evidence":{"primary_evidence":{},"additional_evidence":""}}"#,
            Code::EvidenceMalformed,
        ),
        (
            r#"{"runtime-data":{"nonce":"old","tee-pubkey":{}},"tee-evidence":{"primary_evidence":{},"additional_evidence":""}}"#,
            Code::AkNotBound,
        ),
    ] {
        let (cookie, _) = auth(&world.kbs).await;
        let answer = post("attest", body).cookie(&cookie).of(&world.kbs).await;
        let attempt = answer.error().attempt().unwrap();
        let expected = format!(
            r#"{{"type":"{ERRORS}/AttestationError","detail":"{code} {} (attempt {attempt})"}}"#,
            code.title()
        );
        assert_eq!(String::from_utf8(answer.body).unwrap(), expected);
        assert_eq!(answer.status.as_u16(), 401);
    }
}

#[tokio::test]
async fn resources_are_refused_to_the_byte() {
    let world = World::new().await;
    let kbs = &world.kbs;
    let (fresh, _) = auth(kbs).await;
    let cookie = attest(&world).await;
    let not_found = "attestation token not found";
    for ask in [
        get(&own_path()),
        get(&own_path()).cookie(&fresh),
        get(&own_path()).cookie("garbage"),
        get("resource"),
    ] {
        case(ask, 401, "TokenNotFound", not_found).hold(kbs).await;
    }
    for token in ["", "garbage", "a.b.c", "eyJhbGciOiJub25lIn0.e30."] {
        let ask = get(&own_path()).bearer(token);
        let detail = "the token is not accepted";
        case(ask, 401, "TokenVerifierError", detail).hold(kbs).await;
    }
    for path in [
        "resource",
        "resource/",
        "resource/a",
        "resource/a/b",
        "resource/a/b/c/d",
        "resource/a//c",
        "resource/a/../c",
        "resource/.a/b/c",
        "resource/a/%2e/c",
        "resource///a/b/c",
    ] {
        let detail = "a resource path must have three segments";
        case(get(path).cookie(&cookie), 401, "PluginInternalError", detail).hold(kbs).await;
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused_to_the_byte() {
    let kbs = World::new().await.kbs;
    let ask =
        |method: &'static str, path: &str| Ask { method, path: path.to_owned(), ..post("", "") };
    for (method, path) in [
        ("GET", "/kbs/v0/auth"),
        ("PUT", "/kbs/v0/auth"),
        ("DELETE", "/kbs/v0/attest"),
        ("POST", "/kbs/v0/auth/x"),
        ("POST", "/kbs/v0/attest//"),
        ("GET", "/kbs/v0/pkcs11/wrap-key"),
        ("GET", "/kbs/v0/metrics"),
        ("GET", "/kbs/v0//auth"),
        ("GET", "/kbs/v0/%61uth"),
        ("GET", "/kbs/v0/"),
        ("GET", "/kbs/v0/attestation-policy"),
        ("DELETE", "/kbs/v0/reference-value/x"),
        ("PUT", "/kbs/v0/resource-policy"),
    ] {
        let detail = "there is no such plugin";
        case(ask(method, path), 404, "PluginNotFound", detail).hold(&kbs).await;
    }
    // Recorded: requests that never reach a Trustee's API are refused without JSON.
    for (method, path, status) in [
        ("GET", "/", 404),
        ("POST", "/kbs/v0", 404),
        ("POST", "/kbs/v1/auth", 404),
        ("POST", "/kbs/v0auth", 404),
        ("POST", "//kbs/v0/auth", 404),
        ("POST", "/healthz", 404),
        ("DELETE", "/metrics", 404),
        ("PATCH", "/kbs/v0/auth", 405),
        ("HEAD", "/kbs/v0/resource/a/b/c", 405),
    ] {
        let answer = ask(method, path).of(&kbs).await;
        let given = (answer.status.as_u16(), answer.body.len(), answer.content_type);
        assert_eq!(given, (status, 0, None), "{method} {path}");
    }
}

#[tokio::test]
async fn large_bodies_are_413_and_no_json() {
    let (kbs, token) = fed_kbs().await;
    let large = vec![b' '; DEFAULT_MAX_PAYLOAD + 1];
    let (cookie, _) = auth(&kbs).await;
    for ask in [
        post("auth", &large),
        post("auth", &large[..=64 * 1024]),
        post("attest", &large).cookie(&cookie),
        post("resource-policy", &large).bearer(&token),
        post("resource/a/b/c", &large).bearer(&token),
    ] {
        let answer = ask.of(&kbs).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!((answer.body, answer.content_type), (Vec::new(), None));
    }
    // A large body without a session is not even read.
    let refused = post("resource/a/b/c", &large).of(&kbs).await;
    refused.is_error(401, &ErrorKind::AdminAuthAccess);
}

#[tokio::test]
async fn a_body_that_does_not_come_in_time_is_refused() {
    let clock = Arc::new(ManualClock::new(sample::time(0)));
    let config = config(Arc::new(MemoryBackend::new()), &clock);
    let kbs = Kbs::new(config.with_body_timeout(std::time::Duration::from_millis(20)));
    let request = Request::post("/kbs/v0/auth").body(crate::testing::never());
    let response = serve(State(kbs), request.unwrap()).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    let body = to_bytes(response.into_body(), 1000).await.unwrap();
    let body: ErrorBody = serde_json::from_slice(&body).unwrap();
    assert_eq!(body.detail, "the body did not come in time");
}

#[tokio::test]
async fn health_and_counters_are_for_everybody() {
    let world = World::new().await;
    let at_root = |path: &str| Ask { path: path.to_owned(), ..get("") };
    let answer = at_root("/healthz").of(&world.kbs).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::OK, 0));
    let cookie = attest(&world).await;
    get(&own_path()).cookie(&cookie).of(&world.kbs).await;
    attest_with(&world, &FakeAttester::new(99, 1)).await;
    get("nothing").of(&world.kbs).await;
    let answer = at_root("/metrics").of(&world.kbs).await;
    let text = String::from_utf8(answer.body).unwrap();
    for line in [
        "tec_kbs_attempts_total{code=\"ok\"} 1",
        "tec_kbs_attempts_total{code=\"TEC-A404\"} 1",
        "tec_kbs_opened_total 2",
        "tec_kbs_releases_total 1",
        "tec_kbs_refusals_total 1",
        "tec_kbs_sessions 2",
    ] {
        assert!(text.lines().any(|given| given == line), "{line}\n{text}");
    }
    assert!(!text.contains(&sample::machine_id(1).to_string()));
}

/// Unknown clients begin more sessions than there may be, and never continue them.
#[tokio::test]
async fn a_flood_of_sessions_ends_at_their_bound_and_the_service_goes_on() {
    const MAX: usize = 800;
    const FLOOD: usize = 1300;
    let clock = Arc::new(ManualClock::new(sample::time(0)));
    let config = config(Arc::new(MemoryBackend::new()), &clock);
    let kbs = Kbs::new(config.with_limits(MAX, DEFAULT_MAX_PAYLOAD));
    let mut statuses = std::collections::BTreeMap::new();
    for client in (0..8).cycle().take(FLOOD) {
        let from = std::net::SocketAddr::from(([10, 0, 0, client], 1));
        let mut request = Request::post("/kbs/v0/auth").body(Body::from(AUTH)).unwrap();
        let peer = axum::extract::ConnectInfo(from);
        request.extensions_mut().insert(peer);
        let status = serve(State(kbs.clone()), request).await.status();
        *statuses.entry(status.as_u16()).or_insert(0_usize) += 1;
    }
    assert_eq!(statuses[&200], MAX);
    assert_eq!(statuses[&503], FLOOD - MAX);
    assert_eq!(kbs.0.sessions.len(), MAX);
    post("auth", AUTH).of(&kbs).await.is_error(503, &ErrorKind::AttestationError);
    clock.advance_seconds(300);
    auth(&kbs).await;
    assert_eq!(kbs.0.sessions.len(), 1);
}
