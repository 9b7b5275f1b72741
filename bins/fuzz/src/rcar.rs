//! The bodies of the handshake, one at a time. The first line of an input selects the kind: `auth` and
//! `attest` go to a broker, the others come from one.

mod hostile;

use bytes::Bytes;
use http::header::COOKIE;
use http::{Request, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tec_tpm::testing::SoftTpm;
use tec_trustee::wire::{
    AttestRequest, AttestResponse, AuthRequest, Challenge, ErrorBody, ErrorKind, PROTOCOL_VERSION,
    token_claims,
};

use crate::Seed;
use crate::kbs::{Reply, World, attestation};
use crate::sample::{MACHINE, p256_tpm, rsa_tpm};

/// Longest name of an unknown error type.
const MAX_NAME: usize = 64;

/// A body that parses has the same meaning when it is written again. A broker opens sessions only for what it
/// supports, issues a token only for the nonce and the key of the session, accepts a nonce once, and releases
/// a key only to the machine in the token.
pub(crate) fn rcar(data: &[u8]) {
    let Some((which, body)) = parts(data) else {
        return;
    };
    match which {
        b"auth" => check_auth(body),
        b"attest" => check_attest(body),
        b"challenge" => drop(rewritten::<Challenge>(body)),
        b"token" => drop(check_token(body)),
        b"error" => check_error(body),
        _ => {}
    }
}

fn parts(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    Some((data.get(..end)?, data.get(end + 1..)?))
}

/// The value of a body, if it parses.
fn rewritten<T>(body: &[u8]) -> Option<T>
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let parsed: T = serde_json::from_slice(body).ok()?;
    let again = serde_json::to_vec(&parsed).expect("a body is JSON");
    let again = serde_json::from_slice::<T>(&again);
    assert_eq!(again.ok().as_ref(), Some(&parsed));
    Some(parsed)
}

fn post(world: &World, verb: &str, cookie: &str, body: &[u8]) -> Reply {
    let request = Request::post(format!("/kbs/v0/{verb}")).header(COOKIE, cookie);
    let request = request.body(Bytes::copy_from_slice(body));
    world.send(request.expect("a request"))
}

/// A broker with registries.
fn broker() -> World {
    World::new(b'0')
}

fn check_auth(body: &[u8]) {
    let reply = post(&broker(), "auth", "a=b", body);
    let request = rewritten::<AuthRequest>(body);
    let is_ours =
        |request: &AuthRequest| request.version == PROTOCOL_VERSION && request.tee == "tpm";
    if reply.status == StatusCode::OK {
        assert!(request.is_some_and(|request| is_ours(&request)));
        let challenge = rewritten::<Challenge>(&reply.body).expect("a challenge");
        assert_eq!(challenge.nonce.len(), 44);
    }
}

/// A session of a broker, always the same: its cookie and its nonce.
fn session(world: &World) -> (String, String) {
    let auth = AuthRequest::new("tpm", json!({}));
    let auth = serde_json::to_vec(&auth).expect("a body is JSON");
    let reply = post(world, "auth", "a=b", &auth);
    let challenge: Challenge = serde_json::from_slice(&reply.body).expect("a challenge");
    (reply.cookie, challenge.nonce)
}

fn check_attest(body: &[u8]) {
    let world = broker();
    let (cookie, nonce) = session(&world);
    let reply = post(&world, "attest", &cookie, body);
    let again = post(&world, "attest", &cookie, body);
    let own = format!("/kbs/v0/resource/default/{MACHINE}/root");
    let get = Request::get(own).header(COOKIE, &cookie).body(Bytes::new());
    let resource = world.send(get.expect("a request"));
    if reply.status != StatusCode::OK {
        assert_ne!(again.status, StatusCode::OK, "a nonce counts once");
        assert_ne!(resource.status, StatusCode::OK);
        return;
    }
    if again.status == StatusCode::OK {
        assert_eq!(again.body, reply.body, "a session has one token");
    } else {
        assert_ne!(resource.status, StatusCode::OK, "only what opens nothing is forgotten");
    }
    let request = rewritten::<AttestRequest>(body).expect("a request that was taken");
    assert_eq!(request.runtime_data.nonce, nonce);
    let claims = check_token(&reply.body).expect("a token");
    let claim = |pointer: &str| claims.pointer(pointer).cloned().unwrap_or_default();
    let evidence = "/submods/cpu0/ear.veraison.annotated-evidence/runtime_data_claims";
    assert_eq!(claim(&format!("{evidence}/nonce")), json!(nonce));
    let key = request.runtime_data.tee_pubkey;
    assert_eq!(claim(&format!("{evidence}/tee-pubkey")), key);
    if resource.status == StatusCode::OK {
        assert_eq!(claim("/submods/cpu0/tec.machine"), json!(MACHINE));
        assert_eq!(claim("/submods/cpu0/ear.status"), json!("affirming"));
    }
}

