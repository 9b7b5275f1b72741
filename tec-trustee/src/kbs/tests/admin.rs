//! The admin API as its clients know it: statuses, bodies, content types; and whose tokens count.

use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::EncodePublicKey as _;

use super::*;

fn delete(path: &str) -> Ask {
    Ask { method: "DELETE", ..post(path, "") }
}

fn policy_body(text: &str) -> String {
    let encoded = URL_SAFE_NO_PAD.encode(text);
    json!({"type": "rego", "policy_id": "default_cpu", "policy": encoded}).to_string()
}

#[tokio::test]
async fn what_is_accepted_is_answered_as_clients_expect() {
    let (kbs, token) = fed_kbs().await;
    let resource = json!({"policy": URL_SAFE_NO_PAD.encode(intent().render_resource())});
    let value = STANDARD.encode(r#"{"tec-test":["a",1,true]}"#);
    let value = json!({"version": "0.1.0", "type": "sample", "payload": value});
    let json_type = Some("application/json");
    let attestation = policy_body(&intent().render_attestation());
    for (ask, content_type, body) in [
        (post("resource/a/b/c", "\0\u{1}"), Some("text/xml"), ""),
        (post("resource/a/b/c", ""), Some("text/xml"), ""),
        (delete("resource/a/b/c"), None, ""),
        (post("resource-policy", resource.to_string()), None, ""),
        (get("resource-policy"), json_type, r#"["resource-policy"]"#),
        (post("attestation-policy", attestation), None, ""),
        (post("reference-value", value.to_string()), json_type, ""),
        (get("reference-value/tec-test"), json_type, r#"["a",1,true]"#),
    ] {
        let what = format!("{} {}", ask.method, ask.path);
        let answer = ask.bearer(&token).of(&kbs).await;
        assert_eq!(answer.status, StatusCode::OK, "{what}");
        assert_eq!(answer.content_type.as_deref(), content_type, "{what}");
        assert_eq!(String::from_utf8(answer.body).unwrap(), body, "{what}");
    }
}

#[tokio::test]
async fn what_is_not_accepted_says_why() {
    let (kbs, token) = fed_kbs().await;
    let padded = json!({"policy": "cGFja2FnZSBwb2xpY3k="}).to_string();
    let standard = json!({"policy": "+/+/"}).to_string();
    let other = policy_body("package policy").replace("default_cpu", "default_gpu");
    let not_text = "the policy is not base64url of a text";
    for (ask, kind, detail) in [
        (post("resource-policy", padded), "ParsePolicyError", not_text),
        (post("resource-policy", standard), "ParsePolicyError", not_text),
        (
            post("attestation-policy", other),
            "ParsePolicyError",
            "the only attestation policy is default_cpu",
        ),
        (post("resource-policy", "{"), "SerdeError", "the body is not as expected"),
        (post("reference-value", "[]"), "SerdeError", "the body is not as expected"),
        (get("reference-value/unknown"), "RvpsError", "there is no such reference value"),
        (delete("resource/a/b/c"), "PluginInternalError", "there is no such resource"),
        (
            post("resource/a/b", ""),
            "PluginInternalError",
            "a resource path must have three segments",
        ),
    ] {
        let answer = ask.bearer(&token).of(&kbs).await;
        let error = answer.error();
        assert_eq!(answer.status.as_u16(), 401, "{error:?}");
        let namespace = crate::wire::ERROR_NAMESPACE;
        assert_eq!(error.kind, format!("{namespace}{kind}"));
        assert_eq!(error.detail, detail);
    }
    for ask in [delete("resource-policy"), get("attestation-policy"), post("reference-value/x", "")]
    {
        let answer = ask.bearer(&token).of(&kbs).await;
        answer.is_error(404, &ErrorKind::PluginNotFound);
    }
}

/// A token signed with ES256, by the key from this seed.
fn es256(seed: u64, claims: &Value) -> (AdminAuth, String) {
    use p256::elliptic_curve::Generate as _;
    let key = p256::SecretKey::generate_from_rng(&mut rng(seed));
    let pem = key.public_key().to_public_key_pem(p256::pkcs8::LineEnding::LF);
    let header = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ES256"}"#);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature: p256::ecdsa::Signature =
        p256::ecdsa::SigningKey::from(key).sign(signed.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(signature.to_bytes());
    (AdminAuth::from_pem(&pem.unwrap()).unwrap(), format!("{signed}.{signature}"))
}

#[test]
fn both_algorithms_count_and_only_for_their_own_key() {
    let now = tec_core::time::Timestamp::from_unix_seconds(50);
    let claims = json!({"role": "admin", "exp": 100});
    let (ed25519, by_ed25519) = admin(&claims);
    let (p256, by_p256) = es256(1, &claims);
    let (other, _) = es256(2, &claims);
    assert!(ed25519.accepts(&by_ed25519, now) && p256.accepts(&by_p256, now));
    assert!(!ed25519.accepts(&by_p256, now) && !p256.accepts(&by_ed25519, now));
    assert!(!other.accepts(&by_p256, now));
    // The algorithm in the header alone decides nothing.
    for alg in ["none", "HS256", "ES384", "EdDSA", ""] {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": alg}).to_string());
        let (_, rest) = by_p256.split_once('.').unwrap();
        assert!(!p256.accepts(&format!("{header}.{rest}"), now), "{alg}");
    }
}

#[test]
fn time_counts_with_a_minute_of_leeway_and_audience_only_where_it_is_demanded() {
    let at = tec_core::time::Timestamp::from_unix_seconds;
    let (auth, token) = admin(&json!({"role": "admin", "exp": 100}));
    assert!(auth.accepts(&token, at(159)) && !auth.accepts(&token, at(160)));
    let later = json!({"role": "admin", "exp": 900, "nbf": 500});
    let (_, token) = admin(&later);
    assert!(auth.accepts(&token, at(440)) && !auth.accepts(&token, at(439)));
    let named = json!({"role": "admin", "exp": 900, "aud": "somebody", "iss": "else"});
    let (_, token) = admin(&named);
    assert!(auth.accepts(&token, at(1)));
    assert!(!auth.with_audience("us").accepts(&token, at(1)));
}
