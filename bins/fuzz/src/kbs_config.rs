//! The patcher of KBS configurations.

use tec_core::trustee::{Patched, TrusteeConfigurator as _, TrusteeIntent};
use tec_trustee::config::Schema;
use toml::{Table, Value};

use crate::Seed;

/// Tables that the patcher writes to; everything else at the top level is unchanged.
const PATCHED: [&str; 7] = [
    "http_server",
    "admin",
    "attestation_token",
    "attestation_service",
    "storage_backend",
    "session_storage_type",
    "plugins",
];

/// Whatever the file contained: after patching no check is off, unknown keys are unchanged, and patching
/// again changes nothing.
pub(crate) fn kbs_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for intent in intents() {
        check(text, &intent);
    }
}

fn intents() -> [TrusteeIntent; 2] {
    let signer = ("/k/signer.key".to_owned(), "/k/signer.crt".to_owned());
    let certs = vec!["/k/ca.crt".to_owned()];
    let plain = TrusteeIntent::new("0.0.0.0:8080", signer, certs, "/data");
    let mut full = plain.clone();
    full.tls = Some(("/t/tls.crt".to_owned(), "/t/tls.key".to_owned()));
    full.admin_public_key = Some("/k/admin.pub".to_owned());
    [plain, full]
}

fn check(text: &str, intent: &TrusteeIntent) {
    let Ok(before) = text.parse::<Table>() else {
        assert!(Schema.patch(text, intent).is_err());
        return;
    };
    let after = match Schema.patch(text, intent) {
        Ok(Patched::Changed(patched)) => {
            let again = Schema.patch(&patched, intent);
            assert_eq!(again.ok(), Some(Patched::Unchanged));
            patched.parse().expect("a patched configuration parses")
        }
        Ok(Patched::Unchanged) => before.clone(),
        Err(_) => return,
    };
    let at = |pointer: &[&str]| {
        pointer.iter().try_fold(&Value::Table(after.clone()), |value, key| value.get(*key)).cloned()
    };
    for flag in ["insecure_header_jwk", "insecure_key"] {
        assert_eq!(at(&["attestation_token", flag]), None);
    }
    let plain = intent.tls.is_none().then_some(Value::Boolean(true));
    assert_eq!(at(&["http_server", "insecure_http"]), plain);
    let mode = match intent.admin_public_key {
        Some(_) => "AuthenticatedAuthorization",
        None => "DenyAll",
    };
    assert_eq!(at(&["admin", "authorization_mode"]), Some(mode.into()));
    assert_eq!(at(&["admin", "insecure_api"]), None);
    let plugins = at(&["plugins"]);
    let plugins = plugins.as_ref().and_then(Value::as_array);
    let resource = |plugin: &Value| plugin.get("name").and_then(Value::as_str) == Some("resource");
    assert!(plugins.is_some_and(|plugins| plugins.iter().any(resource)));
    for (key, value) in before.iter().filter(|(key, _)| !PATCHED.contains(&key.as_str())) {
        // NaN is not equal to itself.
        let kept = after.get(key).map(ToString::to_string);
        assert_eq!(kept, Some(value.to_string()));
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let patched = |intent: &TrusteeIntent| match Schema.patch("", intent) {
        Ok(Patched::Changed(text)) => text,
        other => panic!("an empty configuration is patched: {other:?}"),
    };
    let [plain, full] = intents();
    let insecure = r#"
future = [1.5, nan, 1979-05-27T07:32:00Z]
[http_server]
insecure_http = true
worker_count = 4
[admin]
insecure_api = true
[attestation_token]
insecure_header_jwk = true
insecure_key = true
[[plugins]]
name = "pkcs11"
module = "x"
[storage_backend]
storage_type = "Postgres"
"#;
    vec![
        Seed::new("empty", ""),
        Seed::new("plain", patched(&plain)),
        Seed::new("full", patched(&full)),
        Seed::new("insecure", insecure),
        Seed::new("wrong_shape", "http_server = 1\nplugins = {}\n"),
    ]
}