fn check_token(body: &[u8]) -> Option<Value> {
    let response = rewritten::<AttestResponse>(body)?;
    let claims = token_claims(&response.token);
    assert!(claims.as_ref().is_none_or(Value::is_object));
    claims
}

fn check_error(body: &[u8]) {
    let Some(error) = rewritten::<ErrorBody>(body) else {
        return;
    };
    let kind = error.error_kind();
    if let ErrorKind::Other(name) = &kind {
        assert!(name.len() <= MAX_NAME && name.bytes().all(|c| c.is_ascii_alphanumeric()));
    }
    assert!(matches!(kind.http_status(), 401 | 404));
    assert_eq!(kind.as_str().parse(), Ok(kind));
    if let Some(code) = error.code() {
        assert!(error.detail.trim_start().starts_with(code.as_str()));
    }
    if let Some(attempt) = error.attempt() {
        assert_eq!(attempt.to_string().parse().ok(), Some(attempt));
    }
}

fn seed(name: &str, which: &str, body: impl AsRef<[u8]>) -> Seed {
    Seed::new(name, [which.as_bytes(), b"\n", body.as_ref()].concat())
}

/// A body from a machine of [`broker`].
fn good() -> Value {
    attestation(p256_tpm(), &session(&broker()).1)
}

pub(crate) fn seeds() -> Vec<Seed> {
    let world = broker();
    let (cookie, nonce) = session(&world);
    let own = attestation(p256_tpm(), &nonce).to_string();
    let token = post(&world, "attest", &cookie, own.as_bytes());
    assert_eq!(token.status, StatusCode::OK);
    let refused = post(&world, "attest", "a=b", b"{}");
    let error = json!({
        "type": "https://github.com/confidential-containers/kbs/errors/PolicyDeny",
        "detail": "TEC-A412 x (attempt 7c9e6679-7425-40de-944b-e07fc1f90ae7)",
    });
    let params = json!({"supported-hash-algorithms": ["sha384"], "future": [1, null]});
    let auth = serde_json::to_vec(&AuthRequest::new("tpm", params)).expect("a body is JSON");
    let attest = |name: &str, tpm: &SoftTpm| {
        let body = attestation(tpm, &nonce).to_string();
        seed(name, "attest", body)
    };
    let seeds = vec![
        seed("auth", "auth", auth),
        attest("attest_own", p256_tpm()),
        attest("attest_other", rsa_tpm()),
        // It gets a token that opens nothing.
        attest("attest_stranger", &SoftTpm::p256(9).with_still_clock()),
        seed("challenge", "challenge", post(&world, "auth", "a=b", AUTH).body),
        seed("challenge_of_se", "challenge", r#"{"nonce":"","extra-params":{"a":[]}}"#),
        seed("token", "token", token.body),
        seed("error", "error", refused.body),
        seed("error_with_code", "error", error.to_string()),
        seed("error_unknown", "error", r#"{"type":"x/Ney!w"}"#),
        seed("error_known_but_for_a_sign", "error", ERROR_WITH_A_SIGN),
    ];
    [seeds, hostile::seeds()].concat()
}

const AUTH: &[u8] = br#"{"version":"0.4.0","tee":"tpm","extra-params":""}"#;

const ERROR_WITH_A_SIGN: &str = r#"{"type":"x/At(testationError","detail":""}"#;
