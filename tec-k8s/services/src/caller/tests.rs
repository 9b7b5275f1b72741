use serde_json::json;

use super::*;

fn token(claims: &serde_json::Value) -> SecretBytes {
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    SecretBytes::new(format!("e30.{claims}.c2ln").into_bytes())
}

fn claims() -> serde_json::Value {
    json!({
        "aud": ["tec-services"], "exp": 2_000, "sub": "system:serviceaccount:apps:comp-a",
        "kubernetes.io": {
            "namespace": "apps",
            "serviceaccount": {"name": "comp-a", "uid": "u-1"},
            "pod": {"name": "comp-a-0", "uid": "p-1"},
        },
    })
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_seconds(seconds)
}

#[test]
fn a_token_says_whose_it_is_and_for_whom() {
    let claims = Claims::read(&token(&claims()), "tec-services", at(1_000)).unwrap();
    assert_eq!(claims.account, "apps/comp-a".parse().unwrap());
    assert_eq!(claims.account.host(), "comp-a.apps.svc");
    assert_eq!(claims.pod.unwrap().name, "comp-a-0");
}

#[test]
fn a_token_for_others_or_of_yesterday_costs_no_call() {
    let read = |audience, now| Claims::read(&token(&claims()), audience, at(now));
    assert_eq!(read("other", 1_000), Err(TokenError::Audience));
    assert_eq!(read("tec-services", 2_000), Err(TokenError::Expired));
}

#[test]
fn what_is_no_token_is_refused() {
    for text in ["", "a.b", "a.b.c.d", "e30.e30.e30", "..", "e30.!!.e30"] {
        let token = SecretBytes::new(text.as_bytes().to_vec());
        assert_eq!(Claims::read(&token, "tec-services", at(1)), Err(TokenError::Form), "{text:?}");
    }
    let mut hostile = claims();
    hostile["kubernetes.io"]["namespace"] = json!("apps\" { capabilities = [\"sudo\"] }");
    assert_eq!(Claims::read(&token(&hostile), "tec-services", at(1)), Err(TokenError::Form));
}

fn refused(status: u16, error: &str) -> Response {
    Response::new(status, json!({"errors": [error]}).to_string().into_bytes())
}

#[test]
fn an_outage_is_not_reported_as_bad_credentials() {
    let quick = Duration::from_millis(20);
    let denied = refused(403, "permission denied");
    let cases = [
        (refused(403, "invalid audience (aud) claim: audience"), Refusal::TokenInvalid),
        (refused(403, "service account name not authorized"), Refusal::NotBound),
        (
            refused(403, "invalid expiration time (exp) claim: token is expired"),
            Refusal::TokenExpired,
        ),
        (refused(400, "invalid role name \"x\""), Refusal::NotBootstrapped),
        (refused(503, "Vault is sealed"), Refusal::VaultSealed),
        (refused(502, ""), Refusal::VaultDown),
        (refused(500, "internal"), Refusal::VaultError),
        (
            refused(500, "local node not active but active cluster node not found"),
            Refusal::VaultDown,
        ),
        (refused(500, "write /vault/data: no space left on device"), Refusal::VaultDown),
    ];
    for (answer, refusal) in cases {
        assert_eq!(classify_login(&answer, quick, Reviewer::Up), refusal, "{answer:?}");
    }
    assert_eq!(classify_login(&denied, quick, Reviewer::Up), Refusal::TokenInvalid);
    assert_eq!(classify_login(&denied, quick, Reviewer::Down), Refusal::ReviewDown);
    let slow = Duration::from_secs(10);
    assert_eq!(classify_login(&denied, slow, Reviewer::Up), Refusal::ReviewDown);
}

#[test]
fn accounts_are_pairs_of_labels() {
    for text in ["apps", "apps/", "/a", "a/b/c", "Apps/a", "a/-b", "a/b.c", "a/*"] {
        assert!(text.parse::<Account>().is_err(), "{text}");
    }
}
